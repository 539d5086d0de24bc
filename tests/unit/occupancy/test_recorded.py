"""What a capture wrote down of its launches, and who launched them."""

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import xmem_fast
from xmem.errors import TraceError
from xmem.occupancy.launches import Known
from xmem.occupancy.library_kernels import problem_of_call
from xmem.occupancy.recorded import launches_of, of_last_iteration
from xmem.testing.trace_builder import TraceBuilder
from xmem.trace.trace import Trace, read_trace

KERNEL = [0, "void scale<4>(float*)", 264, 1, 1, 128, 2, 1, 1024, 16, 40, 8, 0]
UNKNOWN = [0, "from PTX", 1, 1, 1, 32, 1, 1, 0, -1, -1, -1, 2]
PRODUCT = {
    "family": "gemm",
    "layout": "tn",
    "m": 512,
    "n": 64,
    "k": 256,
    "batch": 1,
    "a": 14,
    "b": 14,
    "c": 14,
}
PRODUCT |= {"arithmetic": 68, "lda": 256, "ldb": 256, "ldc": 512, "epilogue": 4}
TENSOR = {"dtype": 2, "shape": [4, 3, 32, 32], "strides": [3072, 1, 96, 3]}
CONVOLUTION = {
    "operation": "convolution",
    "x": TENSOR,
    "w": {**TENSOR, "shape": [8, 3, 5, 5]},
    "y": TENSOR,
    "convolution": {"arithmetic": 0, "stride": [2, 2], "padding": [1, 1], "dilation": [1, 1]},
}
TABLE: list[Any] = [
    KERNEL,
    [1, "cublasLtMatmul", PRODUCT],
    UNKNOWN,
    [1, "cudnnBackendExecute", {"operations": [CONVOLUTION, {}]}],
    [1, "cudnnRNNForward", {}],
]


def built(rows: list[tuple[int, int, int]], **changed: Any) -> TraceBuilder:
    """Two iterations of a layer, forward in one thread and backward in another.

    Args:
        rows: Row of the table, native thread, microsecond.
    """
    what, thread, time_us = (list(column) for column in zip(*rows, strict=True))
    noted = {
        "table": TABLE,
        "what": what,
        "thread": thread,
        "stream": [0] * len(rows),
        "time_ns": [time * 1000 for time in time_us],
        "gpu": "NVIDIA H100 80GB HBM3",
        "compute_capability": [9, 0],
        "multiprocessors": 132,
        **changed,
    }
    builder = TraceBuilder().with_metadata(mode="phantom", launches=noted)
    for number, at in enumerate((0, 100)):
        builder.iteration(number, at, at + 100)
        builder.module("Net", at, at + 50).module("Net.fc", at + 5, at + 30)
        builder.operator("aten::linear", at + 10, at + 25)
        builder.operator("aten::addmm", at + 11, at + 20, sequence_number=7)
        builder.on(2000)
        builder.backward("AddmmBackward0", at + 60, at + 80, sequence_number=7)
        builder.operator("aten::mm", at + 62, at + 70)
        builder.on(1000)
    return builder


def with_memory(builder: TraceBuilder) -> TraceBuilder:
    """The same run, with a block that is held during each iteration."""
    return builder.alloc(0x10, 1 << 20, 12).free(0x10, 90).alloc(0x20, 1 << 20, 112).free(0x20, 190)


def test_an_estimate_of_a_capture_with_launches_tells_the_occupancy(tmp_path: Path) -> None:
    trace = with_memory(built([(0, 1000, 12), (1, 1000, 15), (0, 1000, 112), (2, 1000, 115)])).write(
        tmp_path / "trace.json"
    )
    page = tmp_path / "page.html"
    told = json.loads(xmem_fast("estimate", trace, "--gpu", "h100", "--json").stdout)["occupancy"]
    alone = json.loads(xmem_fast("occupancy", trace, "--json").stdout)
    assert told["gpu"] == alone["gpu"] == "NVIDIA H100 80GB HBM3"
    assert (told["launches"], told["unknown"]) == (2, 1)  # of the last iteration
    assert told["launch_mean"] == alone["launch_mean"]
    assert told["launch_mean_active"] == alone["launch_mean_active"]
    assert 0 < told["launch_mean"]["value"] < 1
    share = f"{told['launch_mean']['value']:.1%}"
    for scheduler in ("k8s-hami", "kai", "slurm", "ray", "skypilot"):
        request = xmem_fast("estimate", trace, "--gpu", "h100", "--format", scheduler).stdout
        assert f"# Occupancy {share}" in request
    assert xmem_fast("estimate", trace, "--gpu", "h100", "--no-advice", "--html", page).exit_code == 0
    text = page.read_text()
    assert '<section id="occupancy">' in text
    assert "void scale&lt;4&gt;(float*)" in text
    assert f"<b>{share}</b>" in text


def test_an_estimate_of_a_capture_without_launches_is_as_before(tmp_path: Path) -> None:
    builder = TraceBuilder().with_metadata(mode="phantom").iteration(0, 0, 100)
    trace = (
        builder.operator("aten::linear", 10, 25)
        .alloc(0x10, 1 << 20, 12)
        .free(0x10, 90)
        .write(tmp_path / "trace.json")
    )
    page = tmp_path / "page.html"
    assert json.loads(xmem_fast("estimate", trace, "--json").stdout)["occupancy"] is None
    assert "Occupancy" not in xmem_fast("estimate", trace, "--gpu", "h100", "--format", "ray").stdout
    assert xmem_fast("estimate", trace, "--gpu", "h100", "--no-advice", "--html", page).exit_code == 0
    assert 'id="occupancy"' not in page.read_text()


def trace_of(builder: TraceBuilder) -> Trace:
    return read_trace(builder.bytes())


def test_launches_have_their_operator_and_module():
    # The ids of threads in the log are native ones; the trace numbers its threads.
    rows = [(1, 71, 15), (0, 71, 27), (0, 72, 65), (0, 71, 40), (0, 71, 150), (0, 72, 165), (0, 71, 195)]
    found = launches_of(trace_of(built(rows)))
    assert [(found.text(o), found.text(m)) for o, m in zip(found.operator, found.module, strict=True)] == [
        ("aten::addmm", "Net.fc"),
        ("", "Net.fc"),
        ("aten::mm", "Net.fc"),  # backward: the module of the forward operator with the same number
        ("", "Net"),
        ("", ""),
        ("aten::mm", "Net.fc"),
        ("", ""),
    ]


def test_kernels_and_library_calls_are_told_apart():
    found = launches_of(trace_of(built([(0, 71, 15), (1, 71, 16), (2, 71, 17), (3, 71, 18), (4, 71, 19)])))
    assert found.known.tolist() == [Known.EXACT, *[Known.UNKNOWN] * 4]
    assert found.grid[0].tolist() == [264, 1, 1]
    assert found.threads[0] == 256
    assert (found.static_shared[0], found.dynamic_shared[0], found.registers[0]) == (16, 1024, 40)
    assert found.shared_bytes[0] == 1040
    assert found.registers.tolist() == [40, -1, -1, -1, -1]
    assert found.cluster.tolist() == [0, 0, 2, 0, 0]
    assert found.library_call.tolist() == [-1, 0, -1, 1, 2]
    calls = found.library_calls
    assert [found.text(row) for row in calls.family] == ["gemm", "convolution", "recurrent"]
    assert calls.sizes.tolist() == [[512, 64, 256, 1], [-1] * 4, [-1] * 4]
    assert [found.text(row) for row in calls.layout] == ["tn", "nhwc", ""]
    assert [found.text(row) for row in calls.dtypes[0]] == ["bfloat16", "bfloat16", "bfloat16", "float32"]
    assert [found.text(row) for row in calls.dtypes[1]] == ["float16", "float16", "float16", "float32"]
    assert json.loads(found.text(int(calls.problem[0]))) == {
        "leading_dimensions": [256, 256, 512],
        "epilogue": 4,
    }
    convolution = json.loads(found.text(int(calls.problem[1])))
    assert convolution["input"] == [4, 3, 32, 32]
    assert convolution["filter"] == [8, 3, 5, 5]
    assert convolution["stride"] == [2, 2]
    assert convolution["operations"] == ["convolution", ""]


def test_calls_of_cudnn_say_what_a_model_of_its_kernels_needs():
    norm = {"operation": "normalization", "x": TENSOR, "mode": 1}
    network = {"operation": "recurrent", "x": {"dtype": 0, "shape": [32, 16, 128]}, "cell": 2, "hidden": 256}
    scores = {"operation": "matmul", "a": {**TENSOR, "shape": [2, 8, 512, 64]}}
    scores["b"] = {**TENSOR, "shape": [2, 8, 64, 128]}
    engine = {"number": 67, "knobs": {"28": 2, "2": 0}}
    table: list[Any] = [
        [1, "cudnnBackendExecute", {"operations": [CONVOLUTION], "engine": engine}],
        [1, "cudnnBatchNormalizationForwardTrainingEx", {"operations": [norm]}],
        [1, "cudnnRNNForward", {"operations": [{**network, "layers": 2, "directions": 1, "algorithm": 0}]}],
        [1, "cudnnBackendExecute", {"operations": [scores, {}, {"operation": "matmul"}]}],
        [1, "cudnnBackendExecute", {"operations": [scores, *[{"operation": "matmul"}] * 4]}],
    ]
    found = launches_of(trace_of(built([(row, 71, 15) for row in range(5)], table=table)))
    families = [found.text(row) for row in found.library_calls.family]
    assert families == ["convolution", "normalization", "recurrent", "attention", "attention_gradient"]
    convolution, norms, recurrent, attention, gradient = (problem_of_call(found, call) for call in range(5))
    assert convolution.choice == "67 2=0 28=2"
    assert norms.operator == "cudnnBatchNormalizationForwardTrainingEx"
    assert (norms.shapes, norms.dense) == (((4, 3, 32, 32),), (False,))
    assert recurrent.operator == "cudnnRNNForward 2"
    assert recurrent.shapes == ((16, 256), (128,), (2, 1), (32,))
    assert (recurrent.dtypes, recurrent.choice) == (("float32", "tfloat32"), "standard")
    assert attention.shapes == gradient.shapes == ((2, 8, 512, 64), (2, 8, 128, 64))


def test_gradients_of_convolutions_are_products_of_their_own():
    tensors = {"x": [4, 8, 16, 16], "w": [32, 8, 1, 1], "y": [4, 32, 16, 16]}
    strides = [2048, 256, 16, 1]
    shaped = {key: {"dtype": 0, "shape": shape, "strides": strides} for key, shape in tensors.items()}
    pairs = [(name, tensors["w"]) for name in ("", "_data_gradient", "_filter_gradient")]
    pairs.append(("_filter_gradient", [32, 2, 3, 3]))  # in four groups
    table = [
        [
            1,
            "cudnnBackendExecute",
            {
                "operations": [
                    {
                        **CONVOLUTION,
                        **shaped,
                        "operation": f"convolution{name}",
                        "w": {**TENSOR, "shape": filters},
                    }
                ]
            },
        ]
        for name, filters in pairs
    ]
    found = launches_of(trace_of(built([(row, 71, 15) for row in range(4)], table=table)))
    products = [problem_of_call(found, call).product for call in range(4)]
    sizes = [(product.m, product.n, product.k, product.batch) for product in products]
    assert sizes == [(32, 256, 8, 4), (8, 256, 32, 4), (32, 8, 256, 4), (8, 18, 1024, 4)]


def test_the_last_iteration_is_that_of_the_steady_state():
    trace = trace_of(built([(0, 71, 15), (0, 71, 120), (1, 71, 130), (0, 71, 199)]))
    launches = of_last_iteration(trace, launches_of(trace))
    assert launches.begin_ns.tolist() == [120_000, 130_000, 199_000]


def test_a_trace_without_launches_says_how_to_record_them():
    with pytest.raises(TraceError, match="xmem-fast occupancy -- COMMAND"):
        launches_of(read_trace(TraceBuilder().with_metadata(mode="phantom").bytes()))


@pytest.mark.parametrize(
    "changed",
    [
        {"what": [5]},
        {"what": [-1]},
        {"time_ns": []},
        {"table": [[0, "short", 1]]},
        {"table": [[0, "huge", *[1 << 40] * 11]]},
        {"table": [[1, "cublasSgemm_v2", []]]},
        {"table": ["text"]},
    ],
)
def test_damaged_notes_are_refused(changed):
    with pytest.raises(TraceError, match="damaged"):
        launches_of(trace_of(built([(0, 71, 15)], **changed)))


@pytest.mark.parametrize(
    "problem",
    [
        {"family": "gemm"},
        {"family": "gemm", "m": "512", "layout": 3},
        {"operations": 3},
        {"operations": [{"operation": "convolution", "x": 1, "convolution": []}]},
        {"operations": [{"operation": "convolution", "x": {"shape": [1], "strides": [1]}}]},
    ],
)
def test_what_is_odd_of_a_library_call_is_unknown(problem):
    found = launches_of(trace_of(built([(0, 71, 15)], table=[[1, "cublasSgemm_v2", problem]])))
    assert found.known.tolist() == [Known.UNKNOWN]


def test_the_command_shows_a_capture(tmp_path: Path):
    path = tmp_path / "trace.json"
    path.write_bytes(built([(0, 71, 15), (0, 71, 115), (4, 71, 116), (0, 72, 165)]).bytes())
    answer = json.loads(xmem_fast("occupancy", path, "--json").stdout)
    assert answer["gpu"] == "NVIDIA H100 80GB HBM3"
    assert answer["launches"] == 3
    assert answer["known"] == {"exact": 2, "modelled": 0, "unknown": 1}
    # 6 blocks of 8 warps by 40 registers (1,280 a warp: 12 warps a quarter). The grid of
    # 264 blocks puts 2 of them on each of 132 multiprocessors: 16 warps of 64.
    assert answer["launch_mean"] == {"value": 0.25, "low": 0.25, "high": 0.25}
    assert answer["time_mean"] is None
    kernel = next(row for row in answer["kernels"] if row["name"].startswith("void scale"))
    assert kernel["theoretical"] == 0.75
    assert kernel["limiter"] == "registers"
    assert kernel["launches"] == 2
    assert {row["name"] for row in answer["modules"]} == {"Net.fc"}
    text = xmem_fast("occupancy", path)
    assert "2 exact, 1 unknown" in text.stdout
    assert "cudnnRNNForward" in text.stdout
    refused = xmem_fast("occupancy", path, "--gpu", "a100-40gb")
    assert refused.exit_code == 2
    assert "run the command again with this --gpu" in refused.output
    assert xmem_fast("occupancy", path, "--gpu", "h200").exit_code == 0

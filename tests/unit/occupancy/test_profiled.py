"""Launches of traces that a profiler made on a GPU."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from command_line import xmem_fast
from xmem.errors import TraceError
from xmem.occupancy.launches import Known
from xmem.occupancy.profiled import profiled_launches

SHARED = Path(os.environ.get("XMEM_SHARED", Path(__file__).parents[4] / "shared")) / "data"
A100 = {"id": 0, "name": "NVIDIA A100-SXM4-40GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108}


def kernel(name: str, ts: float, external: int, **args: Any) -> dict[str, Any]:
    of = {"External id": external, "device": 0, "stream": 7, "registers per thread": 32, "shared memory": 512}
    of |= {"grid": [108, 1, 0], "block": [256, 1, 1], **args}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": 2.5, "args": of}


def trace(*events: dict[str, Any], properties: Any = (A100,)) -> bytes:
    operator = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mul",
        "ts": 1,
        "dur": 1,
        "args": {"External id": 5},
    }
    return json.dumps({"deviceProperties": properties, "traceEvents": [operator, *events]}).encode()


def test_kernels_come_in_the_order_in_which_they_ran():
    launches, gpu = profiled_launches(trace(kernel("second", 20.001, 6, stream=20), kernel("first", 10, 5)))
    assert [launches.text(row) for row in launches.name] == ["first", "second"]
    assert [launches.text(row) for row in launches.operator] == ["aten::mul", ""]
    assert launches.begin_ns.tolist() == [10_000, 20_001]
    assert launches.duration_ns.tolist() == [2500, 2500]
    assert launches.blocks.tolist() == [108, 108]  # a dimension of 0 counts as 1
    assert launches.shared_bytes.tolist() == [512, 512]
    assert launches.stream.tolist() == [0, 1]
    assert set(launches.known.tolist()) == {Known.EXACT}
    assert (gpu.name, gpu.compute_capability, gpu.multiprocessors) == ("NVIDIA A100-SXM4-40GB", (8, 0), 108)


def test_events_that_are_no_kernels_of_nvidia_are_left_out():
    amd = kernel("amd", 5, 5)
    del amd["args"]["registers per thread"]
    wrong = kernel("wrong", 6, 5, grid=[1, 1])
    launches, _ = profiled_launches(trace(amd, wrong, {"cat": "kernel", "args": 3}, kernel("good", 10, 5)))
    assert [launches.text(row) for row in launches.name] == ["good"]


@pytest.mark.parametrize(
    "content", [trace(), b"[]", b"3", b'{"traceEvents": 3}', b'{"traceEvents": [3, {}]}']
)
def test_a_trace_without_kernels_is_refused(content):
    with pytest.raises(TraceError, match="no kernels of an NVIDIA GPU"):
        profiled_launches(content)


def test_what_is_no_json_is_refused():
    with pytest.raises(TraceError, match="not JSON"):
        profiled_launches(b"{")


@pytest.mark.parametrize("properties", [None, 3, [], [3], [{"id": 1}], [{"computeMajor": "8"}]])
def test_a_gpu_that_the_trace_does_not_describe_must_be_named(properties, tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(trace(kernel("only", 10, 5), properties=properties))
    assert "name it with --gpu" in xmem_fast("occupancy", path).output
    assert json.loads(xmem_fast("occupancy", path, "--gpu", "v100-16gb", "--json").stdout)["launches"] == 1


def test_means_of_a_recorded_model():
    """BERT-small on an H100: kernels of PyTorch and of libraries."""
    path = SHARED / "traces" / "h100_bert_small_inference.json.gz"
    if not path.exists():
        pytest.skip("needs the shared traces")
    answer = json.loads(xmem_fast("occupancy", path, "--json").stdout)
    assert answer["launches"] == 60
    assert answer["known"]["exact"] == 60
    assert answer["launch_mean"]["value"] == pytest.approx(0.0737, abs=1e-3)
    assert answer["time_mean"]["value"] == pytest.approx(0.0626, abs=1e-3)
    assert 0 < answer["wall_mean"]["value"] < answer["time_mean"]["value"]


@pytest.mark.parametrize(
    ("sweep", "says"),
    [
        ("batch", "write NAME=VALUE"),
        ("=8", "write NAME=VALUE"),
        ("batch=", "write NAME=VALUE"),
        ("batch=8,16", "the command has no {batch}"),
    ],
)
def test_a_sweep_that_sweeps_nothing_is_refused(sweep, says):
    result = xmem_fast("occupancy", "--sweep", sweep, "--", "python", "infer.py")
    assert result.exit_code == 2
    assert says in result.output


def test_something_must_be_asked():
    assert "name a trace, or pass a command" in xmem_fast("occupancy").output


def test_a_trace_that_is_not_there_is_named():
    result = xmem_fast("occupancy", "nosuch.json")
    assert result.exit_code == 3
    assert "nosuch.json" in result.output
    assert "torch" not in result.output

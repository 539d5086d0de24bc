"""What a capture says about a run, checked against the allocations in the same trace."""

from __future__ import annotations

import importlib.util
import json
import platform
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

import xmem
import xmem.capture
from nightly import most_nightly
from xmem.orchestration import RunSettings

from .conftest import TARGETS, Captured, needs_torch, run_capture, shown

pytestmark = needs_torch

Capturing = Callable[..., Captured]

CHILD = Path(xmem.capture.__file__).parent / "child"
EVERYDAY = "to_device.py"
SCRIPTS = [EVERYDAY, "amp_scaler.py", "dcgan.py", "lbfgs.py", "custom_function.py", "encoder_workers.py"]


def source_line(name: str) -> str:
    path, _, line = name.rpartition(":")
    return (TARGETS / path).read_text().splitlines()[int(line) - 1].strip()


def lines_around(run: Captured, time_ns: int) -> list[str]:
    """The source lines whose spans hold an instant, outermost first."""
    return [source_line(name) for name, begin, end in run.spans("xmem_line") if begin <= time_ns < end]


@pytest.mark.parametrize("script", most_nightly(SCRIPTS))
def test_every_named_tensor_is_a_live_block_of_its_size(captured: Capturing, script: str) -> None:
    run = captured(script)
    for role in ("parameter", "buffer", "gradient", "optimizer_state", "input"):
        for row in run.tensors(role):
            assert run.block_of(row).size_bytes == row["size_bytes"], row
            assert not run.on_host(run.block_of(row)), row


@pytest.mark.parametrize("script", most_nightly(SCRIPTS))
def test_three_iterations_follow_one_another(captured: Capturing, script: str) -> None:
    run = captured(script)
    iterations = run.spans("xmem_iteration")
    assert [name for name, _, _ in iterations] == ["iteration 0", "iteration 1", "iteration 2"]
    assert all(left[2] == right[1] for left, right in pairwise(iterations))
    assert run.result.iterations == run.xmem["iterations"] == 3
    assert run.result.exit_status == 0


@pytest.mark.parametrize("script", SCRIPTS)
def test_spans_nest(captured: Capturing, script: str) -> None:
    run = captured(script)
    categories = ("cpu_op", "user_annotation", "xmem_module", "xmem_line", "xmem_host")
    spans = sorted(
        (span for category in categories for span in run.spans(category)),
        key=lambda span: (span[1], -span[2]),
    )
    open_ends: list[int] = []
    for name, begin, end in spans:
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], name
        open_ends.append(end)


def test_model_moves_to_the_device_as_real_blocks(captured: Capturing) -> None:
    run = captured(EVERYDAY)
    parameters = run.tensors("parameter")
    assert sum(row["size_bytes"] for row in parameters) == run.xmem["modules"][0]["parameter_bytes"]
    assert [row["name"] for row in parameters][:2] == ["Net.encoder.0.weight", "Net.encoder.0.bias"]
    for row in [*parameters, *run.tensors("buffer")]:
        assert lines_around(run, run.block_of(row).alloc_ns)[-1] == "model = Net().to(device)"
        assert run.block_of(row).free_ns is None


def test_batches_arrive_as_copies(captured: Capturing) -> None:
    run = captured(EVERYDAY)
    inputs = run.tensors("input")
    assert [row["size_bytes"] for row in inputs] == [16 * 32 * 4, 16 * 8] * 3
    for row in inputs:
        assert source_line(row["name"]) == "x, y = x.to(device), y.to(device)"
        assert lines_around(run, run.block_of(row).alloc_ns)[-1] == source_line(row["name"])


def test_gradients_and_states_are_born_where_the_script_makes_them(captured: Capturing) -> None:
    run = captured(EVERYDAY)
    assert len(run.tensors("gradient")) == 3 * 6
    for row in run.tensors("gradient"):
        assert "loss.backward()" in lines_around(run, run.block_of(row).alloc_ns)
    states = run.tensors("optimizer_state")
    assert {row["name"].rpartition(".")[2] for row in states} == {"exp_avg", "exp_avg_sq"}
    for row in states:
        assert "optimizer.step()" in lines_around(run, run.block_of(row).alloc_ns)


def test_collation_is_host_work(captured: Capturing) -> None:
    run = captured(EVERYDAY)
    loading = [span for span in run.spans("user_annotation") if span[0].startswith("enumerate(DataLoader)")]
    collated = [block for block in run.blocks if any(b <= block.alloc_ns < e for _, b, e in loading)]
    assert {16 * 32 * 4, 16 * 8} <= {block.size_bytes for block in collated}
    assert all(run.on_host(block) for block in collated)


def test_forward_and_backward_are_not_host_work(captured: Capturing) -> None:
    run = captured(EVERYDAY)
    for operator in (
        "aten::addmm",
        "aten::native_batch_norm",
        "autograd::engine::evaluate_function: AddmmBackward0",
    ):
        for _, begin, end in run.operators(operator):
            assert not any(b < end and begin < e for _, b, e in run.spans("xmem_host")), operator


def test_modules_are_named_by_path(captured: Capturing) -> None:
    run = captured(EVERYDAY)
    assert {name for name, _, _ in run.spans("xmem_module")} == {
        "Net", "Net.encoder", "Net.encoder.0", "Net.encoder.1", "Net.encoder.2", "Net.norm", "Net.head",
        "CrossEntropyLoss",
    }  # fmt: skip


def test_lines_come_with_their_function_and_text(captured: Capturing) -> None:
    run = captured(EVERYDAY)
    assert set(run.xmem["lines"]) == {name for name, _, _ in run.spans("xmem_line")}
    for name, line in run.xmem["lines"].items():
        assert line["text"] == source_line(name)
    functions = {line["text"]: line["function"] for line in run.xmem["lines"].values()}
    assert functions["loss.backward()"] == "<module>"
    assert functions["return self.head(x)"] == "Net.forward"


LIBRARY = """
def double(x):
    return x * 2

def step(w):
    double(w).sum().backward()
"""
TRAINING = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
import toolbox.layers
w = torch.nn.Parameter(torch.ones(64))
optimizer = torch.optim.SGD([w])
toolbox.layers.step(w)
optimizer.step()
"""


def test_a_line_of_a_package_follows_the_users(tmp_path: Path) -> None:
    packages, script, output = tmp_path / "site-packages", tmp_path / "train.py", tmp_path / "output"
    (packages / "toolbox").mkdir(parents=True)
    (packages / "toolbox" / "layers.py").write_text(LIBRARY)
    (packages / "toolbox" / "__main__.py").write_text(TRAINING)
    script.write_text(TRAINING)
    output.mkdir()
    run = run_capture(output, [sys.executable, str(script), str(packages)], iterations=1)
    names = {name for name, _, _ in run.spans("xmem_line")}
    line = TRAINING.splitlines().index("toolbox.layers.step(w)") + 1
    assert f"{script}:{line} < toolbox/layers.py:3" in names
    assert f"{script}:{line} < toolbox/layers.py:6" in names
    assert f"{script}:{line + 1}" in names  # optimizer.step(): torch is no package of its own
    text = {name: row["text"] for name, row in run.xmem["lines"].items()}
    assert text["toolbox/layers.py:3"] == "return x * 2"
    assert text[f"{script}:{line}"] == "toolbox.layers.step(w)"


def test_a_package_that_runs_by_itself_has_no_line_of_the_user(tmp_path: Path) -> None:
    packages, output = tmp_path / "site-packages", tmp_path / "output"
    (packages / "toolbox").mkdir(parents=True)
    (packages / "toolbox" / "layers.py").write_text(LIBRARY)
    (packages / "toolbox" / "__main__.py").write_text(TRAINING)
    output.mkdir()
    command = [
        "env",
        f"PYTHONPATH={CHILD}:{packages}",
        sys.executable,
        "-m",
        "toolbox",
        str(packages),
    ]
    run = run_capture(output, command, iterations=1)
    names = {name for name, _, _ in run.spans("xmem_line")}
    assert " < toolbox/layers.py:3" in names
    estimate = xmem.estimate(run.result.path)
    assert "toolbox/layers.py:3" in estimate.breakdown.source_line


def test_dropout_keeps_a_mask_of_one_byte(captured: Capturing) -> None:
    run = captured(EVERYDAY)
    dropouts = run.operators("aten::native_dropout")
    assert len(dropouts) == 3
    _, begin, end = dropouts[0]
    kept = [b.size_bytes for b in run.blocks if begin <= b.alloc_ns < end and (b.free_ns or end) >= end]
    assert sorted(kept) == [16 * 64, 16 * 64 * 4]


def test_optimizers_take_the_foreach_path(captured: Capturing) -> None:
    run = captured(EVERYDAY)
    assert run.xmem["optimizers"] == [
        {"name": "Adam", "foreach": True, "fused": False, "steps": 3, "parameters": 6}
    ]
    assert run.operators("aten::_foreach_sqrt")


@pytest.mark.nightly
def test_dropout_costs_its_masks_and_nothing_else(captured: Capturing) -> None:
    without, with_dropout = (captured("gpt.py", "--dropout", p, iterations=2) for p in ("0.0", "0.1"))
    masks = (
        2 * 4 * 2 * 64 * 32
    )  # two dropouts in each of four blocks, one byte an element; attention's own is fused
    assert with_dropout.device_peak() - without.device_peak() == masks


@pytest.mark.nightly
def test_dropout_of_nothing_copies_nothing(captured: Capturing) -> None:
    run = captured("gpt.py", "--dropout", "0.0", iterations=2)
    dropouts = run.operators("aten::dropout")
    assert len(dropouts) == 2 * 4 * 2
    made = [b for b in run.blocks if any(begin <= b.alloc_ns < end for _, begin, end in dropouts)]
    assert made == []


def test_weights_of_recurrent_layers_lie_in_one_block_on_the_gpu(captured: Capturing) -> None:
    run = captured("recurrent.py")
    lstm = 4 * (64 * (8 + 16) + 64 * (16 + 16) + 2 * 2 * 64)
    gru = 4 * 2 * (48 * (8 + 16) + 2 * 48)  # cuDNN's block has biases though the layer has none
    assert run.stdout.splitlines() == [f"1 {lstm} True True", f"1 {gru} True True"]
    assert ("flat_recurrent_weights", 2) in [(row["name"], row["count"]) for row in run.xmem["alignments"]]


def test_attention_gives_its_result_as_cuda_lays_it_out(captured: Capturing) -> None:
    run = captured("gpt.py", "--contiguous", iterations=2)
    assert ("attention_layout", 4 * 2) in [(row["name"], row["count"]) for row in run.xmem["alignments"]]
    forward = [(begin, end) for name, begin, end in run.spans("xmem_module") if name == "GPT"]
    reshapes = [  # of the results, to (batch, length, width)
        (begin, end)
        for _, begin, end in run.operators("aten::reshape")
        if any(enter <= begin < leave for enter, leave in forward)
    ]
    assert len(reshapes) >= 4 * 2
    made = [b for b in run.blocks if any(begin <= b.alloc_ns < end for begin, end in reshapes)]
    assert made == []


def test_what_stays_is_parameters_gradients_state_and_the_batch(captured: Capturing) -> None:
    run = captured("gpt.py", "--dropout", "0.1", iterations=2)
    parameter_bytes = run.xmem["modules"][0]["parameter_bytes"]
    end = run.spans("xmem_iteration")[-1][2]
    staying = {
        block for row in run.tensors("parameter") + run.tensors("gradient") for block in [run.block_of(row)]
    }
    staying |= {run.block_of(row) for row in run.tensors("optimizer_state")}
    assert sum(block.size_bytes for block in staying if block.live_at(end)) == 4 * parameter_bytes
    others = [block for block in run.blocks if block.live_at(end) and not run.on_host(block)]
    assert sum(block.size_bytes for block in others if block not in staying) < 2 * 64 * 8 + 512


def test_no_python_frames_unless_asked_for(captured: Capturing) -> None:
    assert not captured(EVERYDAY).spans("python_function")


@pytest.mark.nightly
def test_stacks_on_request_and_compressed_output(captured: Capturing) -> None:
    run = captured(EVERYDAY, stacks=True, iterations=1, name="trace.json.gz")
    assert run.spans("python_function")
    assert len(run.spans("xmem_iteration")) == 1
    assert run.result.path.read_bytes()[:2] == b"\x1f\x8b"


def test_script_output_passes_through(captured: Capturing) -> None:
    run = captured(EVERYDAY)
    assert run.stdout == "training on cuda\n"
    assert run.stderr == ""


def test_metadata(captured: Capturing) -> None:
    run = captured("encoder_workers.py", "--workers", "2", "--epochs", "2")
    assert run.xmem["format"] == 1
    assert run.xmem["mode"] == "real"
    assert run.xmem["argv"] == [shown(TARGETS / "encoder_workers.py"), "--workers", "2", "--epochs", "2"]
    assert run.xmem["device_requests"] == 27 + 2 * 3
    assert {row["name"]: row["count"] for row in run.xmem["alignments"]} == {
        "attention_dropout": 2 * 3,
        "attention_layout": 2 * 3,
        "native_dropout": 6 * 3,
    }
    short = {
        key: value
        for key, value in run.xmem.items()
        if key not in ("tensors", "lines", "streams", "attention")
    }
    assert run.result.metadata == short


def test_worker_processes_leave_collated_batches_to_the_device_copies(captured: Capturing) -> None:
    run = captured("encoder_workers.py", "--workers", "2", "--epochs", "2")
    assert [row["size_bytes"] for row in run.tensors("input")] == [8 * 12 * 8, 8 * 8] * 3
    assert run.operators("aten::_scaled_dot_product_flash_attention_for_cpu")


def test_mixed_precision_counts_optimizer_steps(captured: Capturing) -> None:
    run = captured("amp_scaler.py")
    assert run.stdout.startswith("NVIDIA GeForce RTX 3060 True\n")
    assert len(run.tensors("input")) == 3 * 2 * 2  # two batches a step, two tensors a batch
    # zero_grad(set_to_none=False): the gradients of the first step are those of all others
    assert len(run.tensors("gradient")) == run.xmem["optimizers"][0]["parameters"]
    assert run.operators("aten::_amp_foreach_non_finite_check_and_unscale_")


def test_cuda_autocast_keeps_softmax_in_float32(captured: Capturing) -> None:
    run = captured("amp_scaler.py")
    events = [event for event in run.events if event["name"] == "aten::_softmax"]
    assert events
    assert all(event["args"]["Input type"][0] == "float" for event in events)


def test_two_optimizers_share_an_iteration(captured: Capturing) -> None:
    run = captured("dcgan.py")
    assert [(row["name"], row["steps"]) for row in run.xmem["optimizers"]] == [("Adam", 3), ("RMSprop", 3)]
    assert [row["name"] for row in run.xmem["modules"]] == ["Sequential", "Sequential#2"]
    steps = [span for span in run.spans("user_annotation") if span[0].startswith("Optimizer.step#RMSprop")]
    for (_, _, step_end), (_, _, iteration_end) in zip(steps, run.spans("xmem_iteration"), strict=True):
        assert step_end <= iteration_end


def test_a_new_optimizer_for_each_batch_does_not_record_for_ever(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(8, 8)\n"
        "while True:\n"
        "    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "    model(torch.randn(4, 8)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    result = xmem.capture.capture(
        [sys.executable, str(script)], tmp_path / "trace.json", mode="real", timeout_s=100
    )
    assert result.iterations >= 1
    assert len(xmem.read_trace(result.path).notes.optimizers) == 24  # 8 for each of the 3 that were asked for


def test_closures_and_device_contexts(captured: Capturing) -> None:
    run = captured("lbfgs.py")
    assert {row["name"] for row in run.tensors("parameter")} == {
        f"Sequential.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")
    }
    assert any(row["name"] == "Sequential.0.weight.old_dirs.0" for row in run.tensors("optimizer_state"))


def test_user_code_called_by_the_engine(captured: Capturing) -> None:
    run = captured("custom_function.py")
    assert "return grad * factor * ones, (grad * x).sum() + extra.sum()" in {
        source_line(name) for name, _, _ in run.spans("xmem_line")
    }
    # recomputation in backward calls a part of the model, and keeps its name
    assert len([name for name, _, _ in run.spans("xmem_module") if name == "Net.first"]) == 2 * 3


def test_script_that_never_asks_for_a_gpu(captured: Capturing) -> None:
    run = captured("plain_cpu.py")
    assert run.xmem["device_requests"] == 0
    assert run.result.iterations == 2
    assert any("2 of the 3 requested iterations" in text for text in run.xmem["assumptions"])
    assert not run.spans("xmem_host")
    assert run.xmem["optimizers"][0]["foreach"]
    assert {row["name"].rpartition(".")[2] for row in run.tensors("optimizer_state")} >= {"sum"}


@pytest.mark.slow
def test_torchvision_model(captured: Capturing) -> None:
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    run = captured("resnet.py")
    assert run.xmem["modules"] == [{"name": "ResNet", "parameters": 11181642, "parameter_bytes": 44726568}]
    assert len(run.tensors("optimizer_state")) == 62
    assert any(name == "ResNet.layer1.0.conv1" for name, _, _ in run.spans("xmem_module"))


@pytest.mark.slow
def test_hugging_face_trainer(captured: Capturing) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    run = captured("hf_trainer.py")
    assert run.result.iterations == 3
    assert run.xmem["modules"][0]["name"] == "GPT2LMHeadModel"
    assert run.xmem["optimizers"][0]["fused"]
    assert {"trainer.train()"} == {source_line(row["name"]) for row in run.tensors("input")}
    for row in run.tensors("gradient"):
        assert run.block_of(row).size_bytes == row["size_bytes"]


def test_what_the_script_set_of_torch_is_noted_when_the_recording_ends(captured: Capturing) -> None:
    run = captured("sets_backends.py")
    assert run.xmem["settings"] == {
        "cudnn_enabled": True,
        "cudnn_allow_tf32": False,
        "cudnn_benchmark": True,
        "cudnn_deterministic": True,
        "matmul_allow_tf32": True,
        "deterministic_algorithms": False,
        "autocast": "bfloat16",
        "channels_last": True,
        "environment": {"CUBLAS_WORKSPACE_CONFIG": ":16:8"},
    }


def test_a_script_that_sets_nothing_has_the_defaults_of_torch(captured: Capturing) -> None:
    noted = captured(EVERYDAY).xmem["settings"]
    assert RunSettings.of({**noted, "environment": {}}) == RunSettings()


def test_weights_of_modules_that_are_never_called(captured: Capturing) -> None:
    run = captured("uncalled.py")
    rows = {row["name"]: row for role in ("parameter", "gradient") for row in run.tensors(role)}
    expected = {
        "Model.base.weight": ("parameter", 64 * 512 * 4),
        "Model.adapter.weight": ("parameter", 512 * 4),
        "Model.base.weight.ds_tensor": ("parameter", 2048 * 4),
        "Model.adapter.weight.main_grad": ("gradient", 4096 * 4),
    }
    for name, (role, size) in expected.items():
        (row,) = [row for row in run.tensors(role) if row["name"] == name and row["size_bytes"] == size][:1]
        assert run.block_of(row).size_bytes == size
    assert any(row["size_bytes"] == 8192 * 4 for row in run.tensors("parameter")), rows


def test_layers_that_take_their_sizes_from_the_first_batch_are_named(tmp_path: Path) -> None:
    captured = run_capture(tmp_path, [sys.executable, str(TARGETS / "lazy_layers.py")])
    tensors = captured.xmem["tensors"]
    named = {
        name: size
        for role, name, size in zip(tensors["role"], tensors["name"], tensors["size_bytes"], strict=True)
        if role == "parameter"
    }
    assert named["Sequential.4.weight"] == 8 * 16 * 14 * 14 * 4
    assert len(named) == 6


def test_a_module_may_call_something_of_its_own_buffers(tmp_path: Path) -> None:
    script = tmp_path / "script" / "own_buffers.py"
    script.parent.mkdir()
    script.write_text(
        "import torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(64, 64)\n"
        "        self.buffers = []\n"  # as Megatron's DistributedDataParallel has
        "net = Net().to('cuda')\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    optimizer.zero_grad()\n"
        "    net(torch.randn(4, 64, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
    )
    (tmp_path / "trace").mkdir()
    captured = run_capture(tmp_path / "trace", [sys.executable, str(script)])
    assert {row["name"] for row in captured.tensors("parameter")} == {"Net.weight", "Net.bias"}


def test_the_trace_holds_no_secret_of_the_command_line_or_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(8, 8)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(3):\n"
        "    x = torch.randn(4, 8); login = dict(token='very-secret')\n"
        "    model(x).sum().backward()\n"
        "    optimizer.step()\n"
    )
    command = [sys.executable, str(script), "--hf-token", "very-secret", "--lr", "1"]
    result = xmem.capture.capture(command, tmp_path / "trace.json", mode="real", timeout_s=100)
    text = result.path.read_text()
    assert "very-secret" not in text
    assert "token='***'" in text
    assert xmem.read_trace(result.path).notes.argv[1:] == ("--hf-token", "***", "--lr", "1")
    assert platform.node() not in text
    assert '"host_name": ""' in text or "host_name" not in text
    assert str(tmp_path) not in text
    estimate = xmem.estimate(result.path)
    found = json.dumps(estimate.to_json())
    assert str(tmp_path) not in found
    assert "~/script.py:6" in found
    (tmp_path / "as umask").touch()
    assert result.path.stat().st_mode == (tmp_path / "as umask").stat().st_mode

"""Blocks of this process, recorded on the CPU: what is counted, what it is called, and that nothing stays."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import xmem
from xmem.capture import capture

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

JOB = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 8))
    return model, torch.optim.AdamW(model.parameters())

def train(model, optimizer, steps):
    for step in range(steps):
        x, y = torch.randn(32, 64), torch.randint(0, 8, (32,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    """The functions of the job, as a module of the user's would have them."""
    names: dict[str, Any] = {}
    exec(compile(JOB, "job.py", "exec"), names)
    return names


def rounded(size_bytes: int) -> int:
    return -(-size_bytes // 512) * 512


def bytes_of(model: Any) -> int:
    return sum(rounded(p.untyped_storage().nbytes()) for p in model.parameters())


def test_the_same_loop_captured_and_recorded_has_the_same_peak(job: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB + "train(*build(), 3)\n")
    capture([sys.executable, str(tmp_path / "job.py")], tmp_path / "trace.json", iterations=3)
    captured = xmem.estimate(tmp_path / "trace.json")
    with xmem.record() as whole:
        job["train"](*job["build"](), 3)
    parts = job["build"]()
    with xmem.record() as loop:
        job["train"](*parts, 3)
    assert whole.estimate.peak_allocated_bytes == captured.peak_allocated_bytes
    assert loop.estimate.peak_allocated_bytes == captured.peak_allocated_bytes
    assert loop.estimate.breakdown.category == captured.breakdown.category
    assert loop.estimate.trace.iterations == 3
    assert loop.estimate.diagnostics == ()


def test_what_was_there_before_is_counted_to_the_byte_and_named(job: dict[str, Any]) -> None:
    model, optimizer = job["build"]()
    job["train"](model, optimizer, 1)
    with xmem.record() as recorder:
        job["train"](model, optimizer, 2)
    held = recorder.estimate.breakdown.category_peaks
    steps = sum(512 for _ in model.parameters())
    assert held["parameter"] == held["gradient"] == bytes_of(model)
    assert held["optimizer_state"] == 2 * bytes_of(model) + steps
    assert "unknown" not in held
    names = dict(
        zip(*(recorder.analysis.stages.trace.metadata["tensors"][c] for c in ("name", "role")), strict=True)
    )
    assert names["Sequential.0.weight"] in ("parameter", "gradient")
    assert not any(name.startswith("AdamW.params") for name in names)


def test_gradients_of_before_end_with_zero_grad(job: dict[str, Any]) -> None:
    import torch

    model, optimizer = job["build"]()
    job["train"](model, optimizer, 1)
    with xmem.record() as recorder:
        optimizer.zero_grad()
        kept = torch.empty(1 << 16)
    blocks = recorder.analysis.stages.blocks
    after = blocks.alloc_ns[blocks.size_bytes == kept.nbytes][0]
    alive = (blocks.alloc_ns <= after) & (blocks.free_ns > after)
    weights = [p.untyped_storage().nbytes() for p in model.parameters()]
    assert sorted(blocks.size_bytes[alive & (blocks.alloc_ns < after)]) == sorted(
        weights + 2 * weights + [4] * len(weights)
    )


def test_inference_holds_weights_input_and_few_activations(job: dict[str, Any]) -> None:
    import torch

    model, _ = job["build"]()
    x = torch.randn(256, 64)
    model.eval()
    with xmem.record(gpu="rtx-3060") as recorder, torch.no_grad():
        output = model(x)
    estimate = recorder.estimate
    held = estimate.breakdown.category_peaks
    assert held["parameter"] == bytes_of(model)
    assert held["input"] == x.nbytes
    assert held["activation"] == rounded(output.nbytes)  # all that outlives the call
    assert held["temporary"] == 2 * 256 * 512 * 4  # a layer's input and output
    assert "gradient" not in held
    assert "optimizer_state" not in held
    assert estimate.fits
    assert estimate.trace.iterations == 1


def test_backward_without_an_optimizer(job: dict[str, Any]) -> None:
    import torch

    model, _ = job["build"]()
    with xmem.record() as recorder:
        model(torch.randn(32, 64)).sum().backward()
    held = recorder.estimate.breakdown.category_peaks
    assert held["gradient"] == held["parameter"] == bytes_of(model)
    assert held["activation"] >= 2 * 32 * 512 * 4
    assert recorder.estimate.breakdown.module.keys() >= {"Sequential.0", "Sequential.3"}


def test_results_are_written_when_asked_for(job: dict[str, Any], tmp_path: Path) -> None:
    with xmem.record(json=tmp_path / "estimate.json", gpu="rtx-3060") as recorder:
        job["train"](*job["build"](), 1)
    assert json.loads((tmp_path / "estimate.json").read_text())["verdict"]["fits"] is True
    recorder.write_trace(tmp_path / "trace.json.gz")
    again = xmem.estimate(tmp_path / "trace.json.gz", gpu="rtx-3060")
    assert again.peak_allocated_bytes == recorder.estimate.peak_allocated_bytes
    folder = recorder.trace_path.parent
    del recorder
    assert not folder.exists()


def test_the_report_is_one_page(job: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("xmem.reports.html")
    pytest.importorskip("jinja2")
    with xmem.record(html=tmp_path / "page.html", gpu="rtx-3060"):
        job["train"](*job["build"](), 1)
    assert "job.py:" in (tmp_path / "page.html").read_text()


def state_of_torch() -> dict[str, Any]:
    """All that a recording changes."""
    import torch
    import torch.nn.modules.module as hooks
    import torch.optim.optimizer as optim

    def attributes(owner: Any) -> dict[str, Any]:
        return {name: value for name, value in vars(owner).items() if not name.startswith("__")}

    kernels = [
        torch._C._dispatch_dump(f"aten::{name}")
        for name in ("dropout", "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu")
    ]
    owners = (
        torch, torch.autograd, torch.autograd.profiler.record_function, torch.autograd.profiler.profile,
        torch.profiler.profile, torch.nn.Module, torch.Tensor, torch.optim.Optimizer, torch.optim.AdamW,
        torch.cuda, torch.nn.RNNBase, torch.amp.autocast_mode.autocast, optim, threading.Thread,
    )  # fmt: skip
    return {
        "kernels": kernels,
        "attributes": [attributes(owner) for owner in owners],
        "hooks": [
            dict(found)
            for found in (
                hooks._global_forward_hooks, hooks._global_forward_pre_hooks, hooks._global_backward_hooks,
                hooks._global_forward_hooks_always_called,
                optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks,
            )
        ],
        "modes": torch.overrides._get_current_function_mode_stack(),
        "warnings": list(warnings.filters),
        "profiling": torch.autograd._profiler_enabled(),
    }  # fmt: skip


def fail_after_training(job: dict[str, Any]) -> None:
    job["train"](*job["build"](), 1)
    raise ZeroDivisionError


def marks_on(model: Any) -> Iterator[str]:
    for parameter in model.parameters():
        yield from vars(parameter.untyped_storage())


def test_torch_is_afterwards_as_it_was(job: dict[str, Any]) -> None:
    model, optimizer = job["build"]()
    job["train"](model, optimizer, 1)
    with xmem.record():  # what torch imports and caches with first use
        job["train"](model, optimizer, 1)
    before = state_of_torch()
    with xmem.record():
        during = state_of_torch()
        job["train"](model, optimizer, 1)
    with pytest.raises(ZeroDivisionError), xmem.record():
        fail_after_training(job)
    after = state_of_torch()
    for name, value in before.items():
        assert after[name] == value, name
    assert during["attributes"] != before["attributes"]
    assert during["kernels"] != before["kernels"]
    assert during["hooks"] != before["hooks"]
    assert list(marks_on(model)) == []


def test_a_block_that_fails_has_no_result(job: dict[str, Any]) -> None:
    with pytest.raises(ZeroDivisionError), xmem.record() as recorder:
        fail_after_training(job)
    assert not recorder.is_recorded
    with pytest.raises(xmem.XmemError, match="ended with an exception"):
        _ = recorder.estimate
    with xmem.record() as next_one:
        job["train"](*job["build"](), 1)
    assert next_one.estimate.peak_allocated_bytes > 0


def test_the_outermost_recording_counts(job: dict[str, Any]) -> None:
    with xmem.record() as outer:
        with xmem.record() as inner:
            job["train"](*job["build"](), 1)
        with pytest.raises(xmem.XmemError, match="not ended yet"):
            _ = outer.estimate
    assert outer.is_recorded
    with pytest.raises(xmem.XmemError, match="another recording"):
        _ = inner.estimate
    with pytest.raises(xmem.ConfigError, match="used again"), outer:
        pass


def test_another_thread_records_when_this_one_does_not(job: dict[str, Any]) -> None:
    recorders: list[xmem.Recorder] = []

    def work() -> None:
        with xmem.record() as recorder:
            job["train"](*job["build"](), 1)
        recorders.append(recorder)

    with xmem.record():
        _run_in_thread(work)
    _run_in_thread(work)
    assert [recorder.is_recorded for recorder in recorders] == [False, True]
    assert recorders[1].estimate.breakdown.category_peaks["parameter"] > 0


def _run_in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_profiler_around_the_block_is_in_the_way(job: dict[str, Any]) -> None:
    import torch

    with torch.profiler.profile(), pytest.raises(xmem.ConfigError, match="profiler"), xmem.record():
        pass
    with xmem.record() as recorder, torch.profiler.profile():  # inside, it does nothing
        job["train"](*job["build"](), 1)
    assert any("profiling" in text for text in recorder.estimate.assumptions)


@pytest.mark.parametrize(
    "options", [{"gpu": "no-such-gpu"}, {"capacity": "many"}, {"alloc_conf": "nonsense:1"}, {"device": "tpu"}]
)
def test_settings_are_refused_before_the_block_runs(options: dict[str, Any]) -> None:
    with pytest.raises(xmem.ConfigError):
        xmem.record(**options)


def test_importing_xmem_does_not_import_torch() -> None:
    code = (
        "import sys, xmem; xmem.record, xmem.memory_tracker; xmem.record(gpu='rtx-3060');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_script_that_is_captured_may_record_itself(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        f"{JOB}\nimport xmem\nwith xmem.record() as recorder:\n    train(*build(), 2)\nassert False\n"
    )
    result = capture([sys.executable, str(script)], tmp_path / "trace.json", iterations=2)
    assert result.iterations == 2


def test_a_block_without_tensors_says_so(tmp_path: Path) -> None:
    with xmem.record() as recorder:
        pass
    assert not recorder.is_recorded
    with pytest.raises(xmem.XmemError, match="no recording: the block made no tensor and used none"):
        _ = recorder.estimate
    with pytest.raises(xmem.XmemError, match="made no tensor"), xmem.record(json=tmp_path / "estimate.json"):
        pass


def test_estimates_do_not_name_the_trace_that_goes_with_the_recorder(job: dict[str, Any]) -> None:
    with xmem.record() as recorder:
        job["train"](*job["build"](), 1)
    assert recorder.estimate.trace.path == ""


def test_a_block_may_compute_nothing_and_torch_computes_again_after_it(job: dict[str, Any]) -> None:
    import torch

    peaks = []
    for device in ("cpu", "fake"):
        with xmem.record(device=device) as recorder:  # type: ignore[arg-type]
            model, optimizer = job["build"]()
            job["train"](model, optimizer, 2)
        peaks.append(recorder.estimate.peak_allocated_bytes)
    assert peaks[0] == peaks[1]
    with xmem.record(device="fake") as large:
        weights = torch.nn.Linear(1 << 15, 1 << 15)
        product = weights(torch.randn(1 << 14, 1 << 15))
        assert product.sum().item() == 0
    assert large.estimate.peak_allocated_bytes > 6 << 30
    assert any("computed nothing" in each for each in large.estimate.assumptions)
    assert (torch.ones(3) @ torch.ones(3)).item() == 3
    assert job["build"]()[0](torch.ones(2, 64)).abs().sum() > 0

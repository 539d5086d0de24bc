"""The measuring kit on real CUDA builds of torch: what a visit to a GPU would run, without the GPU."""

from pathlib import Path
from typing import Any

import pytest

from xmem.devices.gpus import find_device, read_device
from xmem.validation import LeastMemory, TrainingPeak, load_measurements, replay_history

from ..conftest import NEWEST_FIRST

MEASURE = Path(__file__).parents[3] / "bench" / "gpu" / "measure.py"


@pytest.mark.nightly
@pytest.mark.parametrize("phantom", NEWEST_FIRST, indirect=True)
def test_a_visit_measures_the_described_gpu(phantom: Any) -> None:
    results = phantom.folder / "results"
    command = [phantom.python, str(MEASURE), "--minutes", "3", "--each", "2", "-o", str(results)]
    ran = phantom.run_command(command, gpu="h200")
    assert ran.returncode == 0, ran.stderr[-3000:]
    # The process that all runs are forked from must not start CUDA: a GPU cannot be used on both sides of a fork.
    zygote = max(ran.processes, key=lambda process: process.calls.get("__cudaRegisterFatBinary", 0))
    assert set(zygote.calls) == {"__cudaRegisterFatBinary", "__cudaRegisterFatBinaryEnd"}
    (folder,) = results.iterdir()
    assert folder.name.startswith("phantom-nvidia-h200-torch")
    measurements = load_measurements(folder)
    assert {m.outcome for m in measurements} == {"done"}, [m.error for m in measurements]
    described, measured = find_device("h200"), read_device(folder / "device.toml")
    # CUDA answers for all attributes; those that no description names are 0.
    assert dict(measured.attributes) == {**dict.fromkeys(measured.attributes, 0), **described.attributes}
    assert measured.total_memory_bytes == described.total_memory_bytes
    assert measured.context_bytes == described.context_bytes
    for run in measurements:
        if isinstance(run, TrainingPeak):
            replay = replay_history(run)
            assert replay.difference is None
            assert replay.reserved_bytes.max() == run.peak_reserved_bytes
            assert replay.allocated_bytes.max() == run.peak_allocated_bytes
        if isinstance(run, LeastMemory):
            assert run.too_little_bytes < run.least_bytes <= run.peak_reserved_bytes

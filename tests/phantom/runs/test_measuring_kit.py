"""The measuring kit on real CUDA builds of torch: what a visit to a GPU would run, without the GPU."""

from pathlib import Path
from typing import Any

import pytest

from xmem.devices.gpus import find_device, read_device
from xmem.validation import (
    LeastMemory,
    LibraryAnswers,
    RecurrentNetworks,
    TrainingPeak,
    load_measurements,
    replay_history,
)

from ..conftest import NEWEST_FIRST, torch_version

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


# What we have no rule for: the memory of one solver on the host, how many elements of a product meet.
LEFT_OUT = {"cusolverDnXgeev_bufferSize": "host_bytes", "cusparseSpGEMM_compute": "product_nonzeros"}
# Some lengths of cuFFT's, likewise.
DIFFERENT = {"cufftXtMakePlanMany": 0.02}


@pytest.mark.parametrize("phantom", NEWEST_FIRST[:1], indirect=True)
def test_libraries_ask_for_the_memory_that_they_asked_for_on_a_gpu(phantom: Any) -> None:
    if torch_version(phantom) < (2, 11):
        pytest.skip("the libraries that answered on the GPU are those of CUDA 13")
    results = phantom.folder / "results"
    command = [phantom.python, str(MEASURE), "--minutes", "2", "--only", "libraries", "-o", str(results)]
    ran = phantom.run_command(command, gpu="h200")
    assert ran.returncode == 0, ran.stderr[-3000:]
    measured = {
        str(run.config): run for run in answers(MEASURE.parent / "results" / "nvidia-h200-torch2.11.0")
    }
    compared = networks = 0
    for run in answers(results):
        truth = measured[str(run.config)]
        if isinstance(run, RecurrentNetworks) and isinstance(truth, RecurrentNetworks):
            # A loaded machine has no time for the last.
            for network, real in zip(run.networks, truth.networks, strict=False):
                networks += 1
                assert network.settings == real.settings
                assert network.forward.tolist() == real.forward.tolist(), network.settings
                assert network.backward.tolist() == real.backward.tolist(), network.settings
        elif isinstance(run, LibraryAnswers) and isinstance(truth, LibraryAnswers):
            for function in run.packed_calls:
                real_calls, calls = called(truth, function), called(run, function)
                compared += len(real_calls)
                assert len(real_calls - calls) <= DIFFERENT.get(function, 0) * len(real_calls), function
    assert compared > 60_000
    assert networks > 0


def answers(folder: Path) -> list[LibraryAnswers | RecurrentNetworks]:
    return [run for run in load_measurements(folder) if isinstance(run, LibraryAnswers | RecurrentNetworks)]


def called(run: LibraryAnswers, function: str) -> set[tuple[int, ...]]:
    columns = run.calls(function)
    columns.pop(LEFT_OUT.get(function, ""), None)
    return set(zip(*(column.tolist() for column in columns.values()), strict=True))

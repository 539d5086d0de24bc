"""What the card must have: never less than the phantom's own books say that all processes of a run held of it."""

from __future__ import annotations

import dataclasses
import functools
import textwrap

import pytest

import xmem
from xmem.capture import Extent

from ..conftest import NEWEST_FIRST, PYTHONS, run

pytestmark = pytest.mark.skipif(not PYTHONS, reason="no CUDA build of torch here")

TRAIN = """
import torch
def train(steps, width=256):
    model = torch.nn.Linear(width, width).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        model(torch.randn(8, width, device="cuda")).sum().backward()
        optimizer.step()
"""
RANKS = """
import functools
import os, sys, torch, torch.distributed as dist
import torch.multiprocessing as processes

def work(rank, world):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    own = torch.empty((1 + 2 * rank) << 30, dtype=torch.uint8, device="cuda")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).cuda())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        model(torch.randn(8, 256, device="cuda")).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    processes.spawn(work, (2,), nprocs=2)
"""


@pytest.fixture(params=NEWEST_FIRST)
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


on_h100 = functools.partial(run, gpu="h100")


def parts(estimate: xmem.Estimate) -> dict[str, int]:
    """The parts of the device peak by name, which sum to it."""
    assert sum(part.bytes for part in estimate.card) == estimate.device_peak_bytes
    return {part.name: part.bytes for part in estimate.card}


def test_the_rank_that_needs_most_decides_and_is_traced(python, tmp_path, unused_port):
    result, estimate = on_h100(python, tmp_path, RANKS, unused_port, gpus=2)
    assert estimate.measured is not None
    assert [rank.rank for rank in estimate.measured.ranks] == [1, 0]
    assert estimate.measured.replay_agrees
    assert estimate.peak_reserved_bytes == estimate.measured.peak_reserved_bytes > 3 << 30
    # H100s have NVLink: NCCL's buffers are on the card, though PyTorch knows nothing of them.
    assert parts(estimate)["nccl"] > 200 << 20
    assert estimate.device_peak_bytes == estimate.measured.card_peak_bytes
    assert xmem.estimate(result.path, capacity="3.5GiB").fits is False


@pytest.mark.nightly
def test_a_rank_that_is_named_is_traced_and_another_decides_all_the_same(python, tmp_path, unused_port):
    _, estimate = on_h100(python, tmp_path, RANKS, unused_port, gpus=2, rank=0)
    assert estimate.measured is not None
    assert estimate.measured.ranks[0].rank == 0
    assert estimate.peak_reserved_bytes < 2 << 30
    assert estimate.device_peak_bytes == max(rank.card_peak_bytes for rank in estimate.measured.ranks)
    assert parts(estimate)["other_card"] >= 2 << 30
    assert estimate.interval is not None
    assert estimate.interval.high_bytes >= estimate.device_peak_bytes


@pytest.mark.nightly
def test_processes_that_share_a_card_are_counted_together(python, tmp_path):
    script = TRAIN + textwrap.dedent(
        """
        import torch.multiprocessing as processes
        def work(_, all_there):
            keep = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
            all_there.wait(120)
            train(4)
        if __name__ == "__main__":
            processes.spawn(work, (processes.get_context("spawn").Barrier(3),), nprocs=3)
        """
    )
    _, estimate = on_h100(python, tmp_path, script)
    context = estimate.context_bytes
    assert parts(estimate)["other_processes"] >= 2 * ((1 << 30) + context)
    assert estimate.device_peak_bytes >= 3 * ((1 << 30) + context)


@pytest.mark.nightly
def test_a_program_that_takes_the_process_over_gives_back_what_the_one_before_held(python, tmp_path):
    again = """
    import os, sys, torch
    held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    if "STARTED_AGAIN" not in os.environ:
        train(1)
        os.environ["STARTED_AGAIN"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    train(4)
    """
    _, estimate = on_h100(python, tmp_path, TRAIN + textwrap.dedent(again))
    assert set(parts(estimate)).isdisjoint({"libraries", "other_processes", "other"})
    assert (1 << 30) <= estimate.peak_reserved_bytes < (2 << 30)


def test_managed_memory_must_be_on_the_card_as_far_as_a_kernel_works_on_it(python, tmp_path):
    script = TRAIN + textwrap.dedent(
        """
        import ctypes
        cuda = ctypes.CDLL(None)
        for _ in range(4):
            address = ctypes.c_void_p()
            assert cuda.cudaMallocManaged(ctypes.byref(address), ctypes.c_size_t(1 << 30), 1) == 0
        train(4)
        """
    )
    _, estimate = on_h100(python, tmp_path, script)
    assert parts(estimate)["managed"] == 2 << 30
    assert any("4.00 GiB of managed memory" in line for line in estimate.assumptions)


def test_what_other_libraries_allocate_is_outside_of_pytorch(python, tmp_path):
    script = TRAIN + textwrap.dedent(
        """
        import ctypes
        torch.cuda.init()
        address = ctypes.c_void_p()
        assert ctypes.CDLL(None).cudaMalloc(ctypes.byref(address), ctypes.c_size_t(1 << 30)) == 0
        train(4)
        """
    )
    result, estimate = on_h100(python, tmp_path, script)
    assert parts(estimate)["other"] == 1 << 30
    assert estimate.outside_bytes == 1 << 30
    need = estimate.device_peak_bytes
    fitting = xmem.estimate(result.path, gpu="h100", capacity=need)
    assert (fitting.fits, fitting.verdict.margin_bytes) == (True, 0)
    assert xmem.estimate(result.path, gpu="h100", capacity=need - (2 << 20)).fits is False


@pytest.mark.parametrize("gradients", [False, True])
def test_a_script_that_does_not_train_is_recorded_to_its_end(python, tmp_path, gradients):
    script = f"""
        import torch
        model = torch.nn.Linear(1024, 1024).cuda()
        with torch.set_grad_enabled({gradients}):
            for power in range(5):
                out = model(torch.randn(256 << power, 1024, device="cuda"))
    """
    result, estimate = on_h100(python, tmp_path, script)
    assert (result.iterations, result.metadata["iteration_kind"]) == (5, "call")
    assert estimate.measured is not None
    assert estimate.measured.replay_agrees
    assert estimate.peak_allocated_bytes > 3 * (256 << 4) * 4096
    assert estimate.peak.iteration == 4


def test_calls_end_a_recording_of_inference(python, tmp_path):
    script = """
        import torch
        model = torch.nn.Linear(256, 256).cuda()
        while True:
            model(torch.randn(8, 256, device="cuda"))
    """
    result, _ = on_h100(python, tmp_path, script, extent=Extent(calls=7))
    assert result.iterations == 7


def test_backward_passes_are_iterations_where_no_optimizer_steps(python, tmp_path):
    script = """
        import torch
        model = torch.nn.Linear(1024, 1024).cuda()
        while True:
            model(torch.randn(8, 1024, device="cuda")).sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(0.1 * parameter.grad)  # makes a tensor as large as the weights
                    parameter.grad = None
    """
    result, estimate = on_h100(python, tmp_path, script)
    assert result.metadata["iteration_kind"] == "backward"
    assert result.iterations == 4  # the last one without its update
    assert estimate.measured is not None
    assert estimate.measured.replay_agrees


GROWING = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for rows in [64, 64, 64, 128, 256, 512, 512, 512, 512, 512]:
    model(torch.randn(rows << 4, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.nightly
def test_recording_until_the_memory_is_steady(python, tmp_path):
    fixed, few = on_h100(python, tmp_path, GROWING)
    steady, more = on_h100(python, tmp_path, GROWING, extent=Extent(3, until_steady=True))
    assert fixed.iterations == 3
    # Two more than the one that brought the last new peak; before it there are never two alike.
    assert steady.iterations == 8
    assert more.peak_allocated_bytes > few.peak_allocated_bytes


@pytest.mark.nightly
def test_batches_that_differ_open_the_interval_upwards(python, tmp_path):
    _, alike = on_h100(python, tmp_path, GROWING)
    _, differing = on_h100(python, tmp_path, GROWING, extent=Extent(8))
    _, whole = on_h100(python, tmp_path, GROWING, extent=Extent(until_end=True))

    def above(estimate: xmem.Estimate) -> int:
        assert estimate.interval is not None
        return estimate.interval.high_bytes - estimate.device_peak_bytes

    assert above(differing) > above(alike) + (20 << 20)
    assert above(differing) > above(whole) + (20 << 20)  # nothing comes after the end
    assert any("batches differ" in line for line in differing.assumptions)
    assert not any("batches differ" in line for line in (*alike.assumptions, *whole.assumptions))


EVALUATION = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def evaluate(rows):
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(rows, 256, device="cuda"))
evaluate(64)
for epoch in range(1000):
    for step in range(10):
        model(torch.randn(64, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    evaluate(1 << 20)
"""


def test_recording_through_the_first_evaluation(python, tmp_path):
    result, estimate = on_h100(python, tmp_path, EVALUATION, extent=Extent(with_eval=True))
    assert result.iterations == 11
    assert estimate.peak_allocated_bytes >= 2 << 30
    assert not any("evaluation" in line for line in estimate.assumptions)
    short, _ = on_h100(python, tmp_path, EVALUATION)
    assert any("evaluation" in line for line in xmem.estimate(short.path).assumptions)


LENGTHS = """
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
items = [torch.ones(16 + i, 256) for i in range(512)]
loader = DataLoader(items, batch_size=4, collate_fn=lambda rows: pad_sequence(rows, batch_first=True))
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in loader:
    print(list(batch.shape), flush=True)
    model(batch.cuda()).sum().backward()
    optimizer.step()
"""


@pytest.mark.nightly
def test_longer_items_than_those_of_the_batches_are_told_or_taken(python, tmp_path):
    _, first = on_h100(python, tmp_path, LENGTHS)
    assert any(
        "length 527, but the longest in the recorded batches has 27" in line for line in first.assumptions
    )
    _, longest = on_h100(python, tmp_path, LENGTHS, extent=Extent(longest_batch=True))
    assert longest.peak_allocated_bytes > first.peak_allocated_bytes + 4 * 500 * 256 * 4
    assert any("longest items" in line for line in longest.assumptions)
    assert not any("in the recorded batches" in line for line in longest.assumptions)


@pytest.mark.nightly
def test_a_script_whose_time_is_up_is_estimated_by_what_it_did(python, tmp_path):
    script = """
        import time, torch
        model = torch.nn.Linear(256, 256).cuda()
        while True:
            model(torch.randn(8, 256, device="cuda"))
            time.sleep(0.01)
    """
    result, estimate = on_h100(python, tmp_path, script, timeout_s=20)
    assert result.iterations > 10
    assert any("the time limit was reached" in line for line in estimate.assumptions)


def test_a_fake_process_group_waits_for_nobody(python, tmp_path):
    script = """
        import torch, torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore
        dist.init_process_group("fake", rank=0, world_size=64, store=FakeStore())
        model = torch.nn.Linear(256, 256).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            model(torch.randn(8, 256, device="cuda")).sum().backward()
            dist.all_reduce(model.weight.grad)
            optimizer.step()
    """
    result, estimate = on_h100(python, tmp_path, script, timeout_s=100)
    assert result.iterations == 3
    assert not any("did not report" in line for line in estimate.assumptions)


def test_a_replay_that_misses_memory_is_made_up_for_and_reported(python, tmp_path):
    result, estimate = on_h100(python, tmp_path, TRAIN + "train(4)\n")
    trace = xmem.read_trace(result.path)
    row = trace.metadata["phantom"]["ranks"][0]["devices"][0]
    row["peak_reserved_bytes"] *= 2
    wrong = xmem.estimate(trace, gpu="h100")
    assert wrong.peak_reserved_bytes == 2 * estimate.peak_reserved_bytes
    assert wrong.device_peak_bytes == estimate.device_peak_bytes + estimate.peak_reserved_bytes
    assert parts(wrong)["not_replayed"] == estimate.peak_reserved_bytes
    assert wrong.interval is not None
    assert wrong.interval.low_bytes <= estimate.device_peak_bytes
    assert wrong.interval.high_bytes >= wrong.device_peak_bytes
    (problem,) = [each for each in wrong.diagnostics if each.kind == "replay_disagrees"]
    assert problem.severity == "error"
    assert "report it" in problem.message
    # Searches and sweeps ask by another way, and get the same.
    changed = xmem.estimate(trace, gpu="h100", what_if=["optimizer=adamw"])
    assert changed.device_peak_bytes >= 2 * changed.simulation.bounds.perfect_reuse_bytes
    assert (
        dataclasses.asdict(wrong.verdict)["margin_bytes"]
        == wrong.verdict.capacity_bytes - wrong.device_peak_bytes
    )

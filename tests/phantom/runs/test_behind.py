"""A phantom GPU that is behind the script: what is freed late, and what the estimate says of it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

import xmem
from nightly import most_nightly
from xmem.capture import CaptureResult, Extent, PhantomMachine, capture
from xmem.devices.gpus import find_device

from ..conftest import NEWEST_FIRST, PYTHONS, needs_torch

MIB = 1 << 20

pytestmark = pytest.mark.skipif(not PYTHONS, reason="no CUDA build of torch here")


@pytest.fixture(params=NEWEST_FIRST)
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(python: str, folder: Path, script: str, *, behind: bool, to_its_end: bool = False) -> CaptureResult:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    machine = PhantomMachine(device=find_device("h100"), behind=behind)
    result = capture(
        [python, str(path)],
        folder / "trace.json",
        mode="phantom",
        machine=machine,
        timeout_s=240,
        extent=Extent(iterations=1000) if to_its_end else None,
    )
    assert not to_its_end or result.metadata["script_ended"]
    return result


def reserved_mib(result: CaptureResult) -> float:
    return result.metadata["phantom"]["ranks"][0]["devices"][0]["peak_reserved_bytes"] / MIB


# Eight blocks that a second stream uses; what waits for that stream in between is the argument.
SIDE_STREAM = """
    import torch
    side = torch.cuda.Stream()
    for step in range(8):
        x = torch.empty(16 << 20, dtype=torch.uint8, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)
        x.record_stream(side)
        del x
        {between}
"""


@pytest.mark.parametrize(
    ("between", "blocks"),
    most_nightly(
        [
            ("pass", 8),
            ("torch.cuda.current_stream().wait_stream(side); torch.cuda.current_stream().synchronize()", 1),
            ("torch.cuda.current_stream().synchronize()", 8),  # which does not wait for the other
            ("side.synchronize()", 1),
            ("torch.cuda.synchronize()", 1),
            ("event = torch.cuda.Event(); event.record(side); event.synchronize()", 1),
            ("torch.zeros(1, device='cuda').item()", 8),
            ("with torch.cuda.stream(side): torch.zeros(1, device='cuda').item()", 1),
        ],
        at_once=2,
    ),
)
def test_blocks_of_other_streams_are_freed_once_the_script_waits(python, tmp_path, between, blocks):
    script = SIDE_STREAM.format(between=between)
    if blocks == 8:
        assert reserved_mib(run(python, tmp_path, script, behind=False)) < 3 * 16
    assert blocks * 16 <= reserved_mib(run(python, tmp_path, script, behind=True)) < blocks * 16 + 16


def test_a_script_that_asks_until_the_gpu_is_done_goes_on(python, tmp_path):
    script = """
        import time, torch
        x = torch.ones(1024, device="cuda")
        event = torch.cuda.Event()
        event.record()
        assert not event.query() and not torch.cuda.current_stream().query()
        while not event.query():
            pass
        event.record()
        while not event.query():
            time.sleep(0.1)
        assert torch.cuda.current_stream().query()
    """
    run(python, tmp_path, script, behind=True)


def test_copies_of_pageable_memory_wait_for_their_stream(python, tmp_path):
    script = """
        import torch
        on_gpu = torch.ones(1 << 20, dtype=torch.uint8, device="cuda")
        def waits(target, source):
            on_gpu.add_(1)
            before = torch.cuda.Event()
            before.record()
            target.copy_(source, non_blocking=True)
            return before.query()
        pageable = torch.ones(1 << 20, dtype=torch.uint8)
        pinned = pageable.pin_memory()
        assert waits(on_gpu, pageable)
        assert waits(pageable, on_gpu)
        assert not waits(on_gpu[:1024], pageable[:1024])  # travels with the command
        assert waits(pageable[:1024], on_gpu[:1024])
        assert not waits(on_gpu, pinned)
        assert not waits(pinned, on_gpu)
        assert not waits(on_gpu[:1024], on_gpu[1024:2048])
    """
    run(python, tmp_path, script, behind=True)


def test_launches_do_not_pile_up_beyond_what_a_stream_takes(python, tmp_path):
    script = SIDE_STREAM.format(
        between="""with torch.cuda.stream(side):
            for _ in range(600): y.add_(1)"""
    ).replace("side = torch.cuda.Stream()", "side = torch.cuda.Stream(); y = torch.ones(1, device='cuda')")
    assert reserved_mib(run(python, tmp_path, script, behind=True)) < 4 * 16


def test_work_in_a_graph_is_not_waited_for_before_it_runs(python, tmp_path):
    script = """
        import torch
        x = torch.ones(1024, device="cuda")
        side = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = x + 1
            torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        event = torch.cuda.Event()
        graph.replay()
        event.record()
        assert not event.query()
        torch.cuda.synchronize()
        assert event.query()
    """
    run(python, tmp_path, script, behind=True)


# The next allocation follows the free at once, so the history does not tell that it waited.
PREFETCHING = """
    import torch
    copies = torch.cuda.Stream()
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        with torch.cuda.stream(copies):
            x = torch.randn(4096, 1024).pin_memory().to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(copies)
        x.record_stream(torch.cuda.current_stream())
        model(x).sum().backward()
        optimizer.step()
        del x
"""


def test_the_estimate_knows_a_loader_on_a_stream_of_its_own(python, tmp_path):
    estimate = xmem.estimate(run(python, tmp_path, PREFETCHING, behind=False).path, gpu="h100")
    (said,) = [text for text in estimate.assumptions if "record_stream" in text]
    assert "run with --behind" in said


DDP = """
    import os, sys, torch
    import torch.distributed as dist
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": CHOSEN}
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    layers = [torch.nn.Linear(1024, 1024) for _ in range(16)]  # of 4 MiB each
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).cuda())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        model(torch.randn(4096, 1024, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""


@pytest.mark.nightly
def test_the_first_buckets_of_ddp_outlive_a_short_second_iteration(python, tmp_path, unused_port):
    needs_torch(python, (2, 7), "frees the buckets at once")
    script = DDP.replace("CHOSEN", repr(unused_port))
    prompt, late = (
        xmem.estimate(run(python, tmp_path, script, behind=behind).path, gpu="h100")
        for behind in (False, True)
    )
    assert 60 * MIB < late.peak_allocated_bytes - prompt.peak_allocated_bytes < 70 * MIB
    (said,) = [text for text in prompt.assumptions if "DDP's first buckets of 64" in text]
    assert "--behind" in said
    assert not any("DDP's first buckets" in text for text in late.assumptions)


def test_the_estimate_says_when_a_gpu_that_is_behind_needs_more(python, tmp_path):
    prompt, late = (
        xmem.estimate(
            run(python, tmp_path, SIDE_STREAM.format(between="pass"), behind=behind).path, gpu="h100"
        )
        for behind in (False, True)
    )
    assert any("run with --behind" in text for text in prompt.assumptions)
    assert any("as far behind the script as a GPU can be" in text for text in late.assumptions)
    assert late.peak_reserved_bytes > prompt.peak_reserved_bytes + 64 * MIB
    assert prompt.measured is not None
    assert prompt.measured.replay_agrees
    assert late.measured is not None
    assert late.measured.replay_agrees
    waits = SIDE_STREAM.replace("x.record_stream(side)", "torch.cuda.current_stream().wait_stream(side)")
    plain = xmem.estimate(run(python, tmp_path, waits.format(between="pass"), behind=False).path, gpu="h100")
    assert not any("--behind" in text for text in plain.assumptions)


# Gradients of 64 MiB that a collective averages in STEPS steps; how the script waits for it is WAIT.
AVERAGING = """
    import os, torch
    import torch.distributed as dist
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": CHOSEN}
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    model = torch.nn.Linear(4096, 4096, bias=False).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    held = []
    for step in range(STEPS):
        model(torch.randn(64, 4096, device="cuda")).sum().backward()
        work = dist.all_reduce(model.weight.grad, async_op=True)
        work.WAIT
        held.append(torch.cuda.memory_allocated() // (64 << 20) - 2)  # beside weights and cuBLAS's workspaces
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""


def averaging(port: str, wait: str, *, steps: int) -> str:
    return AVERAGING.replace("CHOSEN", repr(port)).replace("WAIT", wait).replace("STEPS", str(steps))


@pytest.mark.parametrize(
    ("wait", "is_said"), most_nightly([("get_future().wait()", True), ("wait()", False)])
)
def test_the_estimate_knows_collectives_that_are_not_waited_for(python, tmp_path, unused_port, wait, is_said):
    needs_torch(python, (2, 8), "keeps no tensors of collectives")
    script = averaging(unused_port, wait, steps=5)
    estimate = xmem.estimate(run(python, tmp_path, script, behind=False).path, gpu="h100")
    said = [text for text in estimate.assumptions if "the script does not wait for collectives" in text]
    assert bool(said) == is_said
    assert all("64.00 MiB in an iteration" in text and "run with --behind" in text for text in said)


@pytest.mark.parametrize(
    ("wait", "behind", "held"),
    most_nightly(
        [
            ("get_future().wait()", False, 2),
            ("wait()", False, 1),
            ("get_future().wait()", True, 5),  # the GPU is never done here
            ("wait()", True, 1),
        ]
    ),
)
def test_gradients_stay_until_the_watchdog_has_seen_their_collective(
    python, tmp_path, unused_port, wait, behind, held
):
    needs_torch(python, (2, 8), "keeps no tensors of collectives")
    script = averaging(unused_port, wait, steps=5)
    script += f"    assert max(held) == {held}, held\n"
    run(python, tmp_path, script, behind=behind, to_its_end=True)


def test_the_watchdog_sees_collectives_now_sooner_and_now_later(python, tmp_path, unused_port):
    needs_torch(python, (2, 8), "keeps no tensors of collectives")
    script = averaging(unused_port, "get_future().wait()", steps=16)
    script += "    assert held[:3] == [1, 2, 2] and set(held[3:]) == {1, 2}, held\n"
    run(python, tmp_path, script, behind=False, to_its_end=True)

"""Whatever a script does with threads, graphs, pools and caches: the replay equals PyTorch's own allocator."""

from __future__ import annotations

import numpy as np
import pytest

import xmem
from nightly import most_nightly
from xmem.simulation.replay import RequestKind
from xmem.trace.trace import read_trace

from ..conftest import NEWEST_FIRST, PYTHONS, run

pytestmark = pytest.mark.skipif(not PYTHONS, reason="no CUDA build of torch here")

THREADS = """
    import _thread, queue, threading, torch
    from concurrent.futures import ThreadPoolExecutor
    jobs, done, kept = queue.Queue(), queue.Queue(), []
    def serve():
        while (job := jobs.get()) is not None:
            done.put(job())
    def serve_beside():
        threading.Event().wait(0.01)
        serve()
    threading.Thread(target=serve, daemon=True).start()  # before CUDA is there
    _thread.start_new_thread(serve_beside, ())  # which Python's hooks do not see
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
    def load(i):
        return torch.empty((i + 1) << 20, dtype=torch.uint8, device="cuda")
    with ThreadPoolExecutor(4) as pool:
        kept += list(pool.map(load, range(16)))
    for _ in range(6):
        jobs.put(lambda: kept.append(torch.empty(7 << 20, dtype=torch.uint8, device="cuda")))
    [done.get() for _ in range(6)]
    def use_a_stream():
        stream = torch.cuda.Stream()
        for _ in range(20):
            with torch.cuda.stream(stream):
                x = torch.empty(3 << 20, device="cuda")
            x.record_stream(torch.cuda.default_stream())
            del x
    def train():
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(5):
            model(torch.randn(64, 512, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    threads = [threading.Thread(target=target) for target in (use_a_stream, use_a_stream, train)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
"""
BENCHMARK = """
    import torch
    torch.backends.cudnn.benchmark = True
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 7, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(64, 128, 3), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(128, 10),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for i in range(4):
        model(torch.randn(16 + i, 3, 128, 128, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
GRAPHS = """
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    sample = torch.zeros(256, 512, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    pool = torch.cuda.MemPool()
    for i in range(4):
        with torch.cuda.use_mem_pool(pool):
            batch = torch.randn(256, 512, device="cuda")
            room = torch.empty((5 + i) << 20, device="cuda")
        graphed(batch.requires_grad_()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            scaled = [room * n for n in range(3)]
        graph.replay()
        del graph, scaled, room
        torch.cuda.empty_cache()
"""
DATA_PARALLEL = """
    import torch
    layers = [torch.nn.Linear(512, 512) for _ in range(4)]
    model = torch.nn.DataParallel(torch.nn.Sequential(*layers).cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        model(torch.randn(640, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


# Tensors that grow leave segments behind, unless segments can grow, too.
CHANGE = 'torch.cuda.memory._set_allocator_settings("expandable_segments:True")'
EXPANDS = """
import torch
{first}
weight = torch.nn.Parameter(torch.zeros(256, 256, device="cuda"))
{later}
optimizer = torch.optim.SGD([weight], 0.1)
for rows in (1 << 14, 3 << 13, 1 << 15):
    (torch.zeros(rows, 256, device="cuda") @ weight).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(params=NEWEST_FIRST)
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def require_equal(estimate: xmem.Estimate) -> None:
    measured = estimate.measured
    assert measured is not None
    assert estimate.peak_reserved_bytes == measured.peak_reserved_bytes > 0
    assert estimate.peak_allocated_bytes == measured.peak_allocated_bytes > 0
    assert measured.replay_agrees


def test_memory_of_every_thread_counts_and_has_its_line(python, tmp_path):
    result, estimate = run(python, tmp_path, THREADS)
    require_equal(estimate)
    assert estimate.peak_allocated_bytes > (136 + 6 * 7) << 20
    of_pool = [bytes_ for line, bytes_ in estimate.breakdown.source_line.items() if line.endswith(":15")]
    assert sum(of_pool) >= 136 << 20
    memory = read_trace(result.path).memory
    assert len(np.unique(memory.thread[memory.device_type == 1])) > 5


@pytest.mark.parametrize("settings", most_nightly(["expandable_segments:True", "", "max_split_size_mb:32"]))
@pytest.mark.nightly
def test_caches_that_cpp_empties_are_emptied(python, tmp_path, monkeypatch, settings):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", settings)
    result, estimate = run(python, tmp_path, BENCHMARK)
    require_equal(estimate)
    requests = xmem.analyze(result.path).stages.requests
    assert (requests.kind == RequestKind.EMPTY_CACHE).sum() > 3


def test_settings_that_the_script_gives_to_the_allocator_are_replayed(python, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "garbage_collection_threshold:0.9")
    _, estimate = run(python, tmp_path, EXPANDS.format(first=CHANGE, later=""))
    require_equal(estimate)
    assert not any("settings of the allocator" in text for text in estimate.assumptions)
    _, changed = run(python, tmp_path, EXPANDS.format(first="", later=CHANGE))
    assert any(
        "changes settings of the allocator while it holds memory" in text for text in changed.assumptions
    )


def test_graphs_and_pools_keep_their_memory(python, tmp_path):
    result, estimate = run(python, tmp_path, GRAPHS)
    require_equal(estimate)
    requests = xmem.analyze(result.path).stages.requests
    assert len(np.unique(requests.mempool)) > 3
    assert (requests.kind == RequestKind.BEGIN_CAPTURE).sum() >= 4


def test_each_of_two_devices_has_its_history(python, tmp_path):
    machine = xmem.capture.PhantomMachine(xmem.devices.gpus.find_device("rtx-3060"), count=2)
    result, estimate = run(python, tmp_path, DATA_PARALLEL, machine=machine)
    require_equal(estimate)
    memory = read_trace(result.path).memory
    assert set(memory.device_index[memory.device_type == 1].tolist()) == {0, 1}

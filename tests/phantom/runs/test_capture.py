"""Unmodified scripts captured on the phantom GPU, and what the estimate makes of them."""

from __future__ import annotations

import os
import shutil
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

import xmem
from nightly import most_nightly
from xmem.capture import Extent, PhantomMachine, capture
from xmem.devices.gpus import find_device
from xmem.errors import CaptureError

from ..conftest import NEWEST_FIRST, PYTHONS, Phantom, needs_torch, run, torch_version

pytestmark = pytest.mark.skipif(not PYTHONS, reason="no CUDA build of torch here")

TARGETS = Path(__file__).parents[2] / "capture" / "targets"
EXAMPLES = Path(__file__).parents[3] / "examples"
# Left out: `answers.py` and `broken.py`, which are about real mode and about failing, and scripts that do not
# train or never ask for a GPU.
TRAINING = [
    "amp_scaler.py",
    "hf_trainer.py",
    "processes/launcher.py",
    "lbfgs.py",
    "processes/threads.py",
    "custom_function.py",
    "dcgan.py",
    "encoder_workers.py",
    "gpt.py",
    "resnet.py",
    "trouble/stubborn.py",
    "to_device.py",
]


@pytest.fixture(params=NEWEST_FIRST)
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("name", most_nightly(TRAINING, at_once=5))
def test_every_target_runs_and_the_replay_equals_the_real_allocator(python, name, tmp_path, monkeypatch):
    monkeypatch.chdir(TARGETS)
    result, estimate = run(python, tmp_path, TARGETS / name)
    assert result.iterations >= 2
    assert estimate.measured is not None
    assert estimate.measured.replay_agrees
    assert estimate.peak_reserved_bytes == estimate.measured.peak_reserved_bytes > 0
    assert [policy.name for policy in estimate.policies if policy.bytes_changed > 0] == []


def test_demo_accounts_for_parameters_gradients_and_state(python, tmp_path):
    arguments = ("--layers", "2", "--width", "128", "--heads", "4", "--vocab-size", "1000", "--seq-len", "64")
    _, estimate = run(python, tmp_path, EXAMPLES / "train_gpt2.py", *arguments)
    parameters = estimate.breakdown.category["parameter"]
    assert estimate.breakdown.category_peaks["gradient"] == parameters
    assert estimate.breakdown.category["workspace"] == 2 * 8519680
    assert estimate.breakdown.category_peaks["optimizer_state"] >= 2 * parameters
    assert sum(estimate.breakdown.category.values()) == estimate.peak_allocated_bytes
    assert any(line.endswith("train_gpt2.py:86") for line in estimate.breakdown.source_line)
    assert any(path.startswith("GPT.blocks.1") for path in estimate.breakdown.module)


def test_streams_and_emptied_caches_are_replayed(python, tmp_path):
    _, estimate = run(
        python,
        tmp_path,
        """
        import torch
        model = torch.nn.Linear(1024, 1024).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        side = torch.cuda.Stream()
        for _ in range(3):
            with torch.cuda.stream(side):
                x = torch.empty(4096, 1024, device="cuda")
                y = torch.empty(3 << 20, device="cuda")
            torch.cuda.current_stream().wait_stream(side)
            x.record_stream(torch.cuda.current_stream())
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            del x, y
            torch.cuda.empty_cache()
        """,
    )
    assert estimate.measured is not None
    assert estimate.measured.replay_agrees


def test_a_recording_does_not_end_before_the_cuda_graph_that_it_warms_up_for(python, tmp_path):
    script = tmp_path / "graph.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, torch
            model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(4)]).cuda()
            optimizer = torch.optim.Adam(model.parameters(), capturable=True)
            x = torch.randn(8192, 2048, device="cuda")

            def step():
                optimizer.zero_grad(set_to_none=True)
                model(x).sum().backward()
                optimizer.step()

            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(int(sys.argv[1])):
                    step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            for _ in range(1000):
                graph.replay()
                print("replayed", flush=True)
            """
        )
    )
    whole = run(python, tmp_path, script, "3", extent=Extent(until_end=True))[1]
    for warm_ups in ("2", "11"):
        result, estimate = run(python, tmp_path, script, warm_ups)
        assert result.iterations == int(warm_ups) + 1
        assert estimate.peak_reserved_bytes == whole.peak_reserved_bytes
        assert estimate.peak_allocated_bytes == whole.peak_allocated_bytes
    # It does not wait forever, and says so.
    estimate = run(python, tmp_path, script, "40")[1]
    assert estimate.peak_reserved_bytes < whole.peak_reserved_bytes
    assert any("no graph was captured" in assumption for assumption in estimate.assumptions)


def test_a_recording_that_takes_too_much_of_the_host_goes_on_without_operators(python, tmp_path):
    result, estimate = run(
        python,
        tmp_path,
        """
        import torch
        model = torch.nn.Linear(1024, 1024).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        kept = []
        for step in range(8):
            optimizer.zero_grad()
            model(torch.randn(256 * (step + 1), 1024, device="cuda")).sum().backward()
            optimizer.step()
            kept.append(torch.empty(3 << 20, device="cuda"))
        """,
        extent=Extent(until_end=True),
        env={**os.environ, "XMEM_RECORDING_BYTES": "0"},
    )
    assert any("ended early" in line for line in estimate.assumptions)
    assert not any("does not fit" in line for line in estimate.assumptions)
    assert result.iterations == 8
    assert estimate.peak_allocated_bytes > 8 * 4 * (3 << 20)
    assert estimate.measured is not None
    assert estimate.measured.replay_agrees


def test_peaks_survive_a_reset_by_the_script(python, tmp_path):
    result, estimate = run(
        python,
        tmp_path,
        """
        import torch
        model = torch.nn.Linear(512, 512).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        large = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
        del large
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(64, 512).cuda()).sum().backward()
            optimizer.step()
        """,
    )
    assert estimate.measured is not None
    assert estimate.measured.peak_reserved_bytes >= 1 << 28
    assert estimate.measured.replay_agrees
    assert result.processes[0].devices[0].peak_bytes == estimate.measured.peak_reserved_bytes


VALUES = """
    import torch
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x = model(torch.randn(1 << 14, 64).cuda()).detach()
        mask = x[:, 0] > 0
        kept = x[mask]
        routes = torch.nn.functional.one_hot(x[:, :8].argmax(1), 8).T.contiguous()
        mine = torch.where(routes[3])[0]
        print("rows", kept.shape[0], mine.shape[0])
        optimizer.zero_grad()
        loss = model(kept).sum()
        loss.backward()
        optimizer.step()
        if loss > 1:
            print("large", loss.item())
"""


@pytest.mark.parametrize(("chosen", "rows"), most_nightly([({"train.py:8": 0.25}, 1 << 12), ({}, 1 << 14)]))
def test_values_that_decide_about_sizes(python, chosen, rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(textwrap.dedent(VALUES))
    output = tmp_path / "out"
    with output.open("w") as out:
        result = capture(
            [python, "train.py"],
            tmp_path / "trace.json",
            mode="phantom",
            machine=PhantomMachine(values=chosen),
            stdout=out.fileno(),
        )
    assert f"rows {rows} {1 << 11}" in output.read_text()
    estimate = xmem.estimate(result.path)
    assert any(
        "train.py:8 selects elements by GPU values" in assumption for assumption in estimate.assumptions
    )
    assert any("train.py:16 branches on a GPU value" in assumption for assumption in estimate.assumptions)


@pytest.mark.parametrize(
    "unique", most_nightly(["torch.unique", "torch.Tensor.unique", "torch.Tensor.unique_consecutive"])
)
def test_unique_elements_and_their_counts_are_of_one_size(python, unique, tmp_path):
    script = f"""
        import torch
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        labels = model(torch.randn(8, 64, device="cuda"))[0, :4].detach()
        for _ in range(3):
            found, counts = {unique}(labels, return_counts=True)
            assert found.shape == counts.shape == {unique}(labels).shape == (4,), (found, counts)
            optimizer.zero_grad()
            model(torch.randn(8, 64).cuda()).sum().backward()
            optimizer.step()
    """
    _, estimate = run(python, tmp_path, script)
    assert any(
        "train.py:7 selects elements by GPU values" in assumption for assumption in estimate.assumptions
    )


@pytest.mark.parametrize(
    ("indices", "least", "most"),
    [
        ("torch.randint(1000, (4096,), device='cuda')", 900, 1000),
        ("(model(x)[0] * 1e9).long()", 4096, 4096),  # unknown: all differ
    ],
)
def test_elements_of_sparse_tensors_are_added_up_where_they_meet(python, indices, least, most, tmp_path):
    script = f"""
        import torch
        model = torch.nn.Linear(64, 4096).cuda()
        table = torch.nn.Embedding(4096, 64, sparse=True).cuda()
        optimizer = torch.optim.SparseAdam(table.parameters())
        x = torch.randn(8, 64, device="cuda")
        for _ in range(3):
            optimizer.zero_grad()
            table({indices}).sum().backward()
            assert {least} <= table.weight.grad.coalesce()._nnz() <= {most}, table.weight.grad.coalesce()
            optimizer.step()
    """
    _, estimate = run(python, tmp_path, script)
    unknown = any("selects elements by GPU values" in assumption for assumption in estimate.assumptions)
    assert unknown == (least == 4096)


@pytest.mark.nightly
def test_weights_are_not_initialized_unless_asked_for(python, tmp_path):
    script = """
        import torch
        torch.manual_seed(0)
        weight = torch.nn.Linear(8192, 4096).weight  # large enough to be fresh memory
        print("norm", float(weight.double().abs().sum()) > 1000)
        # A distribution of a library's own, and data that only looks like one.
        own = torch.full((1 << 20,), 0.5).uniform_(0.5, 0.6).erfinv_()
        print("own", bool((own != 0.5).any()), "data", round(float(torch.full((1 << 20,), 0.5).erfinv_()[0]), 2))
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(8, 8).cuda()).sum().backward()
            optimizer.step()
    """
    printed = []
    for keep in (False, True):
        output = tmp_path / f"out{keep}"
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(script))
        with output.open("w") as out:
            machine = PhantomMachine(keep_init=keep)
            command = [python, str(path)]
            capture(command, tmp_path / "trace.json", mode="phantom", machine=machine, stdout=out.fileno())
        printed.append(output.read_text().strip())
    assert printed == [f"norm {keep}\nown {keep} data 0.48" for keep in (False, True)]


def test_a_model_larger_than_the_machine(python, tmp_path):
    """24 GB of weights on the host and on the device, and as much for gradients: nothing of it is touched."""
    result, estimate = run(
        python,
        tmp_path,
        """
        import resource, torch
        model = torch.nn.Sequential(*(torch.nn.Linear(16384, 16384, bias=False) for _ in range(24))).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 16384).cuda()).sum().backward()
            optimizer.step()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20, "pages were touched"
        """,
        machine=PhantomMachine(device=find_device("h100")),
        extent=Extent(iterations=4),  # to its end
    )
    weights = 24 * 16384 * 16384 * 4
    assert estimate.peak_allocated_bytes >= 2 * weights
    assert result.iterations == 3
    assert result.metadata["script_ended"]


def test_capacity_is_a_matter_of_the_verdict_unless_strict(python, tmp_path):
    script = """
        import torch
        model = torch.nn.Linear(8192, 8192).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(64, 8192).cuda()).sum().backward()
            optimizer.step()
    """
    small = replace(find_device("rtx-3060"), total_memory_bytes=1 << 30)
    result, _ = run(python, tmp_path, script, machine=PhantomMachine(device=small))
    assert xmem.estimate(result.path, gpu="rtx-3060", capacity="1GiB").fits is False
    with pytest.raises(CaptureError, match="OutOfMemoryError"):
        run(python, tmp_path, script, machine=PhantomMachine(device=small, strict_capacity=True))


def test_a_crash_tells_its_last_cuda_call(python, tmp_path):
    script = """
        import os, torch
        torch.ones(4, device="cuda")
        torch.cuda.synchronize()
        os.abort()
    """
    with pytest.raises(
        CaptureError, match=r"signal 6 \(SIGABRT\); its last CUDA call was cudaDeviceSynchronize"
    ):
        run(python, tmp_path, script)


def test_a_failure_names_the_value_that_it_may_come_from(python, tmp_path):
    script = """
        import torch
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        def longest(lengths):
            return lengths.max().item()
        def step():
            length = longest(model(torch.ones(4, 4, device="cuda")).argmax(1))
            rows = torch.zeros(length, 4, device="cuda")
            model(rows.view(-1, 2, 4)[0]).sum().backward()
            optimizer.step()
        print(float(model.weight.sum()))
        step()
    """
    with pytest.raises(CaptureError) as caught:
        run(python, tmp_path, script)
    message = caught.value.message
    assert "IndexError" in message
    assert "a value read at train.py:6 (`item`) was 0" in message.replace(f"{tmp_path}/", "")
    assert "train.py:6=NUMBER" in message
    assert "last CUDA call" not in message
    assert "itself failed" not in message


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("cc") is None, reason="Triton needs a C compiler")
def test_tuning_compiles_no_candidates(python, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    script = """
        import sys, torch
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)).cuda()
        step = torch.compile(model, mode=sys.argv[1])
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            step(torch.ones(32, 64, device="cuda")).sum().backward()
            optimizer.step()
    """
    loaded = {}
    for mode in ("default", "max-autotune-no-cudagraphs"):
        result, estimate = run(python, tmp_path, script, mode, iterations=2)
        calls = result.processes[0].calls
        loaded[mode] = sum(count for name, count in calls.items() if name.startswith("cuModuleLoad"))
        assert any("max_autotune" in text for text in estimate.assumptions) == (mode != "default")
    assert loaded["max-autotune-no-cudagraphs"] <= loaded["default"]
    assert loaded["default"] > 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="Triton needs a C compiler")
def test_of_a_tuned_triton_kernel_one_configuration_is_compiled(python, tmp_path):
    script = """
        import torch, triton
        import triton.language as tl
        tried = set()
        configs = [
            triton.Config({"B": 1 << n}, pre_hook=lambda _arguments, n=n: tried.add(n)) for n in range(5, 11)
        ]

        @triton.autotune(configs=configs, key=["n"])
        @triton.jit
        def copy(x, y, n, B: tl.constexpr):
            i = tl.program_id(0) * B + tl.arange(0, B)
            tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)

        x = torch.ones(4096, device="cuda")
        copy[lambda meta: (triton.cdiv(4096, meta["B"]),)](x, torch.empty_like(x), 4096)
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        assert tried == {5}, tried
        optimizer.step()
    """
    _, estimate = run(python, tmp_path, script, iterations=1)
    assert any("triton.autotune" in text for text in estimate.assumptions)


def test_every_optimizer(python, tmp_path):
    """Each optimizer of torch.optim trains; the replay equals the allocator through all of their temporaries."""
    _, estimate = run(
        python,
        tmp_path,
        """
        import torch
        names = [n for n in dir(torch.optim) if isinstance(getattr(torch.optim, n), type) and n != "Optimizer"]
        for name in names:
            model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))).cuda()
            if name == "SparseAdam":
                model = torch.nn.Embedding(64, 64, sparse=True).cuda()
            weights = [p for p in model.parameters() if name != "Muon" or p.ndim == 2]
            optimizer = getattr(torch.optim, name)(weights, lr=0.01)
            def closure():
                optimizer.zero_grad()
                x = torch.zeros(32, dtype=torch.long) if name == "SparseAdam" else torch.randn(32, 256)
                loss = model(x.cuda()).sum()
                loss.backward()
                return loss
            closure()
            optimizer.step(closure) if name == "LBFGS" else optimizer.step()
        """,
        iterations=100,
    )
    assert estimate.measured is not None
    assert estimate.measured.replay_agrees


@pytest.mark.nightly
def test_a_job_of_two_processes(python, tmp_path):
    result, estimate = run(
        python, tmp_path, TARGETS / "processes/distributed.py", "2", machine=PhantomMachine(count=2)
    )
    assert estimate.measured is not None
    assert [peak.rank for peak in estimate.measured.ranks] == [0, 1]
    assert len({peak.peak_reserved_bytes for peak in estimate.measured.ranks}) == 1
    assert result.iterations == 3


def test_the_command_line_takes_phantom_mode_by_itself(python, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from xmem.cli.main import app

    monkeypatch.chdir(TARGETS)
    snapshot = tmp_path / "snapshot.pickle"
    options = [
        "run",
        "--python",
        python,
        "--gpu",
        "rtx-4090",
        "--snapshot",
        str(snapshot),
        "--json",
        "--no-gpu",
    ]
    done = CliRunner().invoke(app, [*options, "--", "gpt.py"], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    assert "a phantom RTX 4090" in done.stderr
    assert '"replay_agrees": true' in done.stdout
    replayed = CliRunner().invoke(
        app, ["replay", str(snapshot), "--torch", ".".join(map(str, release(python)))]
    )
    assert replayed.exit_code == 0, replayed.stdout


def release(python: str) -> tuple[int, int]:

    return torch_version(Phantom(python, Path()))


COMPILED = """
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            layers = [torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()) for _ in range(4)]
            self.layers = torch.nn.Sequential(*layers)

        def forward(self, x):
            return self.layers(x).square().mean()

    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    compiled = torch.compile(model)
    for _ in range(4):
        optimizer.zero_grad()
        compiled(torch.randn(256, 512).cuda()).backward()
        optimizer.step()
    print(torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated())
"""


@pytest.mark.nightly
def test_a_compiled_model_is_not_changed_by_being_watched(python, tmp_path):
    bare = Phantom(python, tmp_path).run(COMPILED)
    assert bare.returncode == 0, bare.stderr[-2000:]
    reserved, allocated = map(int, bare.stdout.split())
    _, estimate = run(python, tmp_path, COMPILED)
    assert estimate.measured is not None
    assert estimate.measured.replay_agrees
    assert (estimate.measured.peak_reserved_bytes, estimate.measured.peak_allocated_bytes) == (
        reserved,
        allocated,
    )
    assert not any("inductor" in line for line in estimate.breakdown.source_line)


@pytest.mark.nightly
def test_a_model_compiled_ahead_of_its_first_call(python, tmp_path):
    """As vLLM compiles: tracing goes on outside of the compiled function's call."""
    script = """
        import torch
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs = torch.randn(8, 64).cuda()
        if hasattr(torch._dynamo.config, "enable_aot_compile"):
            with torch._dynamo.config.patch(enable_aot_compile=True):
                compiled = torch.compile(lambda x: x.sin() * 2, fullgraph=True).aot_compile(((inputs,), {}))
            inputs = compiled(inputs)
        for _ in range(3):
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()
    """
    _, estimate = run(python, tmp_path, script)
    assert estimate.measured is not None
    assert estimate.measured.replay_agrees


@pytest.mark.nightly  # test_distributed.py has ranks that shard with every change
def test_a_sharded_job_of_two_ranks(python, tmp_path):
    """FSDP2: each rank holds half of the parameters, gradients and optimizer state."""
    needs_torch(python, (2, 6), "FSDP2 is elsewhere")
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, torch
            import torch.distributed as dist
            from torch.distributed.fsdp import fully_shard
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            dist.init_process_group("nccl")
            with torch.device("meta"):
                layers = [torch.nn.Linear(1024, 1024, bias=False) for _ in range(4)]
                model = torch.nn.Sequential(*layers)
            for layer in model:
                fully_shard(layer)
            fully_shard(model)
            model.to_empty(device="cuda")
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(32, 1024).cuda()).sum().backward()
                optimizer.step()
            """
        )
    )
    with Path(os.devnull).open("w") as quiet:
        result = capture(
            [python, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)],
            tmp_path / "trace.json",
            mode="phantom",
            machine=PhantomMachine(count=2),
            timeout_s=200,
            stdout=quiet.fileno(),
        )
    estimate = xmem.estimate(result.path)
    assert estimate.measured is not None
    assert estimate.measured.replay_agrees
    assert [peak.rank for peak in estimate.measured.ranks] == [0, 1]
    half = 4 * 1024 * 1024 * 4 // 2
    layer = 4 * 1024 * 1024  # gathered for a while, which counts as parameters too where it is known
    assert estimate.breakdown.category_peaks["parameter"] in (half, half + layer, half + 2 * layer)
    assert estimate.breakdown.category_peaks["optimizer_state"] >= 2 * half


CATCHES = """
    import sys, torch
    model = torch.nn.Linear(8192, 8192).cuda()
    optimizer = torch.optim.SGD(model.parameters())

    def train(batch):
        optimizer.zero_grad()
        model(torch.randn(batch, 8192, device="cuda")).sum().backward()
        optimizer.step()

    train(64)
    for batch in map(int, sys.argv[1:]):
        try:
            train(batch)
        except torch.OutOfMemoryError as error:
            print(error)
"""


def test_a_script_that_catches_the_error_and_goes_on_is_answered_with_a_note(python, tmp_path):
    small = PhantomMachine(
        device=replace(find_device("rtx-3060"), total_memory_bytes=1 << 30), strict_capacity=True
    )
    _, estimate = run(python, tmp_path, CATCHES, "65536", "128", machine=small)
    (note,) = [text for text in estimate.assumptions if "failed because the GPU was full" in text]
    assert "a request for memory failed" in note
    assert "2,048.0 MiB, at " in note
    assert "train.py:8)" in note
    _, estimate = run(python, tmp_path, CATCHES, "128", machine=small)
    assert not any("the GPU was full" in text for text in estimate.assumptions)


def test_a_script_that_catches_the_error_and_ends_is_not_called_fitting(python, tmp_path):
    small = PhantomMachine(
        device=replace(find_device("rtx-3060"), total_memory_bytes=1 << 30), strict_capacity=True
    )
    with pytest.raises(CaptureError, match=r"ran out of memory .*2,048\.0 MiB, at .*did no more training"):
        run(python, tmp_path, CATCHES, "128", "65536", machine=small)

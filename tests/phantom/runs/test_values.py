"""Values of the GPU's memory: what the host knows is right, and what is not known follows one rule."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest

import xmem
from nightly import most_nightly
from xmem.capture import Extent, PhantomMachine, capture
from xmem.errors import CaptureError

from ..conftest import NEWEST_FIRST, PYTHONS, needs_torch

pytestmark = pytest.mark.skipif(not PYTHONS, reason="no CUDA build of torch here")

PROGRAMS = Path(__file__).parents[1] / "value_programs.py"
HERE = Path(__file__).parents[2] / "capture" / "targets"

TRAIN = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(rows=8, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(rows, 64, device="cuda")).sum().backward()
        optimizer.step()
"""


@pytest.fixture(params=NEWEST_FIRST)
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


both_modes = pytest.mark.parametrize("mode", ["phantom", "fake"])


@pytest.fixture(params=most_nightly(["phantom", "fake"]))
def mode(request: pytest.FixtureRequest) -> str:
    """Where nothing is computed: on the phantom GPU, or on the CPU."""
    return str(request.param)


def printed(
    python: str,
    folder: Path,
    script: str | Path,
    *arguments: str,
    gpus: int = 1,
    mode: str = "phantom",
    **options,
):
    """What a captured script prints, line by line, and its estimate."""
    if isinstance(script, str):
        path = folder / "train.py"
        path.write_text(textwrap.dedent(script))
    else:
        path = script
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={gpus}"] if gpus > 1 else []
    output = folder / "out"
    with output.open("w") as out:
        result = capture(
            [python, *launcher, str(path), *arguments],
            folder / "trace.json",
            mode=mode,
            machine=PhantomMachine(count=gpus, **options.pop("machine", {})),
            stdout=out.fileno(),
            **{"timeout_s": 300, **options},
        )
    estimate = xmem.estimate(result.path)
    if mode == "phantom":
        assert estimate.measured is not None
        assert estimate.measured.replay_agrees
    return output.read_text().splitlines(), estimate


@both_modes
def test_sizes_that_depend_on_data_are_those_of_the_cpu(python, tmp_path, mode):
    lines, estimate = printed(python, tmp_path, PROGRAMS, "cuda", mode=mode)
    on_cpu = subprocess.run(
        [python, str(PROGRAMS), "cpu"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert json.loads(lines[0]) == json.loads(on_cpu.stdout)
    assert not any("GPU value" in line for line in estimate.assumptions), "nothing unknown was read"


def test_kernels_of_triton_give_what_they_compute(python, tmp_path):
    needs_torch(python, (2, 6), "Triton 3.1 does not compile some of them")
    lines, _ = printed(python, tmp_path, Path(__file__).parents[1] / "triton_programs.py")
    for line in lines:
        name, given, expected = json.loads(line)
        assert given == expected, name


@pytest.mark.parametrize("name", most_nightly(["encoder_workers.py", "amp_scaler.py"]))
def test_nothing_else_is_allocated(python, name, tmp_path, monkeypatch):
    monkeypatch.chdir(HERE)

    def sizes(known_elements: int) -> list[int]:
        with Path(os.devnull).open("w") as quiet:
            result = capture(
                [python, name],
                tmp_path / "trace.json",
                mode="phantom",
                machine=PhantomMachine(known_elements=known_elements),
                stdout=quiet.fileno(),
                timeout_s=300,
            )
        (rows,) = xmem.read_trace(result.path).metadata["phantom"]["requests"]
        return rows["size_bytes"]

    assert sizes(1 << 20) == sizes(0)


def test_an_unknown_mask_selects_and_counts_as_all_of_it(python, tmp_path, mode):
    script = TRAIN + textwrap.dedent(
        """
        train(steps=1)
        y = model(torch.randn(100, 64, device="cuda"))
        mask = y[:, 0] > 0
        kept = y[mask]
        kept.sum().backward()
        print([kept.shape[0], mask.sum().item(), mask.float().sum().item(), mask.nonzero().shape[0]])
        print([1 / mask.sum().item(), mask.cumsum(0)[-1].item() >= 0, y.isnan().any().item(), y.isfinite().all().item()])
        routes = torch.nn.functional.one_hot(y[:, :8].argmax(1), 8)
        print([routes.sum(0).tolist(), torch.bincount(y[:, :8].argmax(1), minlength=8).sum().item(), torch.where(routes.T[3])[0].shape[0]])
        scattered = torch.zeros(100, 8, device="cuda").scatter(1, y[:, :8].topk(2).indices, 1).bool()
        print(scattered.sum(0).tolist())
        placed = torch.zeros(100, 8, device="cuda")
        rows, places = torch.arange(100, device="cuda").unsqueeze(1), y[:, :8].topk(2).indices
        placed.index_put_((rows, places), torch.ones(100, 2, device="cuda"))
        print([placed.bool().sum(0).tolist(), y[:, :8].masked_select(placed.bool()).shape[0]])
        flags = torch.zeros(100, 8, dtype=torch.bool, device="cuda")
        flags[rows, places] = True
        print(flags.sum(0).tolist())
        train()
        """
    )
    lines, _ = printed(python, tmp_path, script, mode=mode)
    counts, others, routes, scattered, placed, flags = (json.loads(line.lower()) for line in lines[:6])
    assert counts == [100, 100, 100, 100]
    assert others == [0.01, True, False, True]
    assert sum(routes[0]) in range(96, 105)  # rounded for each of eight experts
    assert routes[1:] == [100, 12]
    assert scattered == [25] * 8
    assert placed == [[25] * 8, 200]
    assert flags == scattered


def test_elements_of_something_known_are_among_its_numbers(python, tmp_path, mode):
    script = TRAIN + textwrap.dedent(
        """
        train(steps=1)
        best = model(torch.randn(100, 64, device="cuda"))[:, 0].topk(60).indices
        levels = torch.arange(5, device="cuda").repeat_interleave(20)[best]
        print([levels.unique().tolist(), (levels == 2).sum().item(), levels[levels != 2].shape[0], levels[0].item()])
        levels += best
        print([levels.unique().shape[0]])
        experts = model(torch.randn(100, 64, device="cuda")).view(200, 32).topk(2).indices
        token, _ = torch.where(experts == 5)
        print([token.shape[0], (experts.argmax(-1) == 2).sum().item(), (experts == 40).sum().item()])
        train()
        """
    )
    lines, _ = printed(python, tmp_path, script, mode=mode)
    assert json.loads(lines[0]) == [[0, 1, 2, 3, 4], 12, 48, 0]
    assert json.loads(lines[1]) == [60], "it is not known what was added"
    assert json.loads(lines[2]) == [12, 0, 0], "400 choices of one of 32; of two places, there is no third"


def test_random_numbers_are_those_of_a_gpu(python, tmp_path):
    """The numbers are what GPUs were seen to print (public outputs of torch with CUDA, seed 0); how many threads draw
    shows in what PyTorch adds to the generator's offset."""
    script = TRAIN + textwrap.dedent(
        """
        torch.manual_seed(0)
        print(torch.rand(10, device="cuda").tolist())
        print(torch.empty(10, device="cuda").uniform_().tolist())
        torch.manual_seed(0)
        print(torch.randn(8, 8, device="cuda").flatten()[:8].tolist())
        torch.manual_seed(0)
        print((torch.randint(5, 25, (10,), device="cuda") - 5).tolist(), (torch.rand(4, 3, device="cuda").t() < 0.5).sum().item())
        from xmem_child.values import draws
        generator = torch.cuda.default_generators[0]
        for count in (1, 256, 257, 100_000, 1_000_003, 5_000_000):
            before = generator.get_state().view(torch.int64)[1].item()
            torch.rand(count, device="cuda")
            added = generator.get_state().view(torch.int64)[1].item() - before
            assert added == 4 * draws.calls_of(count, torch.device("cuda", 0)), count
        train()
        """
    )
    lines, _ = printed(python, tmp_path, script)
    first, second, normal = (json.loads(line) for line in lines[:3])
    assert first == pytest.approx(
        [0.3990, 0.5167, 0.0249, 0.9401, 0.9459, 0.7967, 0.4150, 0.8203, 0.2290, 0.9096], abs=6e-5
    )
    assert second == pytest.approx(
        [0.9722, 0.7910, 0.4690, 0.3300, 0.3345, 0.3783, 0.7640, 0.6405, 0.1103, 0.3594], abs=6e-5
    )
    assert normal == pytest.approx(
        [-0.9247, -0.4253, -2.6438, 0.1452, -0.1209, -0.5797, -0.6229, -0.3284], abs=6e-5
    )


def test_large_weights_that_are_drawn_on_the_gpu_are_unknown(python, tmp_path):
    """Drawing them takes seconds for a model whose ranks hold small parts of it, and nobody reads them."""
    script = TRAIN + textwrap.dedent(
        """
        small, large, ones = (torch.empty(1 << size, device="cuda") for size in (12, 18, 18))
        for weight in (small, large):
            torch.nn.init.trunc_normal_(weight)
        torch.nn.init.ones_(ones)
        print(small.abs().max().item() > 0, int(ones.sum()) == 1 << 18)
        print(large.abs().max().item())
        train()
        """
    )
    lines, _ = printed(python, tmp_path, script)
    assert lines == ["True True", "0.0"]


def test_what_nobody_writes_to_keeps_its_value_and_what_a_kernel_may_write_to_loses_it(python, tmp_path):
    script = TRAIN + textwrap.dedent(
        """
        import triton, triton.language as tl
        @triton.jit
        def add(x, y, n: tl.constexpr):
            place = tl.arange(0, n)
            tl.store(x + place, tl.load(x + place) + tl.load(y + place))
        flags, other = torch.tensor([3, 1, 4, 1], device="cuda"), torch.tensor([5, 9, 2, 6], device="cuda")
        train()
        print(flags.tolist(), other[1:].tolist())
        add[(1,)](flags, model.weight.grad, 4)  # which is not known
        print(flags.tolist(), other.tolist())
        flags[:] = other
        print(flags.tolist())
        """
    )
    lines, _ = printed(python, tmp_path, script, extent=Extent(until_end=True))
    assert lines == ["[3, 1, 4, 1] [9, 2, 6]", "[0, 0, 0, 0] [5, 9, 2, 6]", "[5, 9, 2, 6]"]


def test_kernels_that_run_on_the_host_are_not_in_the_trace(python, tmp_path):
    script = TRAIN + textwrap.dedent(
        """
        import triton, triton.language as tl
        @triton.jit
        def doubled(x, y, n: tl.constexpr):
            place = tl.program_id(0) * n + tl.arange(0, n)
            tl.store(y + place, 2 * tl.load(x + place))
        x = torch.arange(4096, device="cuda")
        y = torch.empty_like(x)
        doubled[(512,)](x, y, 8)
        print(y[-1].item())
        train()
        """
    )
    lines, _ = printed(python, tmp_path, script, extent=Extent(until_end=True))
    assert lines == ["8190"]
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert 0 < sum(event["name"].startswith("aten::") for event in trace["traceEvents"]) < 512


def test_ranks_tell_each_other_what_they_know(python, tmp_path):
    script = TRAIN + textwrap.dedent(
        """
        import json, os, torch.distributed as dist
        dist.init_process_group("nccl")
        rank, world = dist.get_rank(), dist.get_world_size()
        torch.cuda.set_device(rank)
        def of(*values): return torch.tensor(values, device="cuda")
        told = of(7 if rank == 0 else -1); dist.broadcast(told, 0)
        most = of(rank + 1); dist.all_reduce(most, dist.ReduceOp.MAX)
        total = of(rank + 1.5); dist.all_reduce(total)
        ones = torch.ones(1, device="cuda"); dist.all_reduce(ones)
        all_of_them = of(0, 0); dist.all_gather_into_tensor(all_of_them, of(rank + 10))
        parts = [of(0, 0), of(0, 0)]; dist.all_gather(parts, of(rank, 2 * rank))
        share = of(0); dist.reduce_scatter_tensor(share, of(1, 2))
        swapped = of(0, 0); dist.all_to_all_single(swapped, of(10 * rank, 10 * rank + 1))
        if rank == 0: dist.send(of(42), 1); got = of(42)
        else: got = of(0); dist.recv(got, 0)
        unknown = (of(1.0, 2.0)[None] @ of(3.0, 4.0)[:, None])[0]; dist.all_reduce(unknown)
        row = [told.item(), most.item(), total.item(), ones.item(), all_of_them.tolist(), [p.tolist() for p in parts], share.item(), swapped.tolist(), got.item(), unknown.item()]
        with open(f"{os.environ['XMEM_TEST_OUT']}.{rank}", "w") as out: json.dump(row, out)
        model.cuda(); train()
        dist.destroy_process_group()
        """
    )
    out = tmp_path / "rows"
    printed(python, tmp_path, script, gpus=2, env={**os.environ, "XMEM_TEST_OUT": str(out)})
    for rank in range(2):
        row = json.loads(Path(f"{out}.{rank}").read_text())
        assert row == [7, 2, 4.0, 2.0, [10, 11], [[0, 0], [1, 2]], 2 * (rank + 1), [rank, 10 + rank], 42, 0.0]


def test_conditions_that_only_raise_hold(python, tmp_path, mode):
    script = TRAIN + textwrap.dedent(
        """
        train(steps=1)
        y = model(torch.randn(8, 64, device="cuda"))
        assert (y > 0).all(), f"some of {y} are negative"
        assert not (y > 0).any() and torch.equal(y, y * 1)
        if not y.min() < y.max():
            worst = y.min()
            raise ValueError(f"no difference: {worst}")
        if (y < 0).any():
            print("negative")
        print("there")
        train()
        """
    )
    lines, _ = printed(python, tmp_path, script, mode=mode)
    assert lines == ["there"]


def test_routes_of_many_tokens_are_known(python, tmp_path, mode):
    script = TRAIN + textwrap.dedent(
        """
        routes = torch.arange(1 << 16, device="cuda").remainder(128)
        experts = torch.nn.functional.one_hot(routes, 128)
        print([experts.sum(0)[5].item(), torch.where(experts.T[7] == 1)[0].shape[0], (experts[3] * 2).tolist()[3]])
        train()
        """
    )
    lines, estimate = printed(python, tmp_path, script, mode=mode)
    assert json.loads(lines[0]) == [512, 512, 2]
    assert not any("GPU value" in line for line in estimate.assumptions)


@pytest.mark.nightly
def test_routes_that_follow_from_many_random_numbers_are_known(python, tmp_path):
    """More numbers than are kept one by one; under a larger limit the same follows. What finds the routes later keeps
    no memory of the GPU."""
    script = TRAIN + textwrap.dedent(
        """
        torch.manual_seed(42)
        before = torch.cuda.memory_allocated()
        logits = torch.randn(256, 128, device="cuda")
        routes = torch.topk(logits, 8, dim=-1).indices.to(torch.int32)
        best = logits.argmax(1)
        values, places = logits.max(dim=1)
        order = logits.sort(1, descending=True).indices[:, 0].contiguous()
        print(torch.bincount(routes.flatten().long(), minlength=128).tolist())
        print((routes[:, 0] == best).all().item(), (order == best).all().item(), (places == best).all().item())
        print(best[:5].tolist(), (values > 1.5).all().item())
        del logits
        print(torch.cuda.memory_allocated() - before)
        logits = torch.randn(256, 128, device="cuda").add_(1)
        print(logits.argmax(1).max().item())
        train()
        """
    )
    lines, _ = printed(python, tmp_path, script, machine={"known_elements": 1 << 13})
    counts = json.loads(lines[0])
    assert sum(counts) == 256 * 8
    assert len(set(counts)) > 8, "no expert has just its share"
    assert lines[1] == "True True True"
    assert int(lines[3]) < 256 * 128 * 4, "the random numbers are gone"
    assert lines[4] == "0", "what was added to them is not known"
    all_kept, _ = printed(python, tmp_path, script)
    assert all_kept[:4] == lines[:4]


@pytest.mark.parametrize("chosen", most_nightly([{}, {"elsewhere": 1.0}]))
def test_a_read_keeps_nothing_alive(python, tmp_path, chosen, mode):
    script = TRAIN + textwrap.dedent(
        """
        import gc
        gc.disable()
        def evaluate():
            kept = model(torch.randn(1 << 16, 64, device="cuda"))
            if kept.max().item() > 1 or (kept < 0).any():
                pass
            return kept[kept[:, 0] > 0].shape, kept.tolist() if len(kept) == 3 else kept[0].tolist()
        train(steps=1)
        before = torch.cuda.memory_allocated()
        evaluate()
        print(torch.cuda.memory_allocated() - before)
        train()
        """
    )
    lines, _ = printed(python, tmp_path, script, machine={"values": chosen}, mode=mode)
    assert lines[0] == "0"


def test_a_loop_that_waits_for_a_value_ends_and_names_its_line(python, tmp_path, mode):
    script = TRAIN + textwrap.dedent(
        """
        y = model(torch.randn(8, 64, device="cuda"))
        while not (y > 0).all():
            pass
        train()
        """
    )
    _, estimate = printed(python, tmp_path, script, mode=mode)
    assert any(
        "train.py:12 read the same unknown condition 1,000 times" in line for line in estimate.assumptions
    )


@both_modes
def test_factorizations_succeed_however_often_pytorch_asks(python, tmp_path, mode):
    script = TRAIN + textwrap.dedent(
        """
        y = model(torch.randn(8, 64, device="cuda"))[:, :8]
        for _ in range(1001):
            torch.linalg.solve(y, y)
        torch.linalg.cholesky(y), torch.linalg.inv(y)
        train()
        """
    )
    _, estimate = printed(python, tmp_path, script, mode=mode)
    assert not any("unknown condition" in line for line in estimate.assumptions)


@both_modes
def test_a_script_that_never_trains_because_of_a_value_is_refused(python, tmp_path, mode):
    script = TRAIN + textwrap.dedent(
        """
        if model(torch.randn(8, 64, device="cuda")).sum().item() != 0:
            train()
        """
    )
    with pytest.raises(
        CaptureError, match=r"without a training step.*train\.py:11.*--value .*train\.py:11=NUMBER"
    ):
        printed(python, tmp_path, script, mode=mode)


@pytest.mark.nightly
def test_what_a_rank_that_does_not_run_would_send_is_asked_for(python, tmp_path):
    script = TRAIN + textwrap.dedent(
        """
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore
        dist.init_process_group("fake", rank=7, world_size=8, store=FakeStore())
        flags = torch.tensor([0, 1], device="cuda")
        dist.broadcast(flags, 0)
        if flags[0].item():
            train()
        """
    )
    with pytest.raises(CaptureError, match=r"without a training step.*--value .*train\.py:16=NUMBER"):
        printed(python, tmp_path, script)
    # No process of it is rank 0, so the only one is traced.
    _, estimate = printed(python, tmp_path, script, machine={"values": {f"{tmp_path}/train.py:16": 1.0}})
    assert [rank.rank for rank in estimate.measured.ranks] == [7]


@pytest.mark.parametrize("name", ["train.py:13", "ready"])
def test_a_value_is_chosen_by_line_or_by_function(python, name, tmp_path, monkeypatch, mode):
    monkeypatch.chdir(tmp_path)
    script = TRAIN + textwrap.dedent(
        """

        def ready():
            return model(torch.randn(8, 64, device="cuda")).sum().item()
        print(ready())
        train()
        """
    )
    lines, _ = printed(python, tmp_path, script, machine={"values": {name: 3.0}}, mode=mode)
    assert lines[0] == "3.0"


@both_modes
def test_a_copy_to_the_host_is_a_read(python, tmp_path, monkeypatch, mode):
    """A number is what was chosen, and a mask selects all."""
    monkeypatch.chdir(tmp_path)
    script = TRAIN + textwrap.dedent(
        """

        y = model(torch.randn(8, 64, device="cuda")).detach()
        print(y.sum().cpu().item(), int((y > 0).cpu().sum()) == y.numel())
        print(float((y.sum() * 100).to("cpu")), y.argmax(-1).tolist() == [0] * 8)
        mask = y.flatten() > 0
        print(int(mask[: mask.numel() // 2].cpu().sum()) * 4 == mask.numel())
        train()
        """
    )
    machine = {"values": {"train.py:13": 3.0}}
    lines, _ = printed(python, tmp_path, script, machine=machine, mode=mode)
    assert lines[:3] == ["3.0 True", "0.0 True", "True"]


@pytest.mark.nightly
def test_lbfgs_keeps_its_history_and_distributions_take_their_arguments(python, tmp_path, mode):
    script = TRAIN + textwrap.dedent(
        """
        y = model(torch.randn(8, 64, device="cuda")).detach()
        torch.distributions.Categorical(probs=y.softmax(-1)).log_prob(torch.zeros(8, device="cuda"))
        torch.distributions.Normal(y, y.exp()).rsample()
        torch.distributions.Normal(y, y.exp()).sample()
        torch.distributions.Geometric(y.sigmoid()).sample()
        torch.distributions.VonMises(y, y.exp()).sample()
        train(steps=1)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, history_size=10)
        def closure():
            optimizer.zero_grad()
            loss = model(torch.randn(8, 64, device="cuda")).square().sum()
            loss.backward()
            return loss
        for _ in range(4):
            optimizer.step(closure)
            print(len(optimizer.state[model.weight]["old_dirs"]))
        """
    )
    lines, _ = printed(python, tmp_path, script, extent=Extent(until_end=True), mode=mode)
    assert [int(line) for line in lines] == [4, 9, 10, 10]


@pytest.mark.nightly
def test_values_are_known_between_compiled_regions(python, tmp_path, mode):
    script = TRAIN + textwrap.dedent(
        """
        import torch._dynamo
        lengths = torch.tensor([3, 5, 2], device="cuda")
        @torch.compile(backend="aot_eager")
        def forward(x):
            y = model(x) * 2
            torch._dynamo.graph_break()
            n = int(lengths.max())
            torch._dynamo.graph_break()
            return y[:n].sum(), n
        for _ in range(3):
            loss, n = forward(torch.randn(8, 64, device="cuda"))
            loss.backward()
            optimizer.step()
        print(n)
        """
    )
    lines, _ = printed(python, tmp_path, script, extent=Extent(until_end=True), mode=mode)
    assert lines[-1] == "5"


@both_modes
def test_an_error_of_ours_never_reaches_the_script(python, tmp_path, mode):
    script = TRAIN + textwrap.dedent(
        """
        from xmem_child.values.engine import Engine
        def broken(*_args, **_options):
            raise KeyError("broken")
        Engine.values_of = Engine.keep = Engine._keep_new = broken
        flags = torch.zeros(1 << 24, device="cuda") + 1  # too many to be computed in mode fake
        print(flags.sum().item())
        try:
            flags.view(3)
        except RuntimeError as error:
            print(type(error).__name__)
        train()
        """
    )
    lines, estimate = printed(python, tmp_path, script, mode=mode)
    assert lines == ["0.0", "RuntimeError"]
    assert any(
        "were not followed because of a bug in xMem: KeyError" in line for line in estimate.assumptions
    )


@pytest.mark.nightly
def test_a_loop_with_a_limit_ends_there(python, tmp_path, mode):
    """As ``generate`` of transformers does: a limit that the host knows, or a token that it does not."""
    script = TRAIN + textwrap.dedent(
        """
        with torch.no_grad():
            unfinished = torch.ones(4, dtype=torch.long, device="cuda")
            tokens = torch.zeros(4, 1, dtype=torch.long, device="cuda")
            finished = False
            while not finished:
                next_token = model(torch.randn(4, 64, device="cuda")).argmax(-1)
                tokens = torch.cat([tokens, next_token[:, None]], 1)
                done = torch.full((4,), False, device="cuda")
                done = done | torch.full((4,), tokens.shape[1] >= 20, device="cuda")
                done = done | torch.isin(tokens[:, -1], torch.tensor([2, 3], device="cuda"))
                unfinished = unfinished & ~done
                finished = unfinished.max() == 0
            print(tokens.shape[1])
        train()
        """
    )
    lines, _ = printed(python, tmp_path, script, mode=mode)
    assert lines == ["20"]


@pytest.mark.nightly
def test_a_loop_that_calls_a_model_may_read_its_condition_longer(python, tmp_path, mode):
    """Generation has a limit of its own, which may be more than the reads that end a loop that waits."""
    script = TRAIN + textwrap.dedent(
        """
        with torch.no_grad():
            tokens, finished = 0, torch.zeros((), dtype=torch.bool, device="cuda")
            while tokens < 1200 and not finished:
                finished = model(torch.randn(4, 64, device="cuda")).argmax() == 3
                tokens += 1
        print(tokens)
        train()
        """
    )
    lines, estimate = printed(python, tmp_path, script, mode=mode)
    assert lines == ["1200"]
    assert not any("1,000 times" in line for line in estimate.assumptions)


def test_operators_that_take_functions_run(python, tmp_path):
    script = TRAIN + textwrap.dedent(
        """
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cuda")
        x = model(torch.randn(1, 2, 128, 64, device="cuda"))
        flex_attention(x, x, x, block_mask=mask).sum().backward()
        print("done")
        train()
        """
    )
    lines, _ = printed(python, tmp_path, script)
    assert lines == ["done"]


@both_modes
def test_what_nobody_wrote_is_not_known(python, tmp_path, mode):
    """Memory of weights that were not initialized, what a larger size adds, and views that change values."""
    script = TRAIN + textwrap.dedent(
        """
        left = [torch.full((300, 100), float("nan")) for _ in range(50)]
        del left
        weight = torch.nn.Embedding(300, 100).cuda().weight
        print(weight.isnan().any().item(), weight.sum().item())
        print(torch.tensor([1, 2], device="cuda").resize_(1000).sum().item())
        numbers = torch.tensor([1.0, 2.0], device="cuda")
        print((numbers + 0).tolist(), (torch._neg_view(numbers) + 0).tolist())
        train()
        """
    )
    lines, _ = printed(python, tmp_path, script, mode=mode)
    negated = {"phantom": "[0.0, 0.0]", "fake": "[-1.0, -2.0]"}[mode]
    assert lines == ["False 0.0", "0", f"[1.0, 2.0] {negated}"]


def test_constructors_that_a_script_replaces_make_nothing_of_ours_on_the_gpu(python, tmp_path) -> None:
    """``deepspeed.zero.Init`` lets ``torch.empty`` and its like allocate there."""
    script = (
        TRAIN
        + """
kept = {name: getattr(torch, name) for name in ("empty", "zeros", "full", "tensor", "arange", "ones")}
def on_gpu(made):
    return lambda *args, **named: made(*args, **{"device": "cuda", **named})
counts, filled = torch.tensor([3.0, 1.0, 2.0]).cuda(), torch.full((4,), 2.0, device="cuda")
torch.cuda.synchronize()
before = torch.cuda.memory_stats()["allocation.all.allocated"]
for name, made in kept.items():
    setattr(torch, name, on_gpu(made))
counts.mul_(2)
filled[1:].add_(counts)
told = [counts[0].item(), filled[3].item()]
for name, made in kept.items():
    setattr(torch, name, made)
print(told, torch.cuda.memory_stats()["allocation.all.allocated"] - before)
train()
"""
    )
    lines, estimate = printed(python, tmp_path, script)
    assert lines == ["[6.0, 6.0] 0"]
    assert not any("bug in xMem" in text for text in estimate.assumptions)


def test_what_an_extension_multiplies_is_not_known_any_more(python, tmp_path):
    """cuBLAS tells of its results, because no operator of PyTorch does."""
    script = TRAIN + textwrap.dedent(
        """
        import ctypes, re
        torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
        (name,) = set(re.findall(r"libcublas[.]so[.][0-9]+", open("/proc/self/maps").read()))
        cublas, handle, one = ctypes.CDLL(name), ctypes.c_void_p(), ctypes.byref(ctypes.c_float(1))
        cublas.cublasCreate_v2(ctypes.byref(handle))
        left, right, result = (torch.ones(8, 8, device="cuda") for _ in range(3))
        a, b, c = (ctypes.c_void_p(each.data_ptr()) for each in (left, right, result))
        print([left.sum().item(), result.sum().item()])
        cublas.cublasSgemm_v2(handle, 0, 0, 8, 8, 8, one, a, 8, b, 8, one, c, 8)
        print([left.sum().item(), result.sum().item()])
        train()
        """
    )
    lines, _ = printed(python, tmp_path, script)
    assert [json.loads(line) for line in lines[:2]] == [[64, 64], [64, 0]]


def test_what_an_extension_multiplies_with_cublaslt_is_not_known_any_more(python, tmp_path):
    """TransformerEngine does so; in memory that PyTorch filled with NaN, which deterministic runs do."""
    script = TRAIN + textwrap.dedent(
        """
        import ctypes, re
        torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
        torch.use_deterministic_algorithms(True)
        (name,) = set(re.findall(r"libcublasLt[.]so[.][0-9]+", open("/proc/self/maps").read()))
        lt, at = ctypes.CDLL(name), lambda tensor: ctypes.c_void_p(tensor.data_ptr())
        handle, matmul, layout = (ctypes.c_void_p() for _ in range(3))
        one, algorithm = ctypes.byref(ctypes.c_float(1)), (ctypes.c_uint64 * 8)()
        lt.cublasLtCreate(ctypes.byref(handle))
        lt.cublasLtMatmulDescCreate(ctypes.byref(matmul), 68, 0)
        lt.cublasLtMatrixLayoutCreate(
            ctypes.byref(layout), 0, ctypes.c_uint64(8), ctypes.c_uint64(8), ctypes.c_int64(8)
        )
        left, right = (torch.ones(8, 8, device="cuda") for _ in range(2))
        product, turned = (torch.empty(8, 8, device="cuda") for _ in range(2))
        def known():
            print(left.sum().item(), *(bool(each.isnan().all().item()) for each in (product, turned)))
        known()
        lt.cublasLtMatmul(
            handle, matmul, one, at(left), layout, at(right), layout, one, at(product), layout, at(product), layout,
            algorithm, None, ctypes.c_size_t(0), None,
        )
        known()
        lt.cublasLtMatrixTransform(
            handle, None, one, at(left), layout, one, at(right), layout, at(turned), layout, None
        )
        known()
        torch.use_deterministic_algorithms(False)
        train()
        """
    )
    lines, _ = printed(python, tmp_path, script)
    assert lines[:3] == ["64.0 True True", "64.0 False True", "64.0 False False"]


def test_what_an_extension_computes_with_cudnn_is_not_known_any_more(python, tmp_path):
    """Its tensors are those of a variant pack; PyTorch's own calls of cuDNN leave known inputs known."""
    script = TRAIN + textwrap.dedent(
        """
        import ctypes
        cudnn, variant_pack, pointers, address = ctypes.CDLL("libcudnn.so.9"), 16, 1001, 6
        handle, pack = ctypes.c_void_p(), ctypes.c_void_p()
        image, other = torch.ones(1, 8, 8, 8, device="cuda"), torch.ones(8, device="cuda")
        torch.nn.functional.conv2d(image, torch.ones(8, 8, 3, 3, device="cuda"))
        print([image.sum().item(), other.sum().item()])
        cudnn.cudnnCreate(ctypes.byref(handle))
        cudnn.cudnnBackendCreateDescriptor(variant_pack, ctypes.byref(pack))
        tensors = (ctypes.c_void_p * 1)(image.data_ptr())
        cudnn.cudnnBackendSetAttribute(pack, pointers, address, ctypes.c_int64(1), tensors)
        cudnn.cudnnBackendExecute(handle, None, pack)
        print([image.sum().item(), other.sum().item()])
        train()
        """
    )
    lines, _ = printed(python, tmp_path, script)
    assert [json.loads(line) for line in lines[:2]] == [[512, 8], [0, 8]]

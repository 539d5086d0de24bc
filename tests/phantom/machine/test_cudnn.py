"""Convolutions, recurrent networks and attention: cuDNN's plans and sizes for the described device.

``XMEM_PHANTOM_CUDNN`` may name a ``libcudnn.so.9`` of 9.8 or newer, for the CUDA of a Python whose own is older: it then plans
in its place.
"""

from __future__ import annotations

import os
import subprocess
import textwrap
from functools import cache
from pathlib import Path

import pytest

from xmem.phantom import machine
from xmem.phantom.cudnn import read_planner

MIB = 1 << 20
NAMED = os.environ.get("XMEM_PHANTOM_CUDNN")
FIRST_DEVICELESS = 90800

# Workspaces of the three convolutions of a layer, in bytes, as what they add to the peak.
WORKSPACES = """
    import torch

    def peak_of(call):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        made = call()
        stats = torch.cuda.memory_stats()  # as requested, before the allocator rounds it
        return stats["requested_bytes.all.peak"] - stats["requested_bytes.all.current"]

    def workspaces(batch, channels, out, kernel, size, groups=1, dtype=torch.float32):
        x = torch.empty(batch, channels, size, size, device="cuda", dtype=dtype)
        w = torch.empty(out, channels // groups, kernel, kernel, device="cuda", dtype=dtype)
        setting = [(1, 1), (kernel // 2, kernel // 2), (1, 1)]
        dy = torch.empty(batch, out, size, size, device="cuda", dtype=dtype)
        back = lambda mask: torch.ops.aten.convolution_backward(
            dy, x, w, None, *setting, False, (0, 0), groups, mask)
        return [
            peak_of(lambda: torch.ops.aten.convolution(x, w, None, *setting, False, (0, 0), groups)),
            peak_of(lambda: back([True, False, False])),
            peak_of(lambda: back([False, True, False])),
        ]
"""


def program(code, preamble=""):
    return textwrap.dedent(preamble) + textwrap.dedent(code)


@cache
def bundled_version(python):
    """Of the wheel, as cudnnGetVersion gives it: 9.1.0.70 is 90100."""
    code = """
        from importlib.metadata import distributions
        names = {d.metadata["Name"]: d.version for d in distributions()}
        print(next(v for name, v in names.items() if name.startswith("nvidia-cudnn")))
    """
    command = [python, "-c", textwrap.dedent(code)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    major, minor, patch = map(int, text.split(".")[:3])
    return 10000 * major + 100 * minor + patch


def planner_library(phantom):
    """What to name in the machine file in place of a library from before the deviceless mode."""
    old = bundled_version(phantom.python) < FIRST_DEVICELESS
    return Path(NAMED) if old and NAMED is not None else None


def test_workspaces_are_those_of_the_library(phantom):
    """Figures of cuDNN 9.20 for an RTX 3060, single precision with TF32; of others the same order of magnitude."""
    library = planner_library(phantom)
    ran = phantom.run(
        program(
            """
            import json
            layers = [(339, 64, 64, 3, 86), (580, 64, 64, 3, 86), (339, 3, 64, 3, 86), (339, 64, 128, 3, 43),
                      (251, 16, 96, 1, 43), (312, 48, 48, 3, 22, 6)]
            print(json.dumps([workspaces(*layer) for layer in layers]))
            """,
            WORKSPACES,
        ),
        cudnn_library=library,
    )
    assert ran.refused() == {}
    found = [[bytes // MIB for bytes in layer] for layer in ran.result]
    planner = read_planner(phantom.folder)
    assert planner is not None
    assert planner.planned_by == ("bundled" if library is None else "named")
    if planner.version // 100 == 920:
        assert found == [
            [612, 1224, 1225],
            [1047, 2094, 2112],
            [0, 0, 0],
            [153, 459, 471],
            [0, 0, 1],
            [0, 55, 56],
        ]
    else:
        assert max(found[0]) > 600


def test_workspaces_are_those_of_a_real_h100(phantom):
    """Measured with torch 2.11.0 and cuDNN 9.19 (bench/gpu/results): without a device cuDNN counts 18 multiprocessors,
    and leaves out the engines that ask cuBLASLt. The other releases plan these layers alike."""
    library = planner_library(phantom)
    ran = phantom.run(
        program(
            """
            import json
            layers = [(200, 64, 64, 3, 86), (200, 512, 512, 3, 10), (200, 24, 144, 1, 22), (200, 384, 96, 1, 6)]
            print(json.dumps([workspaces(*layer) for layer in layers]))
            """,
            WORKSPACES,
        ),
        gpu="h100",
        cudnn_library=library,
    )
    planner = read_planner(phantom.folder)
    assert planner is not None
    if planner.version // 100 not in (908, 919, 920):
        pytest.skip("the environment's cuDNN is another")
    assert ran.result == [
        [757_498_003, 757_498_003, 759_562_919],
        [91_357_331, 91_357_331, 100_008_687],
        [0, 400, 2_764_800],
        [0, 0, 29_491_600],
    ]


def test_an_old_library_plans_for_the_handle_that_it_is_given(phantom):
    """cuDNN 9.1 takes the properties of the device from a handle: of one tensor in the forward pass, as 9.8 does."""
    version = bundled_version(phantom.python)
    if version >= FIRST_DEVICELESS:
        pytest.skip("the environment's cuDNN plans for a described device")
    ran = phantom.run(program("import json; print(json.dumps(workspaces(339, 64, 64, 3, 86)))", WORKSPACES))
    planner = read_planner(phantom.folder)
    assert planner is not None
    assert (planner.planned_by, planner.version) == ("bundled", version)
    assert ran.result[0] // MIB == 612
    assert ran.result[2] // MIB in range(1224, 1260)


def test_without_a_library_that_plans_no_workspace_is_taken(phantom, monkeypatch):
    """One that cannot use the description of the device: said, and convolutions still run."""
    whole = machine.cudnn_description
    monkeypatch.setattr(
        machine,
        "cudnn_description",
        lambda *of: {name: value for name, value in whole(*of).items() if name != "multiProcessorCount"},
    )
    ran = phantom.run(program("import json; print(json.dumps(workspaces(32, 64, 64, 3, 56)))", WORKSPACES))
    assert ran.result == [0, 0, 0]
    planner = read_planner(phantom.folder)
    assert planner is not None
    assert (planner.planned_by, planner.version) == ("none", 0)
    old = bundled_version(phantom.python) < FIRST_DEVICELESS
    assert ("cannot plan without a device" if old else "was refused") in planner.reason


def test_a_library_that_cannot_be_loaded_is_named(phantom):
    ran = phantom.run(
        program("import json; print(json.dumps(workspaces(32, 64, 64, 3, 56)))", WORKSPACES),
        cudnn_library=phantom.folder / "libcudnn.so.9",
    )
    planner = read_planner(phantom.folder)
    assert planner is not None
    assert planner.planned_by == "bundled"
    assert "cannot open shared object file" in planner.reason
    assert ran.result[0] >= 0


def test_all_kinds_of_convolution_train(phantom):
    library = planner_library(phantom)
    ran = phantom.run(
        """
        import json, torch
        from torch import nn

        images = (8, 32, 28, 28)
        def step(net, size, dtype=None, **settings):
            with torch.backends.cudnn.flags(**{"allow_tf32": True, "benchmark": False, **settings}):
                x = torch.empty(size, device="cuda", requires_grad=True)
                if settings.pop("channels_last", False):
                    net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
                net = net.cuda()
                with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
                    y = net(x)
                y.sum().backward()
                return list(y.shape)

        conv = lambda **options: nn.Conv2d(32, 64, 3, padding=1, **options)
        shapes = {
            "plain": step(conv(), images),
            "grouped": step(conv(groups=8), images),
            "depthwise": step(nn.Conv2d(32, 32, 3, padding=1, groups=32), images),
            "transposed": step(nn.ConvTranspose2d(32, 16, 4, 2, 1), images),
            "dilated": step(nn.Conv2d(32, 32, 3, dilation=4, padding=4), images),
            "strided": step(nn.Conv2d(32, 32, 7, stride=2), images),
            "1d": step(nn.Conv1d(32, 32, 3), (8, 32, 100)),
            "3d": step(nn.Conv3d(8, 8, 3), (2, 8, 8, 8, 8)),
            "bf16": step(conv(), images, torch.bfloat16),
            "fp16": step(conv(), images, torch.float16),
            "deterministic": step(conv(), (9, *images[1:]), deterministic=True),
            "without TF32": step(conv(), (10, *images[1:]), allow_tf32=False),
            "normalized": step(nn.Sequential(conv(), nn.BatchNorm2d(64)), images),
        }
        last = torch.channels_last
        net = nn.Sequential(conv(), nn.BatchNorm2d(64), nn.MaxPool2d(2)).cuda().to(memory_format=last)
        x = torch.empty(images, device="cuda").to(memory_format=last)
        with torch.autocast("cuda", dtype=torch.float16):
            net(x).sum().backward()
        c = conv().cuda()
        with torch.no_grad():
            arguments = ((1, 1), (1, 1), (1, 1), 1)
            shapes["relu"] = list(torch.cudnn_convolution_relu(x, c.weight, c.bias, *arguments).shape)
            z = torch.empty(8, 64, 28, 28, device="cuda").to(memory_format=last)
            fused = torch.cudnn_convolution_add_relu(x, c.weight, z, 1.0, c.bias, *arguments)
            shapes["added"] = list(fused.shape)
        print(json.dumps(shapes))
        """,
        cudnn_library=library,
    )
    assert ran.result["plain"] == ran.result["bf16"] == ran.result["added"] == [8, 64, 28, 28]
    assert ran.result["transposed"] == [8, 16, 56, 56]
    assert ran.refused() == {}


def test_benchmark_allocates_the_largest_workspace_first(phantom):
    library = planner_library(phantom)
    ran = phantom.run(
        program(
            """
            import json
            plain = workspaces(64, 64, 128, 3, 56)
            torch.backends.cudnn.benchmark = True
            torch.backends.cudnn.benchmark_limit = 0
            print(json.dumps([plain, workspaces(65, 64, 128, 3, 56)]))
            """,
            WORKSPACES,
        ),
        cudnn_library=library,
    )
    plain, benchmark = ran.result
    assert all(most >= first for most, first in zip(benchmark, plain, strict=True))
    assert benchmark[0] > 140 * MIB
    planner = read_planner(phantom.folder)
    if planner is not None and planner.version // 100 == 920:
        assert plain[0] // MIB == 49


def test_a_workspace_that_does_not_fit_makes_the_next_plan_run(phantom):
    """The first plan takes 612 MiB with cuDNN 9.20, and many engines of every version take none."""
    library = planner_library(phantom)
    ran = phantom.run(
        program(
            """
            import json
            x = torch.empty(339, 64, 86, 86, device="cuda")
            w = torch.empty(64, 64, 3, 3, device="cuda")
            torch.backends.cudnn.allow_tf32 = True
            filler = torch.empty(torch.cuda.mem_get_info()[0] - 900 * 2**20, dtype=torch.uint8, device="cuda")
            y = torch.nn.functional.conv2d(x, w, padding=1)
            print(json.dumps([torch.cuda.memory_stats()["num_ooms"], list(y.shape)]))
            """,
            WORKSPACES,
        ),
        cudnn_library=library,
    )
    ooms, shape = ran.result
    assert shape == [339, 64, 86, 86]
    planner = read_planner(phantom.folder)
    if planner is not None and planner.version // 100 == 920:
        assert ooms > 0


def test_recurrent_networks_train(phantom):
    """Weights are flattened into one block; what is reserved for the backward pass follows from the shapes."""
    ran = phantom.run(
        """
        import json, torch
        from torch import nn
        from torch.nn.utils.rnn import pack_padded_sequence

        x = torch.empty(30, 8, 128, device="cuda")
        def step(net, x=x):
            net = net.cuda()
            storages = {p.untyped_storage().data_ptr() for p in net.parameters()}
            y, _ = net(x)
            (y.data if hasattr(y, "batch_sizes") else y).sum().backward()
            return len(storages)

        blocks = [
            step(nn.LSTM(128, 256)),
            step(nn.LSTM(128, 256, 2, bidirectional=True)),
            step(nn.LSTM(128, 256, 3, dropout=0.5, batch_first=True)),
            step(nn.GRU(128, 256, 2, bidirectional=True, bias=False)),
            step(nn.RNN(128, 256, 2)),
            step(nn.LSTM(128, 256, 2, proj_size=100)),
            step(nn.LSTM(128, 256, 2), pack_padded_sequence(x, [30, 20, 10, 10, 10, 10, 10, 1])),
        ]

        def reserved_by(mode, layers, both, batches=()):
            net = {2: nn.LSTM, 3: nn.GRU, 0: nn.RNN}[mode](128, 256, layers, bidirectional=both).cuda()
            state = torch.empty(layers * (1 + both), 8, 256, device="cuda")
            given = torch.empty(sum(batches), 128, device="cuda") if batches else x
            made = torch._cudnn_rnn(
                given, net._flat_weights, 4, None, state, state if mode == 2 else None, mode, 256, 0,
                layers, False, 0.0, True, both, list(batches), None)
            return made[3].numel()

        reserved = [reserved_by(2, 1, False), reserved_by(2, 2, True), reserved_by(3, 2, True),
                    reserved_by(0, 2, True), reserved_by(2, 1, False, [8] + 9 * [7] + 10 * [2] + 10 * [1])]
        print(json.dumps([blocks, reserved]))
        """
    )
    blocks, reserved = ran.result
    assert blocks == [1] * 7
    assert reserved == [1229056, 5406976, 6390016, 1474816, 517376]
    assert ran.refused() == {}


def test_other_operations_of_the_library(phantom):
    ran = phantom.run(
        """
        import json, torch
        from torch.nn import functional as F
        x = torch.empty(4, 3, 16, 16, device="cuda", requires_grad=True)
        grid = torch.empty(4, 16, 16, 2, device="cuda", requires_grad=True)
        torch.cudnn_grid_sampler(x, grid).sum().backward()
        logs = torch.empty(50, 8, 20, device="cuda", requires_grad=True)
        lengths = lambda n: torch.full((8,), n, dtype=torch.int32, device="cuda")
        F.ctc_loss(logs, torch.ones(80, dtype=torch.int32, device="cuda"), lengths(50), lengths(10)).backward()
        print(json.dumps([list(x.grad.shape), list(logs.grad.shape)]))
        """
    )
    assert ran.result == [[4, 3, 16, 16], [50, 8, 20]]
    assert ran.processes[0].calls["cudnnCTCLoss_v8"] == 1
    assert ran.refused() == {}


def test_attention_of_the_library_on_a_card_that_has_it(phantom):
    library = planner_library(phantom)
    ran = phantom.run(
        """
        import json, torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        q, k, v = (torch.empty(2, 8, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in "qkv")
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        name = type(y.grad_fn).__name__
        y.sum().backward()
        print(json.dumps([name, list(q.grad.shape)]))
        """,
        gpu="h100",
        cudnn_library=library,
    )
    assert ran.result == ["ScaledDotProductCudnnAttentionBackward0", [2, 8, 512, 64]]


@pytest.mark.nightly
def test_models_train(phantom):
    """A step of torchvision's models; planning makes the first step slow, the next ones take milliseconds."""
    library = planner_library(phantom)
    ran = phantom.run(
        """
        import json, time, torch, torchvision
        for name in ("xavier_uniform_", "kaiming_uniform_", "kaiming_normal_", "uniform_", "normal_",
                     "trunc_normal_", "constant_", "zeros_", "ones_"):
            setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)

        steps = {}
        for name in ("resnet18", "mobilenet_v2", "vgg11", "convnext_tiny", "regnet_y_400mf"):
            net = getattr(torchvision.models, name)(weights=None).cuda()
            optimizer = torch.optim.AdamW(net.parameters())
            x = torch.empty(16, 3, 86, 86, device="cuda")
            y = torch.zeros(16, dtype=torch.long, device="cuda")
            torch.cuda.reset_peak_memory_stats()
            seconds = []
            for _ in range(3):
                begin = time.perf_counter()
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(net(x), y).backward()
                optimizer.step()
                seconds.append(time.perf_counter() - begin)
            parameters = sum(p.numel() for p in net.parameters())
            steps[name] = [*seconds, parameters, torch.cuda.max_memory_allocated()]
            del net, optimizer
        print(json.dumps(steps))
        """,
        cudnn_library=library,
    )
    assert len(ran.result) == 5
    for first, _, third, parameters, peak in ran.result.values():
        assert third < first
        assert peak > 4 * 4 * parameters  # the weights, their gradients and AdamW's two states
    assert ran.refused() == {}

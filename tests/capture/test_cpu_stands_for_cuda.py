"""What differs between a CPU and a GPU, and that scripts do not notice."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from .conftest import TARGETS, needs_torch, run_capture

pytestmark = needs_torch


def test_checkpoints_under_autocast(tmp_path: Path) -> None:
    run = run_capture(tmp_path, [sys.executable, str(TARGETS / "recomputed.py")], iterations=3)
    assert run.stdout == "recomputed 4\n"


def test_lengths_of_packed_sequences_stay_on_the_host(tmp_path: Path) -> None:
    run = run_capture(tmp_path, [sys.executable, str(TARGETS / "packed.py")], iterations=3)
    assert run.stdout == "packed\n"


def test_what_vmap_makes_lies_where_its_inputs_do(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "on_host, on_gpu = torch.arange(4), torch.arange(4, device='cuda')\n"
        "for x in (on_host, on_gpu):\n"
        "    both = torch.vmap(lambda i, j: i >= j, in_dims=(None, 0))(x, x)\n"
        "    print(both.device, torch.vmap(abs)(x).device)\n"
        "model = torch.nn.Linear(4, 4).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "model(torch.ones(2, 4).cuda()).sum().backward()\n"
        "optimizer.step()\n"
    )
    (tmp_path / "out").mkdir()
    run = run_capture(tmp_path / "out", [sys.executable, str(script)])
    assert run.stdout == "cpu cpu\ncuda:0 cuda:0\n"


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed")
def test_torchvision_is_imported_without_its_compiled_part(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torchvision\n"
        "model = torchvision.models.shufflenet_v2_x0_5(num_classes=4).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "model(torch.randn(2, 3, 32, 32).cuda()).sum().backward()\n"
        "optimizer.step()\n"
        "try:\n"
        "    torchvision.ops.nms(torch.rand(4, 4), torch.rand(4), 0.5)\n"
        "    print('has operators')\n"
        "except RuntimeError as error:\n"
        "    print('custom C++ ops' in str(error))\n"
    )
    output = tmp_path / "output"
    output.mkdir()
    run = run_capture(output, [sys.executable, str(script)])
    assert run.stdout in ("True\n", "has operators\n")
    noted = any("torchvision's compiled operators" in text for text in run.xmem["assumptions"])
    assert noted == (run.stdout == "True\n")


@pytest.mark.parametrize(("dtype", "probe"), [("float16", "fp16"), ("bfloat16", "bf16")])
def test_a_dtype_that_is_slow_here_is_named_once(tmp_path: Path, dtype: str, probe: str) -> None:
    torch = pytest.importorskip("torch")
    code = (
        f"import torch; model = torch.nn.Linear(4, 4).cuda().to(torch.{dtype})\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        f"x = torch.ones(2, 4, dtype=torch.{dtype}).cuda()\n"
        "for _ in range(2): model(x).sum().backward(); optimizer.step()\n"
    )
    run = run_capture(tmp_path, [sys.executable, "-c", code])
    slow = not getattr(torch.ops.mkldnn, f"_is_mkldnn_{probe}_supported")()
    assert run.stderr.count(f"the script computes in {dtype}") == slow
    assert any(f"computed in {dtype}" in text for text in run.xmem["assumptions"]) == slow

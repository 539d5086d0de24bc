"""The commands where Python lacks what only POSIX has, as on Windows."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nightly import most_nightly
from training_sample import training

HERE = Path(__file__).parent
WITHOUT_POSIX = HERE / "without_posix"

TRAINING = """
import torch
model = torch.nn.Linear(256, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    model(torch.randn(8, 256).cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(WITHOUT_POSIX)}
    words = [sys.executable, *map(str, command)]
    return subprocess.run(
        words, env=environment, cwd=cwd, capture_output=True, text=True, timeout=240, check=False
    )


def xmem_fast(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    ended = run(HERE / "as_windows.py", *arguments, cwd=cwd)
    assert "Traceback" not in ended.stderr
    return ended


def without_times(text: str) -> str:
    return re.sub(r"[0-9.]+ m?s\b", "TIME", text)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_bytes(training().bytes())
    return path


def test_nothing_of_posix_is_there_for_our_code(tmp_path: Path) -> None:
    (tmp_path / "xmem_asks.py").write_text(
        "import os, signal\nprint(hasattr(os, 'killpg'), hasattr(signal, 'SIGHUP'))"
    )
    ended = run("-c", "import sys; sys.path.insert(0, '.'); import xmem_asks", cwd=tmp_path)
    assert ended.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(
    "command",
    [
        ("estimate", "trace.json", "--gpu", "rtx-3060"),
        ("report", "trace.json", "--gpu", "rtx-3060", "-o", "page.html"),
        ("gpus",),
        ("policies",),
        ("inspect", "trace.json", "blocks"),
        ("check", "trace.json", "--gpu", "rtx-3060"),
        ("diff", "trace.json", "trace.json", "--gpu", "rtx-3060"),
    ],
    ids=lambda command: command[0],
)
def test_a_command_says_the_same_as_elsewhere(trace: Path, command: tuple[str, ...]) -> None:
    here = [sys.executable, "-m", "xmem.cli.main", *command]
    expected = subprocess.run(here, cwd=trace.parent, capture_output=True, text=True, timeout=240, check=True)
    ended = xmem_fast(*command, cwd=trace.parent)
    assert ended.returncode == 0, ended.stderr
    assert without_times(ended.stdout) == without_times(expected.stdout)


def test_standard_input_is_read(trace: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(WITHOUT_POSIX)}
    command = [sys.executable, str(HERE / "as_windows.py"), "inspect", "-", "blocks"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        out, _ = process.communicate(trace.read_bytes(), timeout=240)
    assert process.returncode == 0
    assert b"4194304" in out.replace(b",", b"") or b"4.0 MiB" in out


@needs_torch
@pytest.mark.parametrize("mode", most_nightly(["fake", "real"]))
def test_a_script_is_captured(tmp_path: Path, mode: str) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    command = (sys.executable, "train.py")
    ended = xmem_fast("capture", "--mode", mode, "-o", "trace.json", "--", *command, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    shown = xmem_fast("estimate", "trace.json", "--gpu", "rtx-3060", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "train.py:" in (tmp_path / "trace.json").read_text()


@needs_torch
def test_a_command_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, time, torch; pathlib.Path('number').write_text(str(os.getpid())); time.sleep(99)"
    )
    (tmp_path / "train.py").write_text(script)
    options = ("capture", "--mode", "fake", "--timeout", "8", "-o", "trace.json", "--")
    ended = xmem_fast(*options, sys.executable, "train.py", cwd=tmp_path)
    assert ended.returncode == 3
    assert "did not finish" in ended.stderr
    time.sleep(0.2)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "number").read_text()), 0)


def test_the_phantom_gpu_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from command_line import xmem_fast as in_process

    for platform in ("darwin", "win32"):
        with monkeypatch.context() as patched:
            patched.setattr(sys, "platform", platform)
            capture = ("capture", "--mode", "phantom", "-o", tmp_path / "trace.json", "--", sys.executable)
            for command in (("phantom-env",), (*capture, "-c", "import torch")):
                result = in_process(*command)
                assert result.exit_code == 2, result.output
                assert "phantom GPU" in result.output
                assert "Dockerfile" in result.output

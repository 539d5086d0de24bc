"""How a command is looked at before it runs: its Python, its torch, the options about values."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from xmem.capture import find_torch
from xmem.cli.capture import _value
from xmem.errors import ConfigError


def fake_python(folder: Path, cuda: str | None) -> Path:
    """An interpreter that sees a torch of this CUDA version, and nothing of it but its version file."""
    package = folder / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('torch is not to be imported')")
    (package / "version.py").write_text(
        f"__version__ = '2.12.0'\ncuda: Optional[str] = {cuda!r}\nhip: Optional[str] = None\n"
    )
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{package.parent}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


@pytest.mark.parametrize(("cuda", "major"), [("13.0", 13), ("12.4", 12), (None, 0)])
def test_torch_is_found_without_importing_it(tmp_path, cuda, major):
    python = fake_python(tmp_path, cuda)
    build = find_torch([str(python), "train.py"], os.environ)
    assert build is not None
    assert (build.version, build.cuda, build.cuda_major) == ("2.12.0", cuda, major)


def test_the_python_of_a_launcher_is_that_of_its_first_line(tmp_path):
    python = fake_python(tmp_path, "13.0")
    launcher = tmp_path / "torchrun"
    launcher.write_text(f"#!{python}\n")
    launcher.chmod(0o755)
    build = find_torch([str(launcher), "--nproc-per-node", "2", "train.py"], os.environ)
    assert build is not None
    assert build.python == str(python)


def test_a_shell_script_runs_the_python_on_the_path(tmp_path):
    python = fake_python(tmp_path, "13.0")
    build = find_torch(["sh", "train.sh"], {"PATH": str(tmp_path)})
    assert build is not None
    assert (build.python, build.cuda) == (str(python), "13.0")


def test_no_torch_is_none(tmp_path):
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    python.chmod(0o755)
    assert find_torch([str(python), "train.py"], {"PATH": ""}) is None


def test_values_name_a_line_and_a_number():
    assert _value("src/train.py:57=0.25") == ("src/train.py:57", 0.25)


@pytest.mark.parametrize(
    "text", ["train.py=1", "train.py:x=1", "train.py:0=1", "train.py:5=much", ":5=1", "5"]
)
def test_values_that_cannot_be_meant(text):
    with pytest.raises(ConfigError, match=r"FILE:LINE=NUMBER"):
        _value(text)

"""How a command is looked at before it runs: its Python, its torch, the options about values."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from xmem.capture import find_torch, path_with, with_python
from xmem.cli.capturing import _value
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
    assert _value("Router.forward=-1") == ("Router.forward", -1)


@pytest.mark.parametrize(
    "text", ["train.py=1", "train.py:x=1", "train.py:0=1", "train.py:5=much", ":5=1", "5"]
)
def test_invalid_values(text):
    with pytest.raises(ConfigError, match=r"FILE:LINE=NUMBER"):
        _value(text)


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """An environment with an interpreter and torchrun, a search path without it, and a script."""
    (tmp_path / "env").mkdir()
    python = fake_python(tmp_path / "env", "13.0")
    (tmp_path / "other").mkdir()
    for program, line in (
        ("env/torchrun", f"#!{python}"),
        ("env/tool", "#!/bin/sh"),
        ("other/accelerate", f"#!{sys.executable}"),
        ("other/sh", "#!/bin/false"),
        ("other/python3", "#!/bin/false"),
    ):
        (tmp_path / program).write_text(f"{line}\n")
        (tmp_path / program).chmod(0o755)
    (tmp_path / "train.py").write_text("")
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    monkeypatch.chdir(tmp_path)
    return python


@pytest.mark.parametrize("first", ["python", "python3", "python3.11"])
def test_a_leading_python_is_the_named_one(environment, first):
    assert with_python(environment, [first, "train.py"]) == [str(environment), "train.py"]
    assert with_python(environment, [str(environment), "train.py"]) == [str(environment), "train.py"]


def test_arguments_of_the_named_python(environment):
    python = str(environment)
    for command in (["train.py", "-x"], ["-m", "package"], ["not_there.py"], ["./train.py"]):
        assert with_python(environment, command) == [python, *command]
    assert with_python(environment, []) == [python]


def test_programs_of_the_environment(environment):
    folder = environment.parent
    assert with_python(environment, ["torchrun", "train.py"]) == [
        str(environment),
        str(folder / "torchrun"),
        "train.py",
    ]
    assert with_python(environment, ["tool", "a"]) == [str(folder / "tool"), "a"]
    assert with_python(environment, ["sh", "train.sh"]) == ["sh", "train.sh"]
    assert path_with(environment, "/usr/bin") == f"{folder}:/usr/bin"
    assert path_with(environment, None) == str(folder)


def test_programs_of_another_environment_are_refused(environment):
    with pytest.raises(ConfigError, match=r"accelerate is not in .*env"):
        with_python(environment, ["accelerate", "launch", "train.py"])
    with pytest.raises(ConfigError, match="two different interpreters; name only one"):
        with_python(environment, [str(environment.parents[1] / "other" / "python3"), "train.py"])

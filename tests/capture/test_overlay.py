"""Environments with the CUDA build of a script's torch, made by pip from wheels of this test."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from xmem.capture import overlay
from xmem.capture.interpreter import find_torch
from xmem.capture.overlay import describe_way_to, make_overlay, overlay_python
from xmem.errors import CaptureError, ConfigError

pytestmark = pytest.mark.skipif(not overlay.is_possible(), reason="no phantom GPU for this system")

VERSION = "__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\n"


def write_torch(folder: Path, version: str, cuda: str | None) -> None:
    """A package of that name, as far as its build is asked for."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("")
    (folder / "torch" / "version.py").write_text(VERSION.format(version=version, cuda=cuda))


def write_wheel(folder: Path, version: str, cuda: str | None) -> None:
    folder.mkdir(exist_ok=True)
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("torch/__init__.py", "")
        wheel.writestr("torch/version.py", VERSION.format(version=version, cuda=cuda))
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment whose torch is a build for the CPU, and a pip that looks for wheels in one folder."""
    monkeypatch.setenv("XMEM_CACHE", str(tmp_path / "cache"))
    write_torch(tmp_path / "mine", "2.0.9+cpu", None)
    return {
        **os.environ,
        "PYTHONPATH": str(tmp_path / "mine"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
    }


def test_the_overlay_has_the_cuda_build_and_everything_else(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlay, "_COMPILED_BESIDE", ())
    write_wheel(tmp_path / "wheels", "2.0.9", "13.0")
    write_wheel(tmp_path / "wheels", "2.0.9+cpu", None)  # which pip would prefer to the one without a suffix
    build = find_torch([sys.executable], environment)
    assert build is not None
    assert "phantom-env" in str(describe_way_to(build))
    python = make_overlay(sys.executable, environment)
    found = find_torch([str(python)], {**os.environ, "PYTHONPATH": ""})
    assert found is not None
    assert (found.version, found.cuda) == ("2.0.9", "13.0")
    beside = subprocess.run(
        [str(python), "-c", "import pytest"], check=False, env={**os.environ, "PYTHONPATH": ""}
    )
    assert beside.returncode == 0
    assert overlay_python(build) == python
    assert str(python) in str(describe_way_to(build))
    (tmp_path / "wheels" / "torch-2.0.9-py3-none-any.whl").unlink()
    assert make_overlay(sys.executable, environment) == python  # and does not ask pip again


def test_a_build_without_cuda_is_refused_and_leaves_nothing(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlay, "_COMPILED_BESIDE", ())
    write_wheel(tmp_path / "wheels", "2.0.9", None)
    with pytest.raises(CaptureError, match="a torch without CUDA"):
        make_overlay(sys.executable, environment)
    assert not [path for path in (tmp_path / "cache" / "phantom-env").iterdir() if path.is_dir()]


def test_a_cuda_build_needs_no_overlay(tmp_path: Path) -> None:
    write_torch(tmp_path / "mine", "2.0.9", "13.0")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "mine")}
    assert make_overlay(sys.executable, environment) == Path(sys.executable)


def test_other_systems_are_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigError, match="use --mode fake here"):
        make_overlay(sys.executable, dict(os.environ))

"""What is said where the phantom GPU cannot be used."""

from __future__ import annotations

import shutil
import sys

import pytest

import xmem
from xmem.errors import CaptureError, ConfigError
from xmem.phantom.installation import library_folder


def test_a_missing_file_is_named_with_its_place(tmp_path, monkeypatch):
    shutil.copytree(library_folder(), tmp_path / "phantom")
    monkeypatch.setattr(xmem, "__path__", [str(tmp_path / "sources"), str(tmp_path)])
    assert library_folder() == tmp_path / "phantom"
    (tmp_path / "phantom" / "libcuda.so.1").unlink()
    with pytest.raises(CaptureError) as failed:
        library_folder()
    assert f"libcuda.so.1 is missing in {tmp_path / 'phantom'};" in str(failed.value)
    assert "pip install" in str(failed.value)
    assert "Linux" not in str(failed.value)


def test_another_platform_is_named(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(
        ConfigError, match="the phantom GPU runs on Linux only, not on darwin; use --mode fake or real"
    ):
        library_folder()


def test_a_chosen_folder_must_hold_a_whole_build(tmp_path, monkeypatch):
    chosen = tmp_path / "build"
    shutil.copytree(library_folder(), chosen)
    monkeypatch.setenv("XMEM_PHANTOM_LIBRARIES", str(chosen))
    assert library_folder() == chosen
    (chosen / "phantom_functions.tsv").unlink()
    with pytest.raises(ConfigError, match=r"has no phantom_functions\.tsv; name a folder"):
        library_folder()

"""Files that appear whole, and what a killed process left of one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from xmem.files.writing import write_whole, writing


def test_what_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text("before")

    def fail() -> None:
        with writing(tmp_path / "out.json") as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.json", "before")]


def test_old_parts_of_the_file_are_removed_and_those_of_others_stay(tmp_path: Path) -> None:
    old, fresh, other = (
        tmp_path / f".{name}.partial" for name in ("out.json.77", "out.json.78", "other.json.79")
    )
    for path in (old, fresh, other):
        path.write_text("half")
    for path in (old, other):
        os.utime(path, (0, time.time() - 3600))
    write_whole(tmp_path / "out.json", b"whole")
    assert not old.exists()
    assert fresh.exists()
    assert other.exists()

"""Captures that were made are found again, and those of other sources are not mistaken for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accuracy.cache import Cache, Key, Record, digest
from xmem.errors import TraceError

OLD, NEW = Key("cpu-VGG16-b2", "0123abcd"), Key("cpu-VGG16-b2", "4567abcd")
RECORD = Record("captured", 5.0, 1 << 20)


def test_what_was_put_is_found(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "captures")
    assert cache.find(OLD) is None
    cache.put(OLD, RECORD)
    assert cache.find(OLD) == (OLD, RECORD)
    assert cache.find(NEW) is None
    assert cache.find(Key("cpu-VGG16-b20", OLD.version)) is None


def test_the_latest_of_other_sources_will_do_when_asked_for(tmp_path: Path) -> None:
    cache = Cache(tmp_path, stale=True)
    older = Key(OLD.subject, "89ef")
    for age, key in enumerate([OLD, older, Key(f"{OLD.subject}.more", "aa")]):
        cache.put(key, RECORD)
        os.utime(tmp_path / f"{key}.json", (1000 - age, 1000 - age))
    assert cache.find(NEW) == (OLD, RECORD)
    cache.put(NEW, Record("failed", 1.0, note="why"))
    assert cache.find(NEW) == (NEW, Record("failed", 1.0, note="why"))


def test_names_are_fit_for_files(tmp_path: Path) -> None:
    key = Key("cpu-a/b c", "00")
    Cache(tmp_path).put(key, RECORD)
    assert [path.name for path in tmp_path.iterdir()] == ["cpu-a_b_c.00.json"]
    assert Cache(tmp_path).trace(key).parent == tmp_path


@pytest.mark.parametrize("text", ["", "[]", '{"outcome": "captured"}', '{"outcome": "x", "seconds": 1}'])
def test_a_broken_record_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / f"{OLD}.json").write_text(text)
    with pytest.raises(TraceError, match="delete it and capture again"):
        Cache(tmp_path).find(OLD)


def test_a_digest_is_of_content_and_names(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("1")
    before = digest(tmp_path, "text")
    (tmp_path / "notes.txt").write_text("not a source")
    assert digest(tmp_path, "text") == before
    assert digest(tmp_path, "other") != before
    file.rename(tmp_path / "b.py")
    assert digest(tmp_path, "text") != before

"""The committed corpus is what its script makes."""

from __future__ import annotations

import runpy
from pathlib import Path

FOLDER = Path(__file__).parent


def test_the_corpus_is_up_to_date() -> None:
    made = runpy.run_path(str(FOLDER / "make_corpus.py"))["corpus"]()
    kept = {path: path.read_bytes() for path in (FOLDER / "corpus").rglob("*.*")}
    assert {path.name: made[path] == kept.get(path) for path in made} == {path.name: True for path in kept}
    assert max(map(len, kept.values())) < 4096

"""The synthetic traces that benchmarks run on are traces of a training, and the same every time."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from xmem.testing.reference import attribution, pairing, trace

ROOT = Path(__file__).parents[3]


def make_trace(output: Path, *arguments: str) -> Path:
    command = [sys.executable, str(ROOT / "bench" / "make_trace.py"), "-o", str(output), *arguments]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return output


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("plain.json", ()),
        ("frames.json.gz", ("--python-functions", "0.5")),
        ("compact.json", ("--format", "compact")),
    ],
)
def test_is_a_training(name: str, arguments: tuple[str, ...], tmp_path: Path) -> None:
    read = trace.read(make_trace(tmp_path / name, "--events", "600", *arguments))
    blocks = pairing.pair(read)
    found = attribution.attribute(read, blocks, read.metadata)

    assert read.counts.total() == pytest.approx(600, rel=0.1)
    assert not read.diagnostics + pairing.pairing_diagnostics(read, blocks)
    categories = Counter(row.category.name for row in found)
    layers = sum(span.name == "aten::linear" for span in read.spans) // 3
    assert categories["GRADIENT"] == categories["ACTIVATION"] == 3 * layers
    assert categories["OPTIMIZER_STATE"] == layers
    gradients = [row for row in found if row.category.name == "GRADIENT"]
    assert all(row.forward_link >= 0 for row in gradients)
    assert {row.iteration for row in gradients} == {0, 1, 2}
    assert len({row.module for row in gradients}) == layers


def test_the_words_of_2021(tmp_path: Path) -> None:
    """Without addresses a free may close another block of its size, so only the balance is certain."""
    read = trace.read(make_trace(tmp_path / "old.json", "--events", "600", "--format", "2021"))
    blocks = pairing.pair(read)
    assert not read.diagnostics + pairing.pairing_diagnostics(read, blocks)
    assert {block.address for block in blocks} == {-1}
    assert read.of_kind("annotation", "ProfilerStep#")


def test_same_arguments_same_bytes(tmp_path: Path) -> None:
    first, second = (make_trace(tmp_path / name, "--events", "500") for name in ("a.json.gz", "b.json.gz"))
    assert first.read_bytes() == second.read_bytes()
    other = make_trace(tmp_path / "c.json.gz", "--events", "500", "--seed", "1")
    assert other.read_bytes() != first.read_bytes()

"""The tree of modules and lines in JSON: FineProfiler's keys, and sums that are the estimate's."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

from xmem.estimation.analysis import Analysis
from xmem.estimation.pipeline import analyze
from xmem.reports.terminal.tree import write_tree

DELTAS = ("delta_allocated_bytes", "delta_reserved_bytes", "delta_allocated_gb", "delta_reserved_gb")


def tree_of(analysis: Analysis, **settings: Any) -> dict[str, Any]:
    file = io.BytesIO()
    count = write_tree(analysis, file, **settings)
    document: dict[str, Any] = json.loads(file.getvalue())
    assert len(list(walk(document))) == count + 1
    return document


def walk(module: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield module
    for child in module["children"]:
        yield from walk(child)


def test_every_module_has_the_keys_and_sums_of_its_children(analysis: Analysis) -> None:
    root = tree_of(analysis)
    assert root["schema_version"] == 1
    assert root["peak_bytes"] == root["peak_allocated_bytes"] == analysis.estimate.peak_allocated_bytes
    for module in walk(root):
        assert {"name", "children", "forward", "backward", *DELTAS} <= set(module)
        assert module["peak_bytes"] == sum(module["peak_bytes_by_category"].values())
        assert module["peak_bytes"] >= sum(child["peak_bytes"] for child in module["children"])
        for key in ("delta_allocated_bytes", "delta_reserved_bytes"):
            assert module[key] == module["forward"][key] + module["backward"][key]
        assert module["delta_allocated_gb"] == module["delta_allocated_bytes"] / 2**30
    assert root["peak_bytes"] == sum(child["peak_bytes"] for child in root["children"])


def test_named_tensors_are_those_of_the_model(predicted: Analysis) -> None:
    modules = {module["path"]: module for module in walk(tree_of(predicted))}
    tensors = modules["Net.fc"]["tensor_bytes_by_category"]
    assert tensors["parameter"] == (4 << 20) + 1024
    assert modules[""]["tensor_bytes_by_category"] == tensors


def test_lines_have_file_line_and_function(predicted: Analysis) -> None:
    lines = {(line["file"], line["line"]): line for line in tree_of(predicted)["lines"]}
    forward = lines["train.py", 7]
    assert (forward["function"], forward["text"]) == ("Net.forward", "y = self.fc(x)")
    assert set(DELTAS) <= set(forward)
    by_line = predicted.estimate.breakdown.source_line
    assert forward["peak_bytes"] == by_line["train.py:7"]


def test_what_is_not_known_of_a_changed_script_is_null(trace: Any) -> None:
    root = tree_of(analyze(trace, what_if=["zero_grad=after_step"]))
    assert root["forward"]["delta_allocated_bytes"] is None
    assert root["delta_allocated_gb"] is None
    assert root["peak_bytes"] > 0

"""Graphs of stacks: speedscope's file format and folded stacks; what they weigh is the peak."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

from xmem.estimation.analysis import Analysis
from xmem.estimation.estimate import SMALLER_PATHS, Estimate, PathBytes
from xmem.reports.profiles.folded_stacks import write_folded_stacks
from xmem.reports.profiles.speedscope import write_speedscope


def speedscope(source: Analysis | Estimate) -> dict[str, Any]:
    file = io.BytesIO()
    write_speedscope(source, file)
    document: dict[str, Any] = json.loads(file.getvalue())
    return document


def stacks(document: dict[str, Any], profile: int) -> list[list[str]]:
    names = [frame["name"] for frame in document["shared"]["frames"]]
    return [[names[frame] for frame in sample] for sample in document["profiles"][profile]["samples"]]


def test_speedscope_has_what_its_schema_requires(analysis: Analysis) -> None:
    document = speedscope(analysis)
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = document["shared"]["frames"]
    assert all(set(frame) <= {"name", "file", "line"} and frame["name"] for frame in frames)
    assert len({json.dumps(frame) for frame in frames}) == len(frames)
    for profile in document["profiles"]:
        assert (profile["type"], profile["unit"], profile["startValue"]) == ("sampled", "bytes", 0)
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] == sum(profile["weights"]) == analysis.estimate.peak_allocated_bytes
        assert all(0 <= frame < len(frames) for sample in profile["samples"] for frame in sample)


def test_speedscope_sums_to_the_breakdown(analysis: Analysis) -> None:
    document = speedscope(analysis)
    by_category: dict[str, int] = {}
    for stack, weight in zip(stacks(document, 0), document["profiles"][0]["weights"], strict=True):
        by_category[stack[0]] = by_category.get(stack[0], 0) + weight
    assert sum(by_category.values()) == analysis.estimate.peak_allocated_bytes
    rounded = {
        name: size for name, size in analysis.estimate.breakdown.category.items() if name in by_category
    }
    assert all(by_category[name] >= size for name, size in rounded.items())
    by_line: dict[str, int] = {}
    for stack, weight in zip(stacks(document, 1), document["profiles"][1]["weights"], strict=True):
        by_line[stack[-2]] = by_line.get(stack[-2], 0) + weight
    assert by_line == dict(analysis.estimate.breakdown.source_line)


def test_stacks_go_from_category_to_line(predicted: Analysis) -> None:
    document = speedscope(predicted)
    assert ["activation", "Net", "fc", "aten::linear", "train.py:7"] in stacks(document, 0)
    assert ["train.py", "Net.forward", "train.py:7", "activation"] in stacks(document, 1)
    assert {"name": "train.py:7", "file": "train.py", "line": 7} in document["shared"]["frames"]


def test_folded_stacks_sum_to_the_peak(analysis: Analysis) -> None:
    file = io.BytesIO()
    count = write_folded_stacks(analysis, file)
    lines = [line.rsplit(" ", 1) for line in file.getvalue().decode().splitlines()]
    assert len(lines) == count == len({stack for stack, _ in lines})
    assert sum(int(size) for _, size in lines) == analysis.estimate.peak_allocated_bytes


def test_merged_paths_are_no_lines_that_are_not_known(predicted: Analysis) -> None:
    breakdown = predicted.estimate.breakdown
    smaller = PathBytes("activation", SMALLER_PATHS, False, SMALLER_PATHS, None, None, 512, 0, 1)
    estimate = replace(predicted.estimate, breakdown=replace(breakdown, paths=(*breakdown.paths, smaller)))
    document = speedscope(estimate)
    assert stacks(document, 0)[-1] == ["activation", "(smaller)"]
    assert stacks(document, 1)[-1] == ["(smaller)", "activation"]


def test_an_estimate_alone_has_the_same_stacks(predicted: Analysis) -> None:
    read_back = Estimate.from_json(json.loads(json.dumps(predicted.estimate.to_json())))
    of_trace, of_estimate = io.BytesIO(), io.BytesIO()
    write_folded_stacks(predicted, of_trace)
    write_folded_stacks(read_back, of_estimate)
    assert of_trace.getvalue() == of_estimate.getvalue()
    assert stacks(speedscope(read_back), 0) == stacks(speedscope(predicted), 0)

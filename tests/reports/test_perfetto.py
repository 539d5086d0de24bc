"""The run in the Trace Event Format: what its viewers require, and figures that are the estimate's."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest

from xmem.estimation.analysis import Analysis
from xmem.estimation.pipeline import analyze
from xmem.reports.profiles import perfetto
from xmem.reports.profiles.perfetto import write_perfetto

Event = dict[str, Any]


def events_of(analysis: Analysis) -> list[Event]:
    file = io.BytesIO()
    count = write_perfetto(analysis, file)
    events: list[Event] = json.loads(file.getvalue())["traceEvents"]
    assert len(events) == count
    return events


def counter(events: list[Event], name: str) -> list[Event]:
    return [event for event in events if event["ph"] == "C" and event["name"] == name]


def slices(events: list[Event], thread: str) -> list[Event]:
    (tid,) = {
        event["tid"] for event in events if event["ph"] == "M" and event["args"]["name"].startswith(thread)
    }
    return [event for event in events if event["ph"] == "X" and event["tid"] == tid]


def test_events_have_what_viewers_require(analysis: Analysis) -> None:
    events = events_of(analysis)
    assert {event["ph"] for event in events} >= {"M", "C", "X", "b", "e"}
    end_us = float(analysis.stages.requests.time_ns[-1] - analysis.stages.requests.time_ns[0]) / 1000
    for event in events:
        assert isinstance(event["pid"], int)
        assert event["ph"] == "M" or 0 <= event["ts"] <= end_us
        assert event["ph"] != "X" or event["dur"] >= 0
        assert event["ph"] != "C" or all(value >= 0 for value in event["args"].values())
    begun = [(event["cat"], event["id"], event["name"]) for event in events if event["ph"] == "b"]
    ended = [(event["cat"], event["id"], event["name"]) for event in events if event["ph"] == "e"]
    assert sorted(begun) == sorted(ended)


def test_counters_reach_the_peaks_and_categories_sum_to_them(analysis: Analysis) -> None:
    events = events_of(analysis)
    allocated = counter(events, "allocated")
    assert max(event["args"]["bytes"] for event in allocated) == analysis.estimate.peak_allocated_bytes
    reserved = max(event["args"]["bytes"] for event in counter(events, "reserved"))
    assert reserved == analysis.estimate.peak_reserved_bytes - analysis.verdict.missed_bytes
    by_category = counter(events, "by category")
    assert [event["ts"] for event in by_category] == [event["ts"] for event in allocated]
    assert [sum(event["args"].values()) for event in by_category] == [
        event["args"]["bytes"] for event in allocated
    ]


def test_a_long_run_keeps_its_peaks(predicted: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = counter(events_of(predicted), "allocated")
    monkeypatch.setattr(perfetto, "_MOST_POINTS", 12)
    shown = counter(events_of(predicted), "allocated")
    assert len(shown) <= 12 < len(whole)
    assert max(event["args"]["bytes"] for event in shown) == predicted.estimate.peak_allocated_bytes
    kept = iter(whole)
    assert all(event in kept for event in shown)


@pytest.mark.parametrize("points", [7, 100, 999])
def test_stretches_are_shown_by_their_highest(points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "_MOST_POINTS", points)
    random = np.random.default_rng(points)
    gauges = [random.integers(0, 10_000, 1000), random.integers(0, 10_000, 1000)]
    shown = perfetto._shown_requests(*gauges)
    assert len(shown) <= points
    assert shown[-1] == 999
    for gauge in gauges:
        assert gauge[shown].max() == gauge.max()


def test_slices_are_iterations_phases_and_modules(predicted: Analysis) -> None:
    events = events_of(predicted)
    assert [event["name"] for event in slices(events, "iterations")] == [
        "outside of iterations",
        "iteration 0",
        "iteration 1",
        "iteration 2",
    ]
    phases = [event["name"] for event in slices(events, "phases") if event["args"].get("iteration") == 0]
    assert phases == ["forward", "backward", "optimizer_step"]
    modules = slices(events, "modules")
    assert [event["name"] for event in modules] == ["Net.fc"] * 3
    first_ns = int(predicted.stages.requests.time_ns[0])
    assert [event["ts"] for event in modules] == [t - first_ns / 1000 for t in (20, 120, 260)]
    assert {event["dur"] for event in modules} == {10}


def test_largest_blocks_say_who_holds_them(unfolded: Analysis) -> None:
    events = events_of(unfolded)
    about = [event["args"] for event in events if event["ph"] == "b" and "args" in event]
    assert len(about) == len(unfolded.stages.workload)
    weight = about[0]
    assert (weight["bytes"], weight["module"]) == (4 << 20, "Net.fc")
    assert about[-1]["source_line"] == "layers/linear.py:3"


def test_a_changed_script_has_no_module_calls(trace: Any) -> None:
    changed = analyze(trace, what_if=["zero_grad=after_step"])
    events = events_of(changed)
    assert counter(events, "allocated")
    assert not any(event["name"] == "Net.fc" for event in events)

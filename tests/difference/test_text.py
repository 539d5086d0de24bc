"""A comparison in a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from estimate_samples import DOES_NOT_FIT, FITS, MIB
from training_sample import training
from xmem.difference import Difference, difference
from xmem.estimation.analysis import Analysis
from xmem.estimation.pipeline import analyze
from xmem.reports.difference.terminal import render
from xmem.testing.trace_builder import TraceBuilder
from xmem.trace.trace import read_trace


def analysis(trace: TraceBuilder) -> Analysis:
    return analyze(read_trace(trace.bytes("compact")))


def text(compared: Difference, width: int = 80) -> str:
    written = io.StringIO()
    render(compared, Console(file=written, width=width))
    return written.getvalue()


@pytest.mark.parametrize("width", [30, 50, 80, 200])
def test_stays_within_the_terminal(width: int) -> None:
    lines = text(difference(analysis(training(30 * MIB)), analysis(training(50 * MIB))), width).splitlines()
    assert max(map(len, lines[1:])) <= width  # the headline is one line, for those who search for it
    assert lines[0].startswith("Grew by 20.00 MiB (")


def test_no_change_is_said_in_few_lines() -> None:
    run = analysis(training())
    said = text(difference(run, run))
    assert said.startswith("Same peak: ")
    for heading in ("Why", "Modules", "Source lines", "Blocks at the peak", "The peak moved", "Note"):
        assert heading not in said


def test_a_verdict_that_changed_is_in_the_headline() -> None:
    grown = replace(DOES_NOT_FIT, device_peak_bytes=FITS.device_peak_bytes + MIB)
    assert text(difference(FITS, grown)).splitlines()[0].endswith("; it no longer fits")
    assert text(difference(grown, FITS)).splitlines()[0].endswith("; it fits now")


def test_of_commands_only_the_words_that_differ() -> None:
    after = replace(FITS, trace=replace(FITS.trace, command=(*FITS.trace.command, "--batch", "16")))
    (line,) = (line for line in text(difference(FITS, after)).splitlines() if line.startswith("command"))
    assert line.split() == ["command", "...", "...", "--batch", "16"]


def test_a_trace_of_a_gpu_beside_one_of_the_cpu() -> None:
    on_gpu = TraceBuilder().alloc(0x1, 4 * MIB, 1, device_type=1, device_index=0)
    on_gpu.operator("aten::linear", 10, 20).alloc(0x2, 3 * MIB, 15, device_type=1, device_index=0)
    on_gpu.annotation("Optimizer.step#SGD.step", 30, 40)
    compared = difference(analysis(training()), analysis(on_gpu))
    assert {(setting.before, setting.after) for setting in compared.settings if setting.name == "way"} == {
        ("CPU", "GPU")
    }
    assert any("on a CPU and the second on a GPU" in note for note in compared.notes)


@pytest.mark.parametrize(("version", "differs"), [("2.13.0", False), ("2.12.0", True), ("2.1", True)])
def test_a_version_said_more_exactly_is_no_other(version: str, differs: bool) -> None:
    after = replace(FITS, target=replace(FITS.target, torch_version=version))
    assert bool(difference(FITS, after).settings) == differs

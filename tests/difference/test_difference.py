"""Two runs side by side: what changed adds up, and says where."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from estimate_samples import DOES_NOT_FIT, FITS, MIB, NO_GPU
from training_sample import training
from xmem.difference import Difference, PathChange, difference
from xmem.difference.causes import causes, factor
from xmem.difference.matched_blocks import _paired
from xmem.errors import TraceError
from xmem.estimation.analysis import Analysis
from xmem.estimation.estimate import Breakdown, Estimate
from xmem.estimation.pipeline import analyze
from xmem.testing import strategies
from xmem.testing.trace_builder import TraceBuilder
from xmem.trace.trace import read_trace

LATE_NS = 10**9
TABLES = ("category", "module", "operator", "source_line", "phase")


def analysis(batch_bytes: int = 3 * MIB, **options: str) -> Analysis:
    return analyze(read_trace(training(batch_bytes).bytes("compact")), **options)  # type: ignore[arg-type]


def changes_of(compared: Difference) -> Counter[tuple[object, ...]]:
    """The joint rows without the names that a run gives to modules and lines."""
    return Counter(
        (path.category, path.operator, path.phase, path.before_bytes, path.after_bytes)
        for path in compared.paths
    )


def assert_adds_up(compared: Difference) -> None:
    allocated = compared.size("peak_allocated")
    for table in (getattr(compared, name) for name in TABLES):
        assert not table or sum(row.change_bytes for row in table) == allocated.change_bytes
        assert not table or sum(row.after_bytes for row in table) == allocated.after_bytes
    if compared.paths:
        assert sum(path.before_bytes for path in compared.paths) == allocated.before_bytes
        assert sum(path.after_bytes for path in compared.paths) == allocated.after_bytes
    assert sum(step.change_bytes for step in compared.waterfall) == compared.size("device_peak").change_bytes


def assert_instants_are_of_the_runs(compared: Difference) -> None:
    allocated = compared.size("peak_allocated")
    for instant in compared.instants:
        assert instant.before_bytes <= allocated.before_bytes
        assert instant.after_bytes <= allocated.after_bytes
        if instant.peak_of == "before":
            assert instant.before_bytes == allocated.before_bytes
        else:
            assert instant.after_bytes == allocated.after_bytes
        assert sum(change.before_bytes for change in instant.category) == instant.before_bytes
        assert sum(change.after_bytes for change in instant.category) == instant.after_bytes


def assert_reverses(there: Difference, back: Difference) -> None:
    assert [(size.name, size.change_bytes) for size in there.sizes] == [
        (size.name, -size.change_bytes) for size in back.sizes
    ]
    for name in ("category", "operator", "phase"):
        assert {row.name: row.change_bytes for row in getattr(there, name)} == {
            row.name: -row.change_bytes for row in getattr(back, name)
        }
    assert changes_of(there) == Counter(
        {
            (category, operator, phase, before, after): count
            for (category, operator, phase, after, before), count in changes_of(back).items()
        }
    )
    assert Counter((row.before_bytes, row.after_bytes, row.blocks) for row in there.blocks) == Counter(
        (row.after_bytes, row.before_bytes, row.blocks) for row in back.blocks
    )
    assert {(name.before, name.after) for name in there.renamed} == {
        (name.after, name.before) for name in back.renamed
    }
    assert there.peak_moved == back.peak_moved


def assert_empty(compared: Difference) -> None:
    assert not compared.settings
    assert not compared.causes
    assert not compared.blocks
    assert not compared.renamed
    assert not compared.peak_moved
    assert not compared.instants
    rows = [*compared.sizes, *compared.paths, *(row for name in TABLES for row in getattr(compared, name))]
    assert not any(row.change_bytes for row in rows)


def test_a_run_does_not_differ_from_itself() -> None:
    run = analysis()
    assert_empty(difference(run, run))
    assert_empty(difference(run.estimate, run.estimate))
    assert_empty(difference(run.estimate, run))


def test_a_larger_batch() -> None:
    compared = difference(analysis(3 * MIB), analysis(5 * MIB))
    assert_adds_up(compared)
    assert_reverses(compared, difference(analysis(5 * MIB), analysis(3 * MIB)))
    assert compared.size("peak_requested").change_bytes == (5 - 3) * MIB
    changed = {path.category: path for path in compared.paths if path.change_bytes}
    activation = changed["activation"]
    assert (activation.module, activation.source_line) == ("Net.fc", "train.py:7")
    assert (activation.before_bytes, activation.after_bytes) == (3 * MIB, 5 * MIB)
    assert "+2.00 MiB activations of Net.fc (x1.67) from train.py:7" in {
        cause.text for cause in compared.causes
    }
    resized = [(change.category, change.before_bytes, change.after_bytes) for change in compared.blocks]
    assert resized == [("activation", 3 * MIB, 5 * MIB)]


def test_estimates_that_were_written_say_the_same_as_traces() -> None:
    runs = analysis(3 * MIB), analysis(5 * MIB)
    of_traces = difference(*runs)
    of_files = difference(
        *(Estimate.from_json(json.loads(json.dumps(run.estimate.to_json()))) for run in runs)
    )
    assert of_files.paths == of_traces.paths
    assert of_files.causes == of_traces.causes
    assert not of_files.blocks
    assert any("traces" in note for note in of_files.notes)


def test_estimates_without_joint_paths_are_compared_by_one_name_at_a_time() -> None:
    grown = Breakdown(
        category=FITS.breakdown.category | {"activation": 2000 * MIB},
        category_peaks={},
        module=FITS.breakdown.module | {"GPT.head": 1600 * MIB},
        operator={"aten::mm": 3600 * MIB},
        source_line={"examples/train_gpt2.py:83": 2400 * MIB, "examples/train_gpt2.py:122": 1200 * MIB},
    )
    after = replace(FITS, peak_allocated_bytes=3600 * MIB, breakdown=grown)
    compared = difference(FITS, after)
    assert not compared.paths
    assert not compared.phase
    assert compared.category[0].name == "activation"
    assert compared.module[0].name == "GPT.head"
    assert compared.source_line[0].name == "examples/train_gpt2.py:83"
    assert [cause.text for cause in compared.causes] == ["+400.00 MiB activations (x1.25)"]
    assert any("earlier version" in note for note in compared.notes)


def test_what_differs_in_the_question_comes_first() -> None:
    compared = difference(analysis(), analysis(gpu="rtx-3060", alloc_conf="expandable_segments:True"))
    settings = {setting.name: (setting.before, setting.after) for setting in compared.settings}
    assert settings["gpu"] == (None, "rtx-3060")
    assert settings["alloc_conf"] == (None, "expandable_segments:True")
    assert "way" not in settings
    assert (compared.fits_before, compared.fits_after) == (None, True)
    assert not compared.causes
    assert difference(FITS, DOES_NOT_FIT).fits_after is False
    assert "gpu" in {setting.name for setting in difference(FITS, NO_GPU).settings}


def test_json_says_every_change() -> None:
    data = difference(analysis(3 * MIB), analysis(5 * MIB)).to_json()
    assert next(iter(data)) == "schema_version"
    assert json.loads(json.dumps(data)) == data
    for table in ("sizes", "category", "paths", "causes", "blocks"):
        assert data[table]
        assert all(isinstance(row["change_bytes"], int) for row in data[table])
    with pytest.raises(TraceError):
        Estimate.from_json({**data, "schema_version": 99})


@given(strategies.builders(), strategies.builders())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_two_traces(left: TraceBuilder, right: TraceBuilder) -> None:
    for trace in (left, right):  # an estimate needs an operator and a block
        trace.operator("aten::empty", LATE_NS, LATE_NS + 9).alloc(0xABCDEF, 512, LATE_NS + 5)
    try:
        before, after = (analyze(read_trace(trace.bytes("compact"))) for trace in (left, right))
    except TraceError:
        return
    compared = difference(before, after)
    assert_adds_up(compared)
    assert_instants_are_of_the_runs(compared)
    assert_reverses(compared, difference(after, before))
    assert_empty(difference(before, before))


@given(
    st.lists(st.sampled_from([512, 1024, 2048]), max_size=8),
    st.lists(st.sampled_from([512, 1024, 2048]), max_size=8),
)
def test_blocks_of_one_path_are_paired_once_each(left: list[int], right: list[int]) -> None:
    pairs = list(_paired(np.array(left, np.int64), np.array(right, np.int64)))
    assert [old for old, _ in pairs if old is not None] == left
    assert [new for _, new in pairs if new is not None] == right
    assert (None, None) not in pairs


def test_a_block_that_went_leaves_the_others_alone() -> None:
    sizes = np.array([512, 1024, 2048], np.int64)
    assert list(_paired(sizes, sizes[1:])) == [(512, None), (1024, 1024), (2048, 2048)]
    assert list(_paired(sizes[1:], sizes)) == [(None, 512), (1024, 1024), (2048, 2048)]


def path(module: str | None, before: int, after: int, *, category: str = "activation") -> PathChange:
    return PathChange(category, module, "aten::linear", "train.py:9", "forward", before, after, 1, 1)


def test_layers_of_one_kind_are_one_cause() -> None:
    grown = [path(f"GPT.blocks.{layer}.attn", MIB, 61 * MIB) for layer in range(8)]
    same = [path("GPT.head", 100 * MIB, 100 * MIB)]
    (cause,) = causes([*grown, *same])
    assert (
        cause.text
        == "+480.00 MiB activations of GPT.blocks.*.attn (8 modules, +60.00 MiB each, x61.00) from train.py:9"
    )
    assert (cause.module, cause.modules, cause.source_lines) == ("GPT.blocks.*.attn", 8, ("train.py:9",))


def test_a_category_that_doubled_throughout_is_one_cause() -> None:
    doubled = [
        path(f"Net.{name}", size, 2 * size)
        for name, size in zip("abcdef", range(512, 3584, 512), strict=True)
    ]
    (cause,) = causes(doubled)
    assert cause.text == "+10.50 KiB activations of 6 modules, most of all Net.f (x2.00) from train.py:9"


def test_many_small_causes_are_told_less_finely() -> None:
    scattered = [
        PathChange(
            "temporary",
            f"Net.{name}",
            "aten::mm",
            f"train.py:{number}",
            "forward",
            512,
            512 * (number + 2),
            1,
            1,
        )
        for number, name in enumerate("abcdefghijklmnopqrst")
    ]
    found = causes(scattered)
    total = sum(row.change_bytes for row in scattered)
    assert sum(cause.change_bytes for cause in found) >= 0.8 * total
    assert all(abs(one.change_bytes) >= abs(two.change_bytes) for one, two in pairwise(found))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [(0, 512, "new"), (512, 0, "gone"), (0, 0, ""), (512, 1024, "x2.00"), (512, 512 * 10**4, "")],
)
def test_factor(before: int, after: int, said: str) -> None:
    assert factor(before, after) == said


def two_lines(first: int, second: int) -> Analysis:
    """Two lines at which the same happens, told apart by what they read alone; the second one's is larger."""
    trace = TraceBuilder().with_metadata(
        device_requests=1,
        iterations=1,
        lines={
            f"train.py:{first}": {"function": "step", "text": "a = net(x)"},
            f"train.py:{second}": {"function": "step", "text": "b = net(y)"},
        },
    )
    trace.iteration(0, 10, 100)
    for begin, address, size, line in ((20, 0x1, MIB, first), (40, 0x2, 3 * MIB, second)):
        trace.line("train.py", line, begin, begin + 10)
        trace.operator("aten::linear", begin + 1, begin + 9).alloc(address, size, begin + 5)
    trace.free(0x1, 61).free(0x2, 62).annotation("Optimizer.step#SGD.step", 70, 80)
    return analyze(read_trace(trace.bytes("compact")))


def test_a_line_is_known_by_what_it_reads() -> None:
    # One line was put in before both, and the file's first line now is a call of another size.
    compared = difference(two_lines(4, 7), two_lines(7, 9))
    assert {(row.before, row.after) for row in compared.renamed} == {
        ("train.py:4", "train.py:7"),
        ("train.py:7", "train.py:9"),
    }
    assert all(path.change_bytes == 0 for path in compared.paths)

"""Pairs of captures of one script, changed in a known way: the diff has to name that change and no other."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from xmem.capture import capture
from xmem.difference import Difference, difference
from xmem.estimation.analysis import Analysis
from xmem.estimation.pipeline import analyze

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.slow,
]

SCRIPT = Path(__file__).with_name("train.py").read_text(encoding="utf-8")

Captured = Callable[..., Analysis]


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """``captured("--batch", "8", script=SCRIPT)``: made at the first call."""

    @functools.cache
    def make(*arguments: str, script: str = SCRIPT) -> Analysis:
        folder = tmp_path_factory.mktemp("job")
        (folder / "train.py").write_text(script, encoding="utf-8")
        command = [sys.executable, str(folder / "train.py"), *arguments]
        capture(command, folder / "trace.json.gz", mode="real", timeout_s=120)
        return analyze(folder / "trace.json.gz")

    return make


def changed_categories(compared: Difference) -> set[str]:
    return {change.name for change in compared.category if change.change_bytes}


def line_of(text: str, script: str = SCRIPT) -> int:
    return 1 + next(index for index, line in enumerate(script.splitlines()) if text in line)


def without_folder(line: str | None) -> str | None:
    return line and line.rpartition("/")[2]


@pytest.mark.nightly
def test_twice_the_batch_doubles_activations_and_no_state(captured: Captured) -> None:
    compared = difference(captured(), captured("--batch", "8"))
    assert compared.causes[0].category == "activation"
    categories = {change.name: change for change in compared.category}
    assert categories["activation"].after_bytes >= 1.9 * categories["activation"].before_bytes
    for kept in ("parameter", "optimizer_state"):
        assert categories[kept].change_bytes == 0
    assert {setting.name for setting in compared.settings} == {"command"}
    resized = [block for block in compared.blocks if block.category == "activation"]
    assert all(block.before_bytes is not None and block.after_bytes is not None for block in resized)


def test_another_optimizer_takes_its_state_with_it(captured: Captured) -> None:
    before, after = captured(), captured("--optimizer", "SGD")
    compared = difference(before, after)
    state = before.estimate.breakdown.category["optimizer_state"]
    cause = next(cause for cause in compared.causes if cause.category == "optimizer_state")
    assert cause.change_bytes == -state
    assert cause.after_bytes == 0
    assert {without_folder(line) for line in cause.source_lines} == {
        f"train.py:{line_of('optimizer.step()')}"
    }


def test_a_deleted_name_below_new_lines_is_all_that_shows(captured: Captured) -> None:
    loss = "    loss = torch"
    edited = SCRIPT.replace('"""A small', '"""\nA small').replace(loss, f"    # A note.\n\n{loss}")
    edited = edited.replace("    optimizer.zero_grad()", "    del logits\n    optimizer.zero_grad()")
    # With this batch the logits matter to the peak, which stays where it is.
    compared = difference(captured("--batch", "32"), captured("--batch", "32", script=edited))
    assert changed_categories(compared) <= {"activation", "allocator_slack"}
    (cause,) = (cause for cause in compared.causes if cause.category == "activation")
    assert cause.module == "Model.head"
    logits_bytes = 32 * 32 * 1000 * 4
    assert cause.change_bytes == -logits_bytes
    shifts = {
        (int(name.before.rpartition(":")[2]), int(name.after.rpartition(":")[2]))
        for name in compared.renamed
        if name.kind == "source_line"
    }
    assert (line_of("loss.backward()"), line_of("loss.backward()", edited)) in shifts
    assert (line_of("self.up(x)"), line_of("self.up(x)", edited)) in shifts


def test_a_peak_that_moved_is_compared_at_both_places(captured: Captured) -> None:
    """Of many words the peak is at the logits, of few in the layers."""
    few_words = SCRIPT.replace("WIDTH, LENGTH, WORDS = 64, 32, 1000", "WIDTH, LENGTH, WORDS = 64, 32, 8")
    compared = difference(captured("--batch", "32"), captured("--batch", "32", script=few_words))
    assert compared.peak_moved
    assert compared.peak_before.module == "Model.head"
    assert (compared.peak_after.module or "").startswith("Model.blocks.")
    at_logits, in_layers = compared.instants
    assert (at_logits.peak_of, in_layers.peak_of) == ("before", "after")
    assert at_logits.before_bytes == compared.size("peak_allocated").before_bytes
    assert at_logits.after_bytes < compared.size("peak_allocated").after_bytes
    assert in_layers.before_bytes < compared.size("peak_allocated").before_bytes
    assert in_layers.after_bytes == compared.size("peak_allocated").after_bytes


def test_a_wrapper_changes_nothing(captured: Captured) -> None:
    compared = difference(captured(), captured("--wrap"))
    assert not compared.causes
    assert not compared.blocks
    renamed = {(name.before, name.after) for name in compared.renamed if name.kind == "module"}
    assert ("Model.blocks.0.up", "Wrapper.blocks.0.up") in renamed


def test_more_layers_are_new_modules(captured: Captured) -> None:
    compared = difference(captured(), captured("--layers", "4"))
    for category in ("parameter", "optimizer_state", "activation"):
        cause = next(cause for cause in compared.causes if cause.category == category)
        assert cause.module == "Model.blocks.*"
        assert cause.before_bytes == 0
    new = {change.name for change in compared.module if change.before_bytes == 0}
    assert {"Model.blocks.2.up", "Model.blocks.3.up"} <= new
    assert not any(name.startswith("Model.blocks.0") for name in new)

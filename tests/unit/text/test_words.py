"""Names of results as people read them."""

from __future__ import annotations

import pytest

from xmem.text.words import at_instant, instant, point, spaced


@pytest.mark.parametrize(
    ("name", "words"),
    [("optimizer_state", "optimizer state"), ("cudnn_workspaces", "cuDNN workspaces"), ("input", "input")],
)
def test_names_are_spaced_and_libraries_written_as_they_write_themselves(name: str, words: str) -> None:
    assert spaced(name) == words


@pytest.mark.parametrize(
    ("iteration", "phase", "words"),
    [
        (1, "zero_grad", "in iteration 1, zero grad"),
        (0, "other", "in iteration 0"),
        (-1, "other", "outside of iterations"),
    ],
)
def test_an_instant_after_a_verb(iteration: int, phase: str, words: str) -> None:
    assert at_instant(iteration, phase) == words
    assert instant(iteration, phase) == words.removeprefix("in ")


def test_a_point_of_a_model() -> None:
    assert point({"batch": 8, "sequence": 128}) == "batch=8, sequence=128"

"""Checkpointing and letting go on a run computed by hand."""

from __future__ import annotations

import pytest

from whatif.nested_sample import FIRST, GRADIENT, HEAD, RESULT, SECOND, WEIGHT, nested
from whatif.sample import linear
from xmem.errors import ConfigError, TraceError
from xmem.estimation.observation import observe
from xmem.estimation.pipeline import run_stages
from xmem.simulation.replay import RequestKind

Sequence = list[tuple[str, int]]


def requests(*changes: str, iterations: int = 1, marked: bool = True) -> Sequence:
    """Kind and size of all requests, in order."""
    trace = nested(iterations=iterations, marked=marked)
    stages = run_stages(observe(trace.bytes()).what_if(*changes))
    kinds = {int(RequestKind.ALLOC): "alloc", int(RequestKind.FREE): "free"}
    return [
        (kinds[int(kind)], int(stages.workload.size_bytes[block]))
        for kind, block in zip(stages.requests.kind, stages.requests.block, strict=True)
    ]


FORWARD = [("alloc", WEIGHT), ("alloc", FIRST), ("alloc", SECOND), ("alloc", RESULT)]
BACKWARD = [
    *[("alloc", GRADIENT), ("free", SECOND), ("alloc", WEIGHT), ("free", FIRST), ("free", GRADIENT)],
    ("free", WEIGHT),
]


def test_the_run_as_recorded() -> None:
    assert requests() == [*FORWARD, ("alloc", HEAD), ("free", HEAD), *BACKWARD]


def test_what_is_saved_is_made_again_as_far_as_it_is_saved() -> None:
    assert requests("checkpoint=Net.block") == [
        *FORWARD,
        *[("free", FIRST), ("free", SECOND)],
        *[("alloc", HEAD), ("free", HEAD)],
        *[("alloc", FIRST), ("alloc", SECOND)],  # and not the result, which nothing saves
        *BACKWARD,
    ]


def test_the_outermost_of_matches_is_checkpointed() -> None:
    # the model as a whole: what its last layer saves is its result, and stays until the backward pass begins
    whole = requests("checkpoint=Net*")
    assert whole == requests("checkpoint=Net")
    assert whole.count(("alloc", HEAD)) == 2
    assert whole.count(("alloc", FIRST)) == 2


def test_modules_that_no_capture_marked() -> None:
    by_frames = requests("checkpoint=Net_0.Block_*", marked=False)
    assert by_frames == requests("checkpoint=Net.block")


def test_checkpointing_composes() -> None:
    twice = requests("checkpoint=Net.block", "checkpoint=Net")
    assert twice.count(("alloc", SECOND)) == 3  # forward, again for the model, and again for the block
    assert requests("release=train.py:8", "checkpoint=Net.block", iterations=2) == requests(
        "checkpoint=Net.block", "release=train.py:8", iterations=2
    )


def test_a_name_is_dropped_after_the_backward_pass() -> None:
    kept, let_go = requests(iterations=2), requests("release=train.py:8", iterations=2)
    assert kept.count(("free", RESULT)) == 1
    assert let_go.count(("free", RESULT)) == 2
    assert let_go.index(("free", RESULT)) == let_go.index(("free", GRADIENT)) + 1
    assert requests("release=/job/train.py:8", iterations=2) == let_go


def test_what_ends_in_time_is_not_released() -> None:
    with pytest.raises(TraceError, match=r"no tensor made at train.py:7 is kept.*lines are: /job/train.py:8"):
        requests("release=train.py:7")


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(TraceError, match=r"no module 'Net.blocks'; its modules are Net, Net.block"):
        requests("checkpoint=Net.blocks")


def test_a_trace_without_modules() -> None:
    trace = linear()
    trace.events = [event for event in trace.events if event["name"] != "Net"]
    with pytest.raises(TraceError, match="has no module calls"):
        run_stages(observe(trace.bytes()).what_if("checkpoint=Net"))


def test_a_loss_without_a_cross_entropy_is_not_cut() -> None:
    with pytest.raises(TraceError, match="no backward pass begins with a cross entropy"):
        requests("chunk_loss=4")


@pytest.mark.parametrize("change", ["checkpoint=Net.block", "release=train.py:8", "chunk_loss=2"])
def test_nothing_follows_accumulation(change: str) -> None:
    with pytest.raises(ConfigError, match="first, then accumulate"):
        requests("accumulate=2", change, iterations=2)

"""Tapes of optimizer steps, made by group and played as columns: as if written parameter by parameter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xmem.orchestration.optimizer import optimizer_temporaries
from xmem.orchestration.optimizer.optimizer_steps import ALGORITHMS, FOREACH, Parameter, Step
from xmem.orchestration.rewriting import Rewriting, Stretch
from xmem.orchestration.tape import Allocations, Tape
from xmem.run.workload import made_by_policy
from xmem.trace.attribution import Category, Phase
from xmem.trace.blocks import NEVER

NAMES = sorted(name for name, each in ALGORITHMS.items() if each.implementations[0] == FOREACH)
SIZES = st.lists(st.sampled_from((0, 4, 512, 2048, 1 << 20)), min_size=1, max_size=5)


@dataclass(frozen=True)
class Written:
    """A step of some groups, with the tape that the algorithm writes when all groups share one."""

    name: str
    groups: tuple[tuple[int, ...], ...]
    options: frozenset[str]
    fresh: bool

    def readable(self) -> Tape:
        tape = Tape()
        for group in self.groups:
            parameters = [Parameter(str(i), None, size, "float32", 0, -1) for i, size in enumerate(group)]
            without_state = frozenset(each.name for each in parameters) if self.fresh else frozenset()
            ALGORITHMS[self.name].step(tape, Step(parameters, without_state, FOREACH, self.options))
        return tape

    def quick(self) -> Allocations:
        return optimizer_temporaries._step_of_groups(
            self.name,
            np.array([size for group in self.groups for size in group], np.int64),
            [len(group) for group in self.groups],
            self.options,
            fresh=self.fresh,
        )


@st.composite
def written(draw: st.DrawFn) -> Written:
    name = draw(st.sampled_from(NAMES))
    options = draw(st.frozensets(st.sampled_from(("weight_decay", "momentum", "nesterov", "amsgrad"))))
    groups = draw(st.lists(SIZES, min_size=1, max_size=4))
    return Written(name, tuple(map(tuple, groups)), options, draw(st.booleans()))


@given(written())
def test_a_tape_of_groups_is_what_the_algorithm_writes(step: Written) -> None:
    for _ in range(2):  # the second time, groups are remembered
        quick, readable = step.quick(), step.readable()
        for column in ("size_bytes", "born", "died", "kept", "events"):
            assert np.array_equal(getattr(quick, column), getattr(readable, column)), column


@given(step=written(), room_ns=st.integers(0, 60), data=st.data())
def test_columns_are_what_playing_one_by_one_gives(step: Written, room_ns: int, data: st.DataObject) -> None:
    tape, begin_ns = step.readable(), 1000
    numbers = st.integers(0, max(len(tape.size_bytes) - 1, 0))
    chosen = sorted(data.draw(st.sets(numbers, max_size=3))) if tape.size_bytes else []
    recorded = {number: row for row, number in enumerate(chosen)}
    ends_ns = (
        {number: 5000 + number for number in data.draw(st.sets(numbers, max_size=3))} if tape.born else {}
    )
    states = {number: Category.OPTIMIZER_STATE for number, keeps in enumerate(tape.kept) if keeps}

    def time_ns(event: int) -> int:
        return begin_ns + (event if tape.events <= room_ns else event * room_ns // tape.events)

    expected, moved = [], {}
    for number, size_bytes in enumerate(tape.size_bytes):
        born_ns = time_ns(tape.born[number])
        if number in recorded:
            moved[recorded[number]] = born_ns
            continue
        if tape.died[number] >= 0:
            free_ns = time_ns(tape.died[number])
        else:
            free_ns = ends_ns.get(number, NEVER if tape.kept[number] else begin_ns + room_ns)
        expected.append((born_ns, free_ns, size_bytes, states.get(number, Category.TEMPORARY)))

    workload = made_by_policy(
        3, alloc_ns=np.array([1, 2, 3]), free_ns=np.array([NEVER] * 3), size_bytes=np.array([7, 8, 9])
    )
    rewriting = Rewriting(workload)
    rewriting.drop([row for row in range(3) if row not in moved])
    rewriting.play(
        tape.allocations(),
        Stretch(begin_ns, begin_ns + room_ns, Phase.OPTIMIZER_STEP, iteration=2),
        recorded=recorded,
        ends_ns=ends_ns,
        categories=states,
    )
    expected += [(at, NEVER, 7 + row, Category.TEMPORARY) for row, at in moved.items()]
    result = rewriting.finish()
    columns = (result.alloc_ns, result.free_ns, result.size_bytes, result.category)
    found = sorted(zip(*(column.tolist() for column in columns), strict=True))
    assert found == sorted(expected)
    assert set(result.iteration[result.alloc_ns >= begin_ns].tolist()) <= {2, -1}

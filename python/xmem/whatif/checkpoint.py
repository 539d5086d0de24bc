"""Activation checkpointing: tensors that a module saves for its backward pass are recomputed when needed.

This reproduces ``torch.utils.checkpoint.checkpoint(module, ..., use_reentrant=False)``: inputs and result of
the module stay; the first node of its backward pass that needs a saved tensor runs the forward pass again, as
far as the last tensor that it saves (``early_stop``).
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from xmem.errors import ConfigError
from xmem.records import dataclass
from xmem.run.workload import Workload, concatenated
from xmem.trace.attribution import Category, Phase
from xmem.trace.blocks import NEVER
from xmem.whatif.backward_nodes import BackwardNodes
from xmem.whatif.changed_run import ChangedRun, Span
from xmem.whatif.module_calls import module_calls

_PERSISTENT = (Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE)
_SHOWN_MODULES = 4


@dataclass(frozen=True)
class Checkpoint:
    """``checkpoint=MODULE``: the path of a module, or a pattern of paths such as ``GPT.blocks.*``.

    Each call of a module whose path matches is checkpointed by itself; of nested matches, the outermost.
    Blocks born in the call and freed by a node of its backward pass end with the call. Where only the call's
    own nodes kept its result (the largest block of the last operator that leaves any behind), the result
    lives until the backward pass of the call begins. An input that no node saved lives until that pass ends.
    """

    text: str
    pattern: str

    def __call__(self, run: ChangedRun) -> ChangedRun:
        """Checkpoint every call of the modules.

        Raises:
            TraceError: There is no such module, or the trace marks none.
            ConfigError: Forward passes were repeated before.
        """
        run.require_not_accumulated(self.text)
        calls = self._calls(run)
        nodes = BackwardNodes.of(run)
        owner = _owners(nodes, calls)
        free_ns = run.workload.free_ns.copy()
        again = []
        for index, call in enumerate(calls):
            found = _Recomputation.of(run.workload, nodes, call, np.flatnonzero(owner == index))
            if found is not None:
                found.shorten(free_ns)
                again.append(found)
        if not again:
            return run
        copies = [each.copy(run.workload) for each in again]
        rooms = [(each.at_ns, each.room_ns) for each in again]
        run = run.with_workload(run.workload.with_columns(free_ns=free_ns)).with_rooms(rooms)
        ahead, added = 0, []
        for each, copied in sorted(zip(again, copies, strict=True), key=lambda pair: pair[0].at_ns):
            added.append(each.placed(copied, ahead))
            ahead += each.room_ns
        return run.with_workload(concatenated([*added, run.workload]))

    def _calls(self, run: ChangedRun) -> list[Span]:
        """Return the outermost calls of matching modules in order of time."""
        events = run.recorded.trace.events
        calls = module_calls(run.recorded)
        rows = np.array([call.row for call in calls if fnmatchcase(call.path, self.pattern)], np.intp)
        if len(rows) == 0:
            known = sorted({call.path for call in calls})
            if not known:
                raise run.refusal(
                    "it has no module calls; record it with with_stack=True, or with: "
                    "xmem-fast capture -o trace.json.gz -- python train.py"
                )
            some = ", ".join(known[:_SHOWN_MODULES]) + (", ..." if len(known) > _SHOWN_MODULES else "")
            raise run.refusal(f"it has no module {self.pattern!r}; its modules are {some}")
        rows = rows[np.argsort(events.begin_ns[rows], kind="stable")]
        begins, ends = run.clock(events.begin_ns[rows]), run.clock(events.end_ns[rows])
        found: list[Span] = []
        for begin_ns, end_ns in zip(begins.tolist(), ends.tolist(), strict=True):
            if not found or begin_ns >= found[-1].end_ns:
                found.append(Span(begin_ns, end_ns))
        return found


@dataclass(frozen=True)
class _Recomputation:
    """One call of a checkpointed module, and the forward pass that its backward pass runs again.

    Attributes:
        call: The call.
        stop_ns: Where the forward pass stops when it is run again.
        at_ns: When the forward pass is run again.
        end_ns: When the last node of the call's backward pass ends.
        repeated: int64, rows of the workload that are allocated once more.
        saved: bool, whether a node of the call frees these rows.
        dropped: int64, rows that nothing keeps for the backward pass.
        dropped_ns: int64, when these rows end.
        inputs: int64, rows that live until the backward pass ends: none or one.
    """

    call: Span
    stop_ns: int
    at_ns: int
    end_ns: int
    repeated: NDArray[np.intp]
    saved: NDArray[np.bool_]
    dropped: NDArray[np.intp]
    dropped_ns: NDArray[np.int64]
    inputs: NDArray[np.intp]

    @classmethod
    def of(
        cls, workload: Workload, nodes: BackwardNodes, call: Span, own: NDArray[np.intp]
    ) -> _Recomputation | None:
        """Return the recomputation; None if the call's nodes, given by index, keep nothing that it made."""
        saving = own[nodes.saves[own] & (nodes.forward_begin_ns[own] >= 0)]
        if len(saving) == 0:
            return None
        first, after = np.searchsorted(workload.alloc_ns, [call.begin_ns, call.end_ns])
        born = np.arange(first, after)
        born = born[~np.isin(workload.category[born], _PERSISTENT)]
        freed_by = nodes.holding(workload.free_ns[born])
        saved = np.isin(freed_by, own)
        if not saved.any():
            return None
        dropped = born[saved]
        dropped_ns = _last_uses(workload, nodes, dropped, freed_by[saved], call.end_ns)
        left = ~saved & (workload.free_ns[born] >= call.end_ns)
        if not (left & (workload.category[born] != Category.WORKSPACE)).any():
            result = _result(workload, dropped)
            dropped_ns[dropped == result] = nodes.begin_ns[own[0]]
        last = saving[np.argmax(nodes.forward_begin_ns[saving])]
        inputs_only = nodes.saves_inputs[last]
        stop_ns = int(nodes.forward_begin_ns[last] if inputs_only else nodes.forward_end_ns[last])
        again = (workload.alloc_ns[born] < stop_ns) & (workload.free_ns[born] != NEVER)
        return cls(
            call=call,
            stop_ns=stop_ns,
            at_ns=int(nodes.begin_ns[saving[0]]),
            end_ns=int(nodes.end_ns[saving[-1]]),
            repeated=born[again],
            saved=saved[again],
            dropped=dropped,
            dropped_ns=dropped_ns,
            inputs=_unsaved_input(workload, nodes, call, int(first), int(after), own),
        )

    @property
    def length_ns(self) -> int:
        """Time from the beginning of the repeated forward pass to where it stops."""
        return self.stop_ns - self.call.begin_ns

    @property
    def room_ns(self) -> int:
        """Time that the recomputation takes on the run's clock."""
        return self.length_ns + len(self.repeated) + 1

    def shorten(self, free_ns: NDArray[np.int64]) -> None:
        """Set when the blocks of the call, and its input, end."""
        free_ns[self.dropped] = self.dropped_ns
        free_ns[self.inputs] = self.end_ns

    def copy(self, workload: Workload) -> Workload:
        """Return the blocks that are made again, at their old times."""
        copied = workload.select(self.repeated)
        phase = np.full(len(copied), Phase.BACKWARD, copied.phase.dtype)
        tensor = np.full(len(copied), -1, copied.tensor.dtype)
        return copied.with_columns(phase=phase, tensor=tensor)

    def placed(self, copied: Workload, ahead_ns: int) -> Workload:
        """Return the same in the room made for them; the clock is ``ahead_ns`` ahead before it."""
        at_ns = self.at_ns + ahead_ns
        offset_ns = at_ns - self.call.begin_ns
        at_stop_ns = at_ns + self.length_ns + np.arange(len(copied))
        within = np.where(copied.free_ns < self.stop_ns, copied.free_ns + offset_ns, at_stop_ns)
        saved_ns = copied.free_ns + ahead_ns + self.room_ns
        return copied.with_columns(
            alloc_ns=copied.alloc_ns + offset_ns, free_ns=np.where(self.saved, saved_ns, within)
        )


def _owners(nodes: BackwardNodes, calls: list[Span]) -> NDArray[np.intp]:
    """Return the call whose forward pass recorded each node, -1 = none.

    Nodes without a known forward operator (custom functions, accumulation of gradients) belong to the call of
    the nodes around them.
    """
    begins = np.array([call.begin_ns for call in calls], np.int64)
    ends = np.array([call.end_ns for call in calls], np.int64)
    at = np.searchsorted(begins, nodes.forward_begin_ns, side="right") - 1
    known = nodes.forward_begin_ns >= 0
    owner = np.where(known & (at >= 0) & (nodes.forward_begin_ns < ends[at]), at, -1)
    places = np.arange(len(owner))
    before = np.maximum.accumulate(np.where(known, places, -1))
    after = np.minimum.accumulate(np.where(known, places, len(owner))[::-1])[::-1]
    between = ~known & (before >= 0) & (after < len(owner))
    same = between.copy()
    same[between] = owner[before[between]] == owner[after[between]]
    owners: NDArray[np.intp] = np.where(same, owner[np.maximum(before, 0)], owner)
    return owners


def _result(workload: Workload, left: NDArray[np.intp]) -> int:
    """Return the largest block of the last operator that made one of the blocks left behind."""
    of_last = left[workload.root_operator[left] == workload.root_operator[left[-1]]]
    return int(of_last[np.argmax(workload.size_bytes[of_last])])


def _last_uses(
    workload: Workload,
    nodes: BackwardNodes,
    rows: NDArray[np.intp],
    freed_by: NDArray[np.intp],
    end_ns: int,
) -> NDArray[np.int64]:
    """Return when the forward pass frees blocks that it no longer saves.

    A value that is used on the line that made it is freed after that use; a value that other lines use has a
    name, and lives until the call ends. Statistics and masks are used by the operator that makes them.
    """
    used_ns = nodes.forward_end_ns[freed_by]
    same_line = nodes.forward_line[freed_by] == workload.source_line[rows]
    by_maker = nodes.forward_begin_ns[freed_by] <= workload.alloc_ns[rows]
    makers, maker = np.unique(workload.root_operator[rows], return_inverse=True)
    largest = np.zeros(len(makers), np.int64)
    np.maximum.at(largest, maker, workload.size_bytes[rows])
    is_side_product = by_maker & (workload.size_bytes[rows] < largest[maker])
    known = same_line & (workload.source_line[rows] >= 0) & (~by_maker | is_side_product)
    ends: NDArray[np.int64] = np.where(known, np.minimum(used_ns, end_ns), end_ns)
    return ends


def _unsaved_input(
    workload: Workload, nodes: BackwardNodes, call: Span, first: int, after: int, own: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Return the input of a call if nothing keeps it: freed after the call and before the next allocation."""
    earlier = np.flatnonzero(workload.free_ns[:first] >= call.end_ns)
    if np.isin(nodes.holding(workload.free_ns[earlier]), own).any():
        return earlier[:0]  # a node of the call has it
    next_ns = workload.alloc_ns[after] if after < len(workload) else NEVER
    mortal = ~np.isin(workload.category[earlier], (*_PERSISTENT, Category.INPUT))
    dying: NDArray[np.intp] = earlier[mortal & (workload.free_ns[earlier] < next_ns)]
    return dying[-1:]


def parse_checkpoint(text: str, value: str) -> Checkpoint:
    """Read the path of a module, or a pattern.

    Raises:
        ConfigError: The text is empty.
    """
    if not value:
        raise ConfigError(
            f"--what-if {text} has no value", "use the path of a module, such as checkpoint=GPT.blocks.*"
        )
    return Checkpoint(text, value)

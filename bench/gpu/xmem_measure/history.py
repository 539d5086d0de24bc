"""The history of an allocator: what PyTorch recorded, reduced to columns of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from xmem_measure.columns import pack

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
)
_BEGAN_AS = {"free_requested": "alloc", "free_completed": "alloc", "segment_free": "segment_alloc"}
_CODES = {action: code for code, action in enumerate(ACTIONS)}


@dataclass
class History:
    """Everything that one device's allocator did, in order.

    Attributes:
        action: Indices into ``ACTIONS``; its length where PyTorch recorded another one.
        address: Of the block or segment; of ``oom`` the free bytes of the device.
        size: Bytes: requested for blocks, whole for segments.
        stream: As PyTorch numbers it.
        time_us: Microseconds since the epoch.
        complete: Whether recording began with an empty allocator and dropped nothing.
    """

    action: list[int] = field(default_factory=list)
    address: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    time_us: list[int] = field(default_factory=list)
    complete: bool = True

    def __len__(self) -> int:
        return len(self.action)

    def append(self, action: str, address: int, size: int, stream: int, time_us: int) -> None:
        self.action.append(_CODES.get(action, len(ACTIONS)))
        self.address.append(address)
        self.size.append(size)
        self.stream.append(stream)
        self.time_us.append(time_us)

    @classmethod
    def from_trace(cls, entries: Iterable[Mapping[str, Any]], *, complete: bool) -> History:
        """From ``device_traces`` of ``torch.cuda.memory._snapshot()``."""
        history = cls(complete=complete)
        for entry in entries:
            address = entry["device_free"] if entry["action"] == "oom" else entry["addr"]
            history.append(entry["action"], address, entry["size"], entry["stream"], entry.get("time_us", -1))
        return history

    def to_json(self) -> dict[str, Any]:
        """Events, and what they are about: an event that ends a block or segment only says how many events
        ago it began, which saves a quarter of the text.
        """
        began: dict[tuple[str, int], int] = {}
        back: list[int] = []
        for row in range(len(self)):
            action = ACTIONS[self.action[row]] if self.action[row] < len(ACTIONS) else "other"
            began_as = _BEGAN_AS.get(action)
            begin = began.get((began_as, self.address[row])) if began_as else None
            same = begin is not None and (self.size[row], self.stream[row]) == (
                self.size[begin],
                self.stream[begin],
            )
            back.append(row - begin if begin is not None and same else 0)
            if action in _BEGAN_AS.values():
                began[action, self.address[row]] = row
        own = [row for row in range(len(self)) if not back[row]]
        return {
            "complete": self.complete,
            "actions": [*ACTIONS, "other"],
            "events": pack({"action": self.action, "back": back, "time_us": self.time_us}),
            "subjects": pack(
                {name: [column[row] for row in own] for name, column in self._subject_columns().items()}
            ),
        }

    def _subject_columns(self) -> dict[str, list[int]]:
        return {"address": self.address, "size": self.size, "stream": self.stream}


@dataclass(frozen=True)
class Mark:
    """A moment of a history: how many blocks had been allocated and freed."""

    allocations: int
    frees: int


def requests_between(history: History, marks: list[tuple[Mark, Mark]]) -> list[list[int]]:
    """What happened to blocks between pairs of moments, each later than the one before.

    Returns:
        For each pair the requests in order: a positive number is an allocation of that many bytes, ``-k``
        frees the k-th allocation of the same list. Blocks that were there before do not show.
    """
    alloc, freed = _CODES["alloc"], _CODES["free_completed"]
    events = [row for row in range(len(history)) if history.action[row] in (alloc, freed)]
    result = []
    for begin, end in marks:
        requests: list[int] = []
        born: dict[int, int] = {}
        for row in events[begin.allocations + begin.frees : end.allocations + end.frees]:
            address = history.address[row]
            if history.action[row] == alloc:
                requests.append(history.size[row])
                born[address] = sum(request > 0 for request in requests)
            elif address in born:
                requests.append(-born.pop(address))
        result.append(requests)
    return result

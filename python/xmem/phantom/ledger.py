"""The ledger of a phantom run: its processes, what they held, and what they called.

The layout is that of ``csrc/phantom/machine/ledger.hpp``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from xmem.errors import CaptureError
from xmem.phantom.installation import library_folder
from xmem.records import dataclass

_MAGIC = b"xmemldgr"
_VERSION = 2
_PROCESSES = 512
_DEVICES = 120
_USES = 3
_HEADER = struct.Struct("=8sIIQ")
_CARD_BYTES = 4 + 4 + 8 + 8 + 8 * _USES
_SLOT = np.dtype(
    [
        ("process", np.int32),
        ("last_call", np.int32),
        ("launches", np.int64),
        (
            "devices",
            [
                ("used_bytes", np.int64),
                ("peak_bytes", np.int64),
                ("context_bytes", np.int64),
                ("has_context", np.int64),
                ("use_bytes", np.int64, (_USES,)),
                ("managed_bytes", np.int64),
                ("managed_peak_bytes", np.int64),
                ("managed_largest_bytes", np.int64),
            ],
            (_DEVICES,),
        ),
        ("calls", np.uint32, (4096,)),
    ]
)
_SLOTS_OFFSET = _HEADER.size + _DEVICES * _CARD_BYTES


@dataclass(frozen=True)
class DeviceUse:
    """What one process held of one card.

    Attributes:
        used_bytes: Device memory at the end, in whole pages, without the context.
        peak_bytes: Peak of that memory.
        context_bytes: The size of its context, 0 if it never used the card.
    """

    used_bytes: int
    peak_bytes: int
    context_bytes: int


@dataclass(frozen=True)
class ProcessRecord:
    """What one process did.

    Attributes:
        process: Number of the process; negative for the program that it ran before an ``exec``.
        last_call: The CUDA function that it called last, None if it called none.
        launches: Kernels that it launched.
        devices: By card; only those that it used.
        calls: How often it called which function.
    """

    process: int
    last_call: str | None
    launches: int
    devices: Mapping[int, DeviceUse]
    calls: Mapping[str, int]

    def calls_of(self, fidelity: str) -> dict[str, int]:
        """Return the calls of functions of one fidelity: ``faithful``, ``approximate`` or ``refused``."""
        known = functions()
        return {name: count for name, count in self.calls.items() if known[name] == fidelity}


def create_ledger(path: Path) -> None:
    """Write an empty ledger; the file is sparse."""
    with path.open("wb") as file:
        file.write(_HEADER.pack(_MAGIC, _VERSION, _PROCESSES, _SLOT.itemsize))
        file.truncate(_SLOTS_OFFSET + _PROCESSES * _SLOT.itemsize)


def read_ledger(path: Path) -> list[ProcessRecord]:
    """Read the processes that called CUDA, in the order of their first call.

    Raises:
        CaptureError: The file is not a ledger of this version.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or _HEADER.unpack(header)[:2] != (_MAGIC, _VERSION):
        raise CaptureError(f"{path} is not a ledger of this version of xmem; run the capture again")
    slots = np.memmap(path, dtype=_SLOT, mode="r", offset=_SLOTS_OFFSET, shape=(_PROCESSES,))
    names = list(functions())
    records = []
    for slot in slots:
        if slot["process"] == 0:
            break
        records.append(_record(slot, names))
    return records


@cache
def functions() -> dict[str, str]:
    """Return all functions that the phantom exports, in the order of their numbers, and the fidelity of
    each."""
    text = (library_folder() / "phantom_functions.tsv").read_text()
    rows = (line.split("\t") for line in text.splitlines())
    return {name: fidelity for name, _library, fidelity in rows}


def _record(slot: np.void, names: list[str]) -> ProcessRecord:
    last_call = int(slot["last_call"])
    called = np.flatnonzero(slot["calls"][: len(names)])
    return ProcessRecord(
        process=int(slot["process"]),
        last_call=names[last_call] if 0 <= last_call < len(names) else None,
        launches=int(slot["launches"]),
        devices={
            card: DeviceUse(int(use["used_bytes"]), int(use["peak_bytes"]), int(use["context_bytes"]))
            for card, use in enumerate(slot["devices"])
            if use["has_context"]
        },
        calls={names[number]: int(slot["calls"][number]) for number in called},
    )

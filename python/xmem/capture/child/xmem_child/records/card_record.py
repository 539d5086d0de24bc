"""What the phantom's own books say of the run: the memory that it held on the cards, of all processes and
outside PyTorch's allocator too, and the communicators of NCCL."""

from __future__ import annotations

import ctypes
import json
from typing import Any


def cards() -> list[dict[str, int]]:
    """Return one row for each card that was used; the fields are those of
    ``csrc/phantom/machine/report.hpp``."""
    return _reported("xmem_phantom_cards")


def communicators() -> list[dict[str, Any]]:
    """Return one row for each communicator of NCCL that this process has (``CommunicatorNote`` of
    ``xmem.trace.notes``)."""
    return _reported("xmem_phantom_communicators")


def _reported(name: str) -> list[dict[str, Any]]:
    report = getattr(ctypes.CDLL(None), name)
    report.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    report.restype = ctypes.c_size_t
    room = report(None, 0) + 1
    text = ctypes.create_string_buffer(room)
    if report(text, room) >= room:  # there was more to say by the second time
        return _reported(name)
    found: list[dict[str, Any]] = json.loads(text.value)
    return found


def card_of(device: int) -> int:
    """Return the card of the machine behind a device of this process."""
    return int(ctypes.CDLL(None).xmem_phantom_card_of(ctypes.c_int(device)))

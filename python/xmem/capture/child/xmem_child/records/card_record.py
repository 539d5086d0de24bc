"""Memory that the whole run held on the phantom cards, from the phantom's own books: all processes, and
memory outside PyTorch's allocator too."""

from __future__ import annotations

import ctypes
import json
from typing import Any


def cards() -> list[dict[str, int]]:
    """Return one row for each card that was used; the fields are those of
    ``csrc/phantom/machine/report.hpp``."""
    report = ctypes.CDLL(None).xmem_phantom_cards
    report.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    report.restype = ctypes.c_size_t
    room = report(None, 0) + 1
    text = ctypes.create_string_buffer(room)
    if report(text, room) >= room:  # another process came in between
        return cards()
    found: list[dict[str, Any]] = json.loads(text.value)
    return found


def card_of(device: int) -> int:
    """Return the card of the machine behind a device of this process."""
    return int(ctypes.CDLL(None).xmem_phantom_card_of(ctypes.c_int(device)))

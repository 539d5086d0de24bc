"""What the whole run held of the phantom cards, all processes and everything outside of PyTorch's allocator
included: the phantom's own books."""

from __future__ import annotations

import ctypes
import json
from typing import Any


def cards() -> list[dict[str, int]]:
    """One row for each card that was used; the fields are those of ``csrc/phantom/machine/report.hpp``."""
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
    """The card of the machine behind a device of this process."""
    return int(ctypes.CDLL(None).xmem_phantom_card_of(ctypes.c_int(device)))

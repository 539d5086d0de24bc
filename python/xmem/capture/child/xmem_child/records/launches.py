"""What was launched on the phantom GPU: the phantom's own log (``csrc/phantom/runtime/launch_log.cpp``)."""

from __future__ import annotations

import array
import ctypes
import json
import sys
from typing import Any

import torch

_WORDS = 3  # of 64 bits: time; row of the table and thread; stream
_HALF = 1 << 32


def start() -> None:
    """Begin to write launches down."""
    ctypes.CDLL(None).xmem_phantom_log_launches(1)


def stop() -> None:
    """End it; what was written down stays."""
    ctypes.CDLL(None).xmem_phantom_log_launches(0)


def columns(base_ns: int) -> dict[str, Any]:
    """Return the launches as columns, once the log has ended (docs/trace_model.md, section 7).

    Args:
        base_ns: Start of the trace's clock on the Unix clock.
    """
    library = ctypes.CDLL(None)
    words = _rows(library)
    both = words[1::_WORDS]
    times = words[0::_WORDS]
    numbers: dict[int, int] = {}
    streams = [numbers.setdefault(stream, len(numbers)) for stream in words[2::_WORDS]]
    card = torch.cuda.get_device_properties(0)
    return {
        "gpu": card.name,
        "compute_capability": [card.major, card.minor],
        "multiprocessors": card.multi_processor_count,
        "table": json.loads(_table(library)),
        "what": [word % _HALF for word in both],
        "thread": [word // _HALF for word in both],
        "stream": streams,
        "time_ns": [time - base_ns for time in times],
        "dropped": _dropped(library),
    }


def _rows(library: ctypes.CDLL) -> array.array[int]:
    read = library.xmem_phantom_launches
    read.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    read.restype = ctypes.c_size_t
    words = array.array("Q", bytes(8 * _WORDS * read(None, 0)))
    address, length = words.buffer_info()
    read(address, length // _WORDS)
    assert sys.byteorder == "little"  # Linux on x86-64 and AArch64
    return words


def _table(library: ctypes.CDLL) -> bytes:
    read = library.xmem_phantom_launch_table
    read.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    read.restype = ctypes.c_size_t
    room = read(None, 0)
    text = ctypes.create_string_buffer(room)
    read(text, room)
    return text.raw[:room]


def _dropped(library: ctypes.CDLL) -> int:
    count = library.xmem_phantom_launches_dropped
    count.restype = ctypes.c_uint64
    return int(count())

"""Communicators of NCCL and its settings, from which the estimate counts NCCL's buffers on any GPU."""

from __future__ import annotations

import os
from typing import Any

_SETTINGS = ("NCCL_BUFFSIZE", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")


def nccl_notes(communicators: list[dict[str, Any]]) -> dict[str, Any]:
    """Return rows of communicators with the settings of this process (``NcclNotes`` of
    ``xmem.trace.notes``)."""
    return {"settings": [_setting(name) for name in _SETTINGS], "communicators": communicators}


def _setting(name: str) -> int:
    told = os.environ.get(name, "")
    return int(told) if told.isdecimal() else 0

"""Triton kernels whose inputs are known: what they write becomes known, and what they only read stays known.

Read in this order: ``program`` (the text of a kernel, read into operations), ``memory`` (what its pointers
lead to), ``arithmetic`` (what operations compute), ``interpret`` (a run on the host) and ``launches`` (which
launches are followed, and when they run).
"""

from __future__ import annotations

from .launches import follow_launches

__all__ = ["follow_launches"]

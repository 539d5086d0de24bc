"""Chooses the rank of a distributed job to trace: the one whose GPU needs the most memory decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Ranks that differ by less are alike: a second run would tell nothing new, and the verdict counts the most
# anyway.
_ALIKE = 0.005


def rank_that_needs_most(notes: Mapping[str, Any]) -> int:
    """Return the rank on the fullest card, or the traced one if its card is about as full.

    Args:
        notes: The ``phantom`` object of a trace's metadata.
    """
    peaks = {card["card"]: int(card["peak_bytes"]) for card in notes["cards"]}
    needs = {
        int(rank["rank"]): max((peaks.get(row["card"], 0) for row in rank["devices"]), default=0)
        for rank in reversed(
            notes["ranks"]
        )  # the traced one, which comes first, wins over others of its number
    }
    traced = int(notes["ranks"][0]["rank"])
    busiest = max(needs, key=lambda rank: (needs[rank], -rank))
    return busiest if needs[busiest] > needs[traced] * (1 + _ALIKE) else traced

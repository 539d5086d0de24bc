"""Experts of this rank that get more tokens than their share.

Where a router's choice is unknown, every expert gets as many tokens (``rules``), and peers send as many to
this rank as it sends to each of them. With an imbalance, the counts that peers tell this rank are larger.
What it sends itself stays even: a rank sends the tokens that it has.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .contents import Contents


class Imbalance:
    """How much more this rank gets.

    Args:
        factor: The tokens that this rank gets, over its share; 1 for as many as every other.
        contents: Knows which tensors count what is spread evenly for want of knowledge.
        assume: Takes a sentence that a reader of the estimate should know.

    Attributes:
        is_used: Whether a peer told a count.
    """

    def __init__(self, factor: float, contents: Contents, assume: Callable[[str], None]) -> None:
        self.is_used = False
        self._factor = factor
        self._contents = contents
        self._assume = assume

    def of_peers(self, sent: torch.Tensor, ranks: int) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return what turns the even counts of a peer into those that it tells this rank.

        With its own even part, all of a group's ``ranks`` together then give the factor; the most is that
        they send everything here.
        """
        if self._factor == 1 or ranks < 2 or sent.dtype.is_floating_point or not self._contents.is_even(sent):
            return lambda counts: counts
        if not self.is_used:
            self.is_used = True
            self._assume(
                f"experts of this rank get {self._factor:g} times their share of tokens (--imbalance)"
            )
        scale = (min(self._factor, ranks) * ranks - 1) / (ranks - 1)
        return lambda counts: (counts.double() * max(scale, 0.0)).round().to(counts.dtype)

    def note_unused(self) -> None:
        """Say that an imbalance changed nothing, once the run has ended."""
        if self._factor != 1 and not self.is_used:
            self._assume(
                f"--imbalance {self._factor:g} changed nothing: ranks did not tell each other how many "
                "tokens an unknown router sends; set what is read with --value"
            )

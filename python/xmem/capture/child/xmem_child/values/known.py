"""What a capture asks of the values that are known where nothing is computed, wherever that is."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from .operators import follow_this_thread
from .reads import Reads


class KnownValues:
    """Answers reads of unknown values, and tells of them.

    Args:
        reads: Where reads of unknown values are noted.
        assume: Takes a sentence that a reader of the estimate should know.
    """

    def __init__(self, reads: Reads, assume: Callable[[str], None]) -> None:
        self._reads = reads
        self._assume = assume
        self._failed: set[str] = set()

    def follow_thread(self) -> None:
        """Follow the operators of the calling thread and of the backward passes that it starts."""
        follow_this_thread()

    def not_written(self, tensor: torch.Tensor) -> None:
        """Note that a host tensor does not hold what the script expects it to hold."""
        raise NotImplementedError

    def stepped(self) -> None:
        """Note that a training step was made."""
        self._reads.stepped()

    def model_called(self) -> None:
        """Note that a model was called."""
        self._reads.model_called()

    def deciding_lines(self) -> list[str]:
        """Return the lines that made numbers or conditions of unknown values."""
        return self._reads.deciding_lines()

    def ended(self) -> None:
        """Note that the run has ended, before its assumptions are read."""

    def notes(self) -> dict[str, Any]:
        """Return what the metadata of a run on the CPU say of them."""
        return {"values": self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        """Return the reads of unknown values: see ``Reads.rows``."""
        return self._reads.rows()

    def before(self, failed: list[CodeType]) -> list[dict[str, Any]]:
        """Return the reads that may have caused an exception: see ``Reads.before``."""
        return self._reads.before(failed)

    def _kernel_failed(self, name: str, error: Exception) -> None:
        if name not in self._failed:
            self._failed.add(name)
            self._assume(
                f"the values of {name} were not followed because of a bug in xMem: {error!r}; "
                "please report it"
            )

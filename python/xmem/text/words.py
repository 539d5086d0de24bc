"""Names of results as people read them: ``optimizer_state`` is ``optimizer state``."""

from __future__ import annotations

from collections.abc import Mapping

_UPPER = {"cuda": "CUDA", "cudnn": "cuDNN", "cublas": "cuBLAS"}


def spaced(name: str) -> str:
    """Spell a category, phase, metric or part of the card in words; libraries as they write themselves."""
    return " ".join(_UPPER.get(word, word) for word in name.split("_"))


def instant(iteration: int, phase: str) -> str:
    """Return ``iteration 1, backward``; ``outside of iterations`` if the iteration is -1."""
    where = f"iteration {iteration}" if iteration >= 0 else "outside of iterations"
    return where if phase == "other" else f"{where}, {spaced(phase)}"


def at_instant(iteration: int, phase: str) -> str:
    """Return the same after a verb: ``in iteration 1, backward``."""
    return f"{'in ' if iteration >= 0 else ''}{instant(iteration, phase)}"


def point(at: Mapping[str, int]) -> str:
    """Format a point of a fitted model: ``batch=8, sequence=128``."""
    return ", ".join(f"{name}={value}" for name, value in at.items())

"""Data classes of advice."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from xmem.records import dataclass

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Advice:
    """One remedy and what it saved when it was replayed; bytes.

    Attributes:
        remedy: Name of the what-if, or ``alloc_conf``.
        what_if: Value for ``--what-if``, None for an allocator setting.
        alloc_conf: Value for ``--alloc-conf``, None for a change of the script.
        saved_bytes: Saving at the peak of reserved memory.
        saved_allocated_bytes: Saving at the peak of allocated memory; may be negative.
        peak_reserved_bytes: Peak of reserved memory with the remedy.
        peak_allocated_bytes: Peak of allocated memory with the remedy.
        device_peak_bytes: Context and reserved memory with the remedy.
        fits: Whether the job then fits, None when no device is named.
        where: ``FILE:LINE`` to change, or the path of a module where no line is known; None where there is
            none to change.
        change: The change to make there.
        cost: Cost of the change.
        in_combination: Whether the best combination includes it.
    """

    remedy: str
    what_if: str | None
    alloc_conf: str | None
    saved_bytes: int
    saved_allocated_bytes: int
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    device_peak_bytes: int
    fits: bool | None
    where: str | None
    change: str
    cost: str
    in_combination: bool = False

    @property
    def text(self) -> str:
        """The remedy as the command line spells it, without the name of the option."""
        return self.what_if or self.alloc_conf or ""


@dataclass(frozen=True)
class Combination:
    """Several remedies at once, chosen greedily: each one saves memory beside those before it; bytes.

    Attributes:
        what_if: The what-ifs in the order in which they apply.
        alloc_conf: Allocator setting, None where no setting helps any further.
        saved_bytes: Saving at the peak of reserved memory.
        saved_allocated_bytes: Saving at the peak of allocated memory.
        peak_reserved_bytes: Peak of reserved memory with all of them.
        peak_allocated_bytes: Peak of allocated memory with all of them.
        device_peak_bytes: Context and reserved memory with all of them.
        fits: Whether the job then fits, None when no device is named.
    """

    what_if: tuple[str, ...]
    alloc_conf: str | None
    saved_bytes: int
    saved_allocated_bytes: int
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    device_peak_bytes: int
    fits: bool | None


@dataclass(frozen=True)
class Advised:
    """All advice on a job.

    Attributes:
        peak_reserved_bytes: Peak of reserved memory without any of it.
        peak_allocated_bytes: Peak of allocated memory without any of it.
        device_peak_bytes: Device peak without any of it.
        fits: Whether the job fits as it is, None when no device is named.
        advice: Advice that saves memory, most bytes first.
        combination: The best combination found, None where it is no better than the first advice alone.
        tried: Number of remedies replayed.
        refused: Remedies that cannot be applied to this trace, with the reason.
        left_out: Remedies not replayed because the time was up.
    """

    peak_reserved_bytes: int
    peak_allocated_bytes: int
    device_peak_bytes: int
    fits: bool | None
    advice: tuple[Advice, ...]
    combination: Combination | None
    tried: int
    refused: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...]

    @property
    def can_fit(self) -> bool | None:
        """Whether the job fits, as it is or with advice; None when no device is named."""
        if self.fits is None:
            return None
        best = self.combination is not None and self.combination.fits is True
        return self.fits or best or any(each.fits for each in self.advice)

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``xmem-fast advise --json`` prints."""
        fields = asdict(self)
        fields["refused"] = [{"remedy": remedy, "reason": reason} for remedy, reason in self.refused]
        return {"schema_version": SCHEMA_VERSION, **fields}

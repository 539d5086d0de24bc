"""Result of a comparison of two runs; these frozen values are also the JSON contract.

The order of the fields is the order of the JSON keys. All sizes are bytes. ``before`` is the first run,
``after`` the second; a change is after minus before. Names are those of the second run if it has the thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal

from xmem.estimation.estimate import AllocatedPeak
from xmem.records import dataclass

SCHEMA_VERSION = 1


class _Sized:
    """Something with a size in both runs."""

    before_bytes: int
    after_bytes: int

    @property
    def change_bytes(self) -> int:
        """After minus before."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True)
class SizeChange(_Sized):
    """A named size."""

    name: str
    before_bytes: int
    after_bytes: int


@dataclass(frozen=True)
class Setting:
    """A setting that differs between the two runs; None where it was not given."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class PathChange(_Sized):
    """Memory that one attribution path held at the peak of each run.

    Attributes:
        category: Name in ``breakdown.category``; ``allocator_slack`` is the part beyond rounded sizes.
        module: Path of the module without the components that wrappers add.
        phase: Phase in which the blocks were born.
        before_blocks: Number of these blocks in the first run; 0 for the slack.
        after_blocks: Number of these blocks in the second run.
    """

    category: str
    module: str | None
    operator: str | None
    source_line: str | None
    phase: str
    before_bytes: int
    after_bytes: int
    before_blocks: int
    after_blocks: int


@dataclass(frozen=True)
class Cause(_Sized):
    """Paths that changed together.

    Attributes:
        category: Category of their blocks.
        module: Path with ``*`` for numbers; None for all modules or outside of them.
        modules: Number of modules of that path that changed.
        source_lines: Lines of the script that made the blocks; empty if there are too many to help.
        text: The cause in words.
    """

    category: str
    module: str | None
    modules: int
    source_lines: tuple[str, ...]
    before_bytes: int
    after_bytes: int
    text: str


@dataclass(frozen=True)
class Instant(_Sized):
    """Both runs at the place of one run's peak: the most held at a birth of the kind that raised it.

    Attributes:
        peak_of: The run whose peak this is.
        phase: Phase of the birth that raised it.
        found_by: Part of the place that the other run has too: ``path``, ``operator`` or ``phase``.
        before_bytes: Allocated bytes of the first run.
        after_bytes: Allocated bytes of the second.
        category: The allocated bytes by category.
    """

    peak_of: Literal["before", "after"]
    phase: str
    operator: str | None
    module: str | None
    source_line: str | None
    found_by: Literal["path", "operator", "phase"]
    before_bytes: int
    after_bytes: int
    category: tuple[SizeChange, ...]


@dataclass(frozen=True)
class BlockChange:
    """Blocks alive at the peaks that changed alike.

    Attributes:
        module: Path with ``*`` for numbers.
        blocks: Number of blocks.
        before_bytes: Size of each in the first run, None where it does not exist.
        after_bytes: Size of each in the second run, None where it does not exist.
    """

    category: str
    module: str | None
    operator: str | None
    source_line: str | None
    phase: str
    blocks: int
    before_bytes: int | None
    after_bytes: int | None

    @property
    def change_bytes(self) -> int:
        """Bytes that all of them add to the peak."""
        return self.blocks * ((self.after_bytes or 0) - (self.before_bytes or 0))


@dataclass(frozen=True)
class Renamed:
    """A module or source line of the first run that was found again under another name."""

    kind: Literal["module", "source_line"]
    before: str
    after: str


@dataclass(frozen=True)
class Difference:
    """The changes from one run to another, and the parts of the script that cause them.

    Attributes:
        settings: Settings that differ: GPU, allocator settings, versions, command.
        sizes: The peaks: ``device_peak``, ``context``, ``peak_reserved``, ``peak_allocated``,
            ``peak_requested``, and ``beyond_allocated``: peak reserved minus peak allocated.
        fits_before: Verdict of the first run, None where no GPU was named.
        fits_after: Verdict of the second run.
        peak_before: Place where the first run has its peak of allocated bytes.
        peak_after: Place where the second run has its peak.
        peak_moved: Whether the two are different places in the script: phase, operator or line.
        category: Bytes at the peak of allocated memory; the changes of each of these tables sum to that of
            ``peak_allocated``.
        phase: The same by phase of birth; empty where an estimate does not record it.
        paths: The same by attribution path; empty where an estimate does not have it.
        causes: The largest changes in words, most first.
        instants: Both runs at the place of each one's peak; for two traces only, and where the peak moved.
        blocks: Blocks that appeared, disappeared or were resized, most change first; for two traces only.
        renamed: Names that were aligned although they differ.
        notes: Remarks for the reader.
    """

    settings: tuple[Setting, ...]
    sizes: tuple[SizeChange, ...]
    fits_before: bool | None
    fits_after: bool | None
    peak_before: AllocatedPeak
    peak_after: AllocatedPeak
    peak_moved: bool
    category: tuple[SizeChange, ...]
    module: tuple[SizeChange, ...]
    operator: tuple[SizeChange, ...]
    source_line: tuple[SizeChange, ...]
    phase: tuple[SizeChange, ...]
    paths: tuple[PathChange, ...]
    causes: tuple[Cause, ...]
    instants: tuple[Instant, ...]
    blocks: tuple[BlockChange, ...]
    renamed: tuple[Renamed, ...]
    notes: tuple[str, ...]

    def size(self, name: str) -> SizeChange:
        """Return one of ``sizes``.

        Raises:
            KeyError: There is no such name.
        """
        return {size.name: size for size in self.sizes}[name]

    @property
    def waterfall(self) -> tuple[SizeChange, ...]:
        """Parts whose changes lead from one device peak to the other: context, memory outside of
        PyTorch, categories, the rest."""
        return (self.size("context"), self.size("outside"), *self.category, self.size("beyond_allocated"))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON contract as plain Python objects; sizes also have their ``change_bytes``."""
        plain: dict[str, Any] = _plain(self)
        return {"schema_version": SCHEMA_VERSION, **plain}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        plain = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        change = getattr(value, "change_bytes", None)
        return plain if change is None else plain | {"change_bytes": change}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value

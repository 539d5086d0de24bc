"""What a comparison of two runs says; these frozen values are also the JSON contract.

The order of the fields is the order of the JSON keys. All sizes are bytes. ``before`` is the first run,
``after`` the second; a change is after less before. Names are those of the second run where it has the thing
at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from xmem.estimate_result import Peak

SCHEMA_VERSION = 1


class _Sized:
    """Something with a size in both runs."""

    before_bytes: int
    after_bytes: int

    @property
    def change_bytes(self) -> int:
        """After less before."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True)
class SizeChange(_Sized):
    """A named size."""

    name: str
    before_bytes: int
    after_bytes: int


@dataclass(frozen=True)
class Setting:
    """Something that was asked differently of the two runs; None where it was not given."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class PathChange(_Sized):
    """What one attribution path held at the peak of each run.

    Attributes:
        category: Of ``breakdown.category``; ``allocator_slack`` is what blocks hold beyond rounded sizes.
        module: Path of the module without the components that wrappers add.
        phase: Of the birth of the blocks.
        before_blocks: How many blocks these are; 0 for the slack.
        after_blocks: Likewise.
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
        category: What their blocks hold.
        module: Path with ``*`` for numbers; None for all modules or outside of them.
        modules: How many modules of that path changed.
        source_lines: Lines of the script that made the blocks; none where there are too many to help.
        text: In words.
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
        phase: Of the birth that raised it.
        found_by: How much of the place the other run has: ``path``, ``operator`` or ``phase``.
        before_bytes: Allocated bytes of the first run.
        after_bytes: Allocated bytes of the second.
        category: These by category.
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
        blocks: How many.
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
        """What all of them add to the peak."""
        return self.blocks * ((self.after_bytes or 0) - (self.before_bytes or 0))


@dataclass(frozen=True)
class Renamed:
    """A module or source line of the first run that was found again under another name."""

    kind: Literal["module", "source_line"]
    before: str
    after: str


@dataclass(frozen=True)
class Difference:
    """What changed from one run to another, and which part of the script did it.

    Attributes:
        settings: What differs in the question: GPU, allocator settings, versions, command.
        sizes: The peaks: ``device_peak``, ``context``, ``peak_reserved``, ``peak_allocated``,
            ``peak_requested``, and ``beyond_allocated``: peak reserved less peak allocated.
        fits_before: Verdict of the first run, None where no GPU was named.
        fits_after: Of the second.
        peak_before: Where the first run has its peak of allocated bytes.
        peak_after: Where the second has.
        peak_moved: Whether that is another place of the script: phase, operator or line.
        category: Bytes at the peak of allocated memory; the changes of each of these tables sum to that of
            ``peak_allocated``.
        phase: By phase of birth; empty where an estimate does not say.
        paths: The same joint; empty where an estimate does not have it.
        causes: The largest changes in words, most first.
        instants: Both runs at the place of each one's peak; of two traces only, and where the peak moved.
        blocks: Blocks that appeared, disappeared or were resized, most change first; of two traces only.
        renamed: Names that were aligned although they differ.
        notes: What to know when reading this.
    """

    settings: tuple[Setting, ...]
    sizes: tuple[SizeChange, ...]
    fits_before: bool | None
    fits_after: bool | None
    peak_before: Peak
    peak_after: Peak
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
        """One of ``sizes``.

        Raises:
            KeyError: It has no such name.
        """
        return {size.name: size for size in self.sizes}[name]

    @property
    def waterfall(self) -> tuple[SizeChange, ...]:
        """Parts whose changes lead from one device peak to the other: context, what is outside of
        PyTorch, categories, the rest."""
        return (self.size("context"), self.size("outside"), *self.category, self.size("beyond_allocated"))

    def to_json(self) -> dict[str, Any]:
        """The JSON contract as plain Python objects; what has a change also says it, as ``change_bytes``."""
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

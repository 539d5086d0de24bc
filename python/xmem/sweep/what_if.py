"""Changes to a job that a sweep can try, by name."""

from __future__ import annotations

from collections.abc import Callable

from xmem.errors import ConfigError
from xmem.pipeline import Observation

TRANSFORMS: dict[str, Callable[[Observation], Observation]] = {}


def transform(name: str) -> Callable[[Observation], Observation]:
    """The change of that name; the empty name changes nothing.

    Raises:
        ConfigError: There is none.
    """
    if not name:
        return _unchanged
    if name not in TRANSFORMS:
        known = ", ".join(sorted(TRANSFORMS)) or "none is known; leave what_if out"
        raise ConfigError(f"what_if {name!r}", f"one of: {known}")
    return TRANSFORMS[name]


def _unchanged(observed: Observation) -> Observation:
    return observed

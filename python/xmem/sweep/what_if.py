"""Changes to a job that a sweep tries: what-ifs as the command line spells them, separated by `;`."""

from __future__ import annotations

from xmem.whatif import WhatIf, parse_whatif


def parse_changes(text: str) -> tuple[WhatIf, ...]:
    """Parse the changes of ``optimizer=sgd; accumulate=4``, in order; the empty text has none.

    Raises:
        ConfigError: There is no change of that name.
    """
    return tuple(parse_whatif(change.strip()) for change in text.split(";") if change.strip())

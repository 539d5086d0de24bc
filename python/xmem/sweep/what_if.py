"""Changes to a job that a sweep tries: what-ifs as the command line spells them, several with `;` between."""

from __future__ import annotations

from xmem.whatif import WhatIf, parse_whatif


def parse_changes(text: str) -> tuple[WhatIf, ...]:
    """The changes of ``optimizer=sgd; accumulate=4``, in this order; none of the empty text.

    Raises:
        ConfigError: There is none of that name.
    """
    return tuple(parse_whatif(change.strip()) for change in text.split(";") if change.strip())

"""What-ifs: changes of the script's optimizer, precision, checkpointing, or the tensors that it keeps.

A what-if is a pure function on a recorded run (``run.Run``), applied after the policies. ``parse_whatif``
reads it as the command line spells it; docs/commands/what_if.md describes what each covers and how it was
validated.
"""

from xmem.whatif.changed_run import ChangedRun, WhatIf

__all__ = ["ChangedRun", "WhatIf", "parse_whatif"]


def parse_whatif(text: str) -> WhatIf:
    """Read a what-if such as ``optimizer=adamw:fused``.

    Raises:
        ConfigError: There is no such what-if or no such value.
    """
    from xmem.whatif import parse  # all what-ifs, and most estimates ask for none

    return parse.parse_whatif(text)

"""What-ifs: changes of the script's optimizer, precision, checkpointing, or the tensors that it keeps.

A what-if is a pure function on a recorded run (``run.Run``), applied after the policies. ``parse_whatif``
reads it as the command line spells it; docs/commands/what_if.md describes what each covers and how it was
validated.
"""

from xmem.whatif.changed_run import ChangedRun, WhatIf
from xmem.whatif.parse import parse_whatif

__all__ = ["ChangedRun", "WhatIf", "parse_whatif"]

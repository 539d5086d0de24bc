"""What-ifs by name: ``NAME=VALUE``, as on the command line and in sweeps."""

from __future__ import annotations

from collections.abc import Callable

from xmem.errors import ConfigError
from xmem.printable import one_line
from xmem.whatif.accumulation import parse_accumulation
from xmem.whatif.changed_run import WhatIf
from xmem.whatif.checkpoint import parse_checkpoint
from xmem.whatif.chunked_loss import parse_chunked_loss
from xmem.whatif.optimizer import parse_optimizer
from xmem.whatif.precision import parse_precision
from xmem.whatif.release import parse_release
from xmem.whatif.zero_grad import parse_set_to_none, parse_zero_grad

WHAT_IFS: dict[str, Callable[[str, str], WhatIf]] = {
    "optimizer": parse_optimizer,
    "zero_grad": parse_zero_grad,
    "set_to_none": parse_set_to_none,
    "accumulate": parse_accumulation,
    "precision": parse_precision,
    "checkpoint": parse_checkpoint,
    "release": parse_release,
    "chunk_loss": parse_chunked_loss,
}
"""Parsers of the values; each receives the whole text and the value."""

_PARAMETERS = {
    "alloc_conf": "--alloc-conf",
    "gpu": "--gpu",
    "capacity": "--capacity",
    "torch": "--torch",
}


def parse_whatif(text: str) -> WhatIf:
    """Read a what-if such as ``optimizer=adamw:fused``.

    Raises:
        ConfigError: There is no such what-if or no such value.
    """
    name, equals, value = (part.strip() for part in one_line(text).partition("="))  # as in the trace
    if name in _PARAMETERS:
        raise ConfigError(
            f"--what-if {text} is a setting with an option of its own",
            f"pass {_PARAMETERS[name]} {value}".rstrip(),
        )
    if not equals or name not in WHAT_IFS:
        known = ", ".join(f"{known}=..." for known in WHAT_IFS)
        raise ConfigError(f"--what-if {text} is invalid", f"use one of {known}")
    return WHAT_IFS[name](f"{name}={value}", value)

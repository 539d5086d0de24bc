"""How far a command is recorded."""

from __future__ import annotations

from xmem.errors import ConfigError
from xmem.records import dataclass


@dataclass(frozen=True)
class Extent:
    """How far a command is recorded; scripts that never train are recorded to their end.

    Attributes:
        iterations: Optimizer steps, or what stands for them; the exact number if nothing else is asked for.
        until_steady: Go on until two iterations in a row bring no new peak; at most 64 iterations.
        with_eval: Go on until the first evaluation that follows a training step is over.
        until_end: Go on until the script ends.
        calls: Calls of outermost modules after which a script that does not train is stopped; 0: at its end.
        longest_batch: Make batches of the longest items of a data set, where their lengths can be read off.

    Raises:
        ConfigError: A number is too small.
    """

    iterations: int = 3
    until_steady: bool = False
    with_eval: bool = False
    until_end: bool = False
    calls: int = 0
    longest_batch: bool = False

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ConfigError(f"iterations={self.iterations} is too small", "use at least 1")
        if self.calls < 0:
            raise ConfigError(f"calls={self.calls} is negative", "use at least 0")

    @property
    def text(self) -> str:
        """Describe what is recorded, for people."""
        if self.until_end:
            return "the whole script"
        more = [
            *(["until the memory is steady"] if self.until_steady else []),
            *(["through the first evaluation"] if self.with_eval else []),
        ]
        return f"{self.iterations} iterations" + (f", {' and '.join(more)}" if more else "")

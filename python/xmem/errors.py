"""The exceptions of xmem: one root, few children; messages state the problem and the remedy."""

from __future__ import annotations

import os

from xmem.printable import one_line


class XmemError(Exception):
    """Base class of the exceptions that xmem raises on purpose."""


class TraceError(XmemError):
    """A trace or snapshot cannot be used.

    Attributes:
        message: What is wrong and what to do, without the position.
        path: File, or None when the bytes came from elsewhere.
        byte_offset: Offset in the uncompressed text, -1 when it does not apply.
        event_index: Index in the event array, -1 when it does not apply.
    """

    def __init__(
        self,
        message: str,
        path: str | os.PathLike[str] | None = None,
        byte_offset: int = -1,
        event_index: int = -1,
    ) -> None:
        self.message = message
        self.path = None if path is None else os.fspath(path)
        self.byte_offset = byte_offset
        self.event_index = event_index
        super().__init__(message, self.path, byte_offset, event_index)

    def __str__(self) -> str:
        where = [] if self.path is None else [one_line(self.path)]
        if self.byte_offset >= 0:
            where.append(f"byte {self.byte_offset:,}")
        if self.event_index >= 0:
            where.append(f"event {self.event_index:,}")
        return f"{', '.join(where)}: {self.message}" if where else self.message


class ConfigError(XmemError):
    """A setting is invalid.

    Attributes:
        message: What is wrong: a clause that names the setting and the value as given.
        hint: What to do; empty where the message is sufficient.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(message, hint)

    def __str__(self) -> str:
        return one_line(f"{self.message}; {self.hint}" if self.hint else self.message)


class CaptureError(XmemError):
    """The script could not be captured.

    Attributes:
        message: What happened and what to do.
        exit_status: Exit status of the script, None when it did not end by itself.
        last_output: The last lines that the script printed on stderr (else stdout).
        traceback: The last lines of the traceback of the process that failed first; empty if there is none.
    """

    def __init__(
        self, message: str, exit_status: int | None = None, last_output: str = "", traceback: str = ""
    ) -> None:
        self.message = message
        self.exit_status = exit_status
        self.last_output = last_output
        self.traceback = traceback
        super().__init__(message, exit_status, last_output, traceback)

    def __str__(self) -> str:
        if self.traceback:
            return f"{self.message}\n{self.traceback}"
        if not self.last_output:
            return self.message
        return f"{self.message}\nThe script's last output:\n{self.last_output}"


class SweepError(XmemError):
    """A sweep cannot go on: its state, its results or its workers failed; finished rows are kept."""

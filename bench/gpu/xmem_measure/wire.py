"""JSON objects, one a line, over a socket between the visit and the processes that measure."""

from __future__ import annotations

import json
import select
import socket
import time
from typing import Any


class Wire:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = b""

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    def send(self, **message: Any) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """The next message; None when there is none within the time.

        Raises:
            EOFError: The other end is gone.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            rest = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._socket], [], [], rest)[0]:
                return None
            try:
                received = self._socket.recv(1 << 20)
            except ConnectionError:
                received = b""
            if not received:
                raise EOFError
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        self._socket.close()

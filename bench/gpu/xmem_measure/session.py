"""What a run and the visit say to each other, and what the run works with."""

from __future__ import annotations

from dataclasses import dataclass

from workloads import Scale
from xmem_measure.meter import Meter
from xmem_measure.wire import Wire


@dataclass(frozen=True)
class Session:
    """A run's side of the conversation.

    Attributes:
        wire: To the visit.
        meter: The device.
        scale: How far workloads are cut down.
    """

    wire: Wire
    meter: Meter
    scale: Scale

    def start(self) -> None:
        """Say that all is prepared on the host, wait for the device to be free, and create the context.

        The visit reads the device's memory in use before and after.
        """
        self._say_and_wait("prepared")
        self.meter.open()
        self._say_and_wait("context")

    def moment(self, name: str) -> None:
        """Have the device's memory in use noted under a name; the device must be idle."""
        self._say_and_wait(name)

    def _say_and_wait(self, moment: str) -> None:
        self.wire.send(moment=moment)
        self.wire.receive()

"""The data structures of the readable allocator: a device, segments, blocks, pools."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

MIB = 1 << 20
PAGE = 2 * MIB
CHUNK = 32 * MIB
TOP_ADDRESS = 1 << 52
FIRST_ADDRESS = 0x7F0000000000
UNLIMITED = 1 << 60


def ceil_to(size: int, unit: int) -> int:
    """Return the least multiple of `unit` that is not below `size`."""
    return -(-size // unit) * unit


@dataclass
class Device:
    """Memory by the byte, addresses by the lowest gap that is long enough, or `descending`: in whole chunks
    from the top down, each of which has its rest filled by later requests.
    """

    capacity: int = UNLIMITED
    other: int = 0
    used: int = 0
    descending: bool = False
    ranges: list[tuple[int, int]] = field(default_factory=list)

    @property
    def free(self) -> int:
        """Bytes that can still be given out."""
        return self.capacity - self.other - self.used

    def take(self, size: int) -> bool:
        """Take physical memory, in whole pages."""
        if ceil_to(size, PAGE) > self.free:
            return False
        self.used += ceil_to(size, PAGE)
        return True

    def give(self, size: int) -> None:
        """Give physical memory back."""
        self.used -= ceil_to(size, PAGE)

    def reserve(self, size: int) -> int:
        """Take addresses."""
        size = ceil_to(size, PAGE)
        if self.descending:
            return self._reserve_from_top(size)
        address = FIRST_ADDRESS
        for begin, end in sorted(self.ranges):
            if address + size <= begin:
                break
            address = end
        self.ranges.append((address, address + size))
        return address

    def _reserve_from_top(self, size: int) -> int:
        taken = sorted(self.ranges, reverse=True)
        end = TOP_ADDRESS
        address = None
        for range_begin, range_end in taken:
            if end - range_end >= size:
                address = range_end
                break
            end = range_begin
        if address is None:
            address = end - ceil_to(size, CHUNK)
        self.ranges.append((address, address + size))
        return address

    def unreserve(self, address: int) -> None:
        """Give addresses back."""
        self.ranges = [r for r in self.ranges if r[0] != address]


@dataclass(eq=False)
class Block:
    """A part of a segment: allocated, waiting for other streams, free, or (expandable) unmapped."""

    address: int
    size: int
    state: str
    born: int
    requested: int = 0
    free_since: int = 0
    used_elsewhere: bool = False
    used_in_capture: bool = False


@dataclass(eq=False)
class PrivatePool:
    """Memory kept apart from all other, for CUDA graphs or a ``torch.cuda.MemPool``."""

    users: int = 0
    released: int = -1
    """When it lost its last user: the how-manieth release that was."""
    split: bool = True
    use_on_oom: bool = False


@dataclass(eq=False)
class Segment:
    """Blocks in ascending address without gaps."""

    number: int
    address: int
    size: int
    stream: int
    pool: str
    mempool: int
    expandable: bool
    blocks: list[Block]


Checkpoint = tuple[int, list[tuple[int, Block | None]]]
"""Number of a segment, and size and block of each of its pieces; None where a piece was free."""


def mapped_front(segment: Segment) -> list[Block]:
    """Return the blocks of a segment before its first unmapped byte."""
    return list(takewhile(lambda block: block.state != "unmapped", segment.blocks))

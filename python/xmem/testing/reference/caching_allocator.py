"""PyTorch's CUDA caching allocator, slowly: lists and scans, one rule after another.

Written from the description of the rules (docs/allocator_model.md), not from the core, which property tests
hold to it. Free blocks are found by scanning every block of every segment.
"""

from __future__ import annotations

from collections import defaultdict

from xmem.simulation.alloc_conf import AllocatorOptions
from xmem.testing.reference.segments import (
    MIB,
    UNLIMITED,
    Block,
    Checkpoint,
    Device,
    PrivatePool,
    Segment,
    ceil_to,
    mapped_front,
)

Event = tuple[str, int, int, int, int]
"""Action, address (of an OOM: free bytes of the device), size in bytes, stream, private pool (0: none)."""


def round_size(request: int, divisions: tuple[int, ...]) -> int:
    """Return the bytes that a request takes: a multiple of 512, or one of a few steps between powers of
    two."""
    if request < 512:
        return 512
    floor_log2 = request.bit_length() - 1
    steps = divisions[min(max(floor_log2 - 20, 0), 15)]
    if steps > 1 and request > 512 * steps:
        return ceil_to(request, 2**floor_log2 // steps)
    return ceil_to(request, 512)


class CachingAllocator:
    """The allocator of one device. `events`, `statistics` and `segments` may be read at any time."""

    def __init__(self, options: AllocatorOptions, device: Device) -> None:
        self.options = options
        self.device = device
        self.segments: list[Segment] = []
        self.events: list[Event] = []
        self.statistics: defaultdict[str, int] = defaultdict(int)
        self.pending: list[Block] = []
        self.deferred: list[Block] = []
        self.searches = 0
        self.private: defaultdict[int, PrivatePool] = defaultdict(PrivatePool)
        self.scopes: list[tuple[int, bool]] = []
        self.releases = 0
        self.segments_made = 0
        self.blocks_made = 0
        fraction = options.memory_fraction
        self.limit = None if fraction is None else int(fraction * device.capacity)
        self.max_split = UNLIMITED * 8 if options.max_split_bytes is None else options.max_split_bytes

    # Statistics.

    def change(self, name: str, pool: str, amount: int) -> None:
        """Move a gauge of all memory and that of a pool; a peak moves only upwards."""
        for scope in ("all", f"{pool}_pool"):
            self._move(f"{name}.{scope}", amount)

    def _move(self, gauge: str, amount: int) -> None:
        self.statistics[f"{gauge}.current"] += amount
        self.statistics[f"{gauge}.allocated" if amount > 0 else f"{gauge}.freed"] += abs(amount)
        self.statistics[f"{gauge}.peak"] = max(
            self.statistics[f"{gauge}.peak"], self.statistics[f"{gauge}.current"]
        )

    def gauge(self, name: str) -> int:
        """Return the current value of a gauge of all memory."""
        return self.statistics[f"{name}.all.current"]

    # Where things are.

    def segment_of(self, block: Block) -> Segment:
        """Return the segment that holds a block."""
        return next(s for s in self.segments if block in s.blocks)

    def neighbours(self, block: Block) -> tuple[Block | None, Block | None]:
        """Return the blocks before and after it in its segment."""
        blocks = self.segment_of(block).blocks
        at = blocks.index(block)
        return (blocks[at - 1] if at > 0 else None, blocks[at + 1] if at + 1 < len(blocks) else None)

    def is_split(self, block: Block) -> bool:
        """Return whether it shares its segment with another block."""
        return self.neighbours(block) != (None, None)

    def free_blocks(self, pool: str, mempool: int, stream: int | None = None) -> list[Block]:
        """Return free blocks in the order of the free set: stream, size, then the tie-break."""
        found = []
        for segment in self.segments:
            if (segment.pool, segment.mempool) != (pool, mempool) or stream not in (None, segment.stream):
                continue
            for block in segment.blocks:
                tie = {
                    "address": (block.address,),
                    "object_age": (block.born,),
                    "segment_age": (segment.number, block.address),
                }[self.options.tie_break]
                if block.state == "free":
                    found.append(((segment.stream, block.size, tie), block))
        return [block for _, block in sorted(found, key=lambda item: item[0])]

    def make_block(self, address: int, size: int, state: str) -> Block:
        """Make a new Block object; `born` is the age of the object."""
        block = Block(address, size, state, self.blocks_made)
        self.blocks_made += 1
        return block

    def make_free(self, block: Block) -> None:
        """Put a block into the free set, as of now."""
        block.state = "free"
        block.free_since = self.searches

    def cut(self, block: Block, size: int) -> Block:
        """Cut `size` bytes off the front of a block, as a new object."""
        blocks = self.segment_of(block).blocks
        front = self.make_block(block.address, size, block.state)
        front.free_since = block.free_since
        blocks.insert(blocks.index(block), front)
        block.address += size
        block.size -= size
        return front

    def join(self, block: Block) -> tuple[int, int]:
        """Join with neighbours in the same state; return how many blocks and bytes were taken over."""
        count = taken = 0
        for other in self.neighbours(block):
            if other is None or other.state != block.state:
                continue
            self.segment_of(block).blocks.remove(other)
            block.address = min(block.address, other.address)
            block.size += other.size
            count += 1
            taken += other.size
        return count, taken

    # Allocation.

    def malloc(self, request: int, stream: int, mempool: int | None = None) -> Block | None:
        """Return a block for `request` bytes, None when out of memory; from a given pool, or by scope."""
        size = round_size(request, self.options.roundup_power2_divisions)
        pool = "small" if size <= MIB else "large"
        if mempool is None and self.scopes:
            mempool, _ = self.scopes[-1] if self.options.newest_scope_first else self.scopes[0]
        mempool = mempool or 0
        block = self.search(pool, mempool, stream, size)
        if block is None:
            block = self.ask_device(pool, mempool, stream, size)
        if block is None:
            return None
        return self.take(block, request, size, pool)

    def search(self, pool: str, mempool: int, stream: int, size: int) -> Block | None:
        """Find the best fit among the free blocks of the pool and stream."""
        limited = self.limit is not None and self.options.garbage_collection_threshold > 0
        if limited and (pool, mempool) == ("large", 0):
            self.searches += 1
        fitting = [b for b in self.free_blocks(pool, mempool, stream) if b.size >= size]
        if not fitting:
            return None
        best = fitting[0]
        if self.options.expandable_segments:
            for other in fitting[1:]:
                if self.reach(other) >= self.reach(best):
                    break
                best = other
        if size < self.max_split <= best.size:
            return None
        if size >= self.max_split and best.size >= size + self.options.max_non_split_rounding_bytes:
            return None
        return best

    def reach(self, block: Block) -> int:
        """Return the size of a block together with the unmapped space right after it."""
        _, after = self.neighbours(block)
        return block.size + (after.size if after is not None and after.state == "unmapped" else 0)

    def ask_device(self, pool: str, mempool: int, stream: int, size: int) -> Block | None:
        """Get memory from the device, after giving cached memory back if needed."""
        segment_size = (
            2 * MIB
            if size <= MIB
            else self.options.large_segment_bytes
            if size < 10 * MIB
            else ceil_to(size, 2 * MIB)
        )
        self.collect_garbage()
        rejections = self.statistics["num_oom_rejections"]
        block = self.grow(pool, mempool, stream, size, segment_size)
        if self.statistics["num_oom_rejections"] > rejections:
            return None
        if mempool == 0 and not self.options.expandable_segments:
            for number in sorted(self.private):
                if block is None and self.private[number].use_on_oom:
                    block = self.search(pool, number, stream, size)
        if block is None and self.release_oversize(pool, mempool, stream, size):
            block = self.grow(pool, mempool, stream, size, segment_size)
        if block is None and not self.capturing:
            self.empty_cache()
            self.statistics["num_alloc_retries"] += 1
            block = self.grow(pool, mempool, stream, size, segment_size)
        if block is None and self.statistics["num_oom_rejections"] == rejections:
            self.statistics["num_ooms"] += 1
            self.events.append(("oom", self.device.free, size, stream, mempool))
        return block

    def grow(self, pool: str, mempool: int, stream: int, size: int, segment_size: int) -> Block | None:
        """Make one attempt to get memory from the device."""
        if self.limit is not None and self.gauge("reserved_bytes") + segment_size > self.limit:
            return None
        over = self.gauge("reserved_bytes") + segment_size > self.device.capacity
        if self.options.throw_on_cudamalloc_oom and over:
            self.statistics["num_oom_rejections"] += 1
            return None
        if self.options.expandable_segments:
            return self.grow_range(pool, mempool, stream, size)
        if not self.device.take(segment_size):
            return None
        address = self.device.reserve(segment_size)
        block = self.make_block(address, segment_size, "free")
        self.add_segment(address, segment_size, stream, pool, mempool, block)
        self.statistics["num_device_alloc"] += 1
        self.change("reserved_bytes", pool, segment_size)
        self.change("segment", pool, 1)
        if segment_size >= self.max_split:
            self._move("oversize_segments", 1)
        self.events.append(("segment_alloc", address, segment_size, stream, mempool))
        return block

    def add_segment(
        self, address: int, size: int, stream: int, pool: str, mempool: int, block: Block
    ) -> None:
        """Add a new segment that one block covers."""
        expandable = self.options.expandable_segments
        self.segments.append(
            Segment(self.segments_made, address, size, stream, pool, mempool, expandable, [block])
        )
        self.segments_made += 1

    def take(self, block: Block, request: int, size: int, pool: str, cuts: bool | None = None) -> Block:
        """Allocate the front of a block; the rest becomes free, or stays inside as slack.

        `cuts`: which of the two, if known.
        """
        expandable = self.options.expandable_segments
        was_split = self.is_split(block)
        rest = block.size - size
        split_small = rest >= 512 and (pool == "small" or expandable or self.options.sizes_with_slack)
        split_large = rest > MIB and size < self.max_split and not expandable
        if cuts is None:
            cuts = (split_small or split_large) and self.may_split(block)
        if cuts:
            front = self.cut(block, size)
            self.make_free(block)
            if not expandable:
                if was_split:
                    self.change("inactive_split_bytes", pool, -size)
                else:
                    self.change("inactive_split_bytes", pool, block.size)
                    self.change("inactive_split", pool, 1)
            block = front
        elif was_split and not expandable:
            self.change("inactive_split_bytes", pool, -block.size)
            self.change("inactive_split", pool, -1)
        block.state = "allocated"
        block.requested = request
        self.change("allocation", pool, 1)
        self.change("allocated_bytes", pool, block.size)
        self.change("active", pool, 1)
        self.change("active_bytes", pool, block.size)
        self.change("requested_bytes", pool, request)
        if block.size >= self.max_split:
            self._move("oversize_allocations", 1)
        return block

    def may_split(self, block: Block) -> bool:
        """Return whether the private pool of the block allows splitting it."""
        return self.private[self.segment_of(block).mempool].split

    # Private pools.

    def checkpoint_pool(self, number: int) -> list[Checkpoint]:
        """Record how the segments of a pool are cut, in order of creation."""
        return [
            (segment.number, [(b.size, None if b.state == "free" else b) for b in mapped_front(segment)])
            for segment in sorted(self.segments, key=lambda s: s.number)
            if segment.mempool == number
        ]

    def restore_segment(self, checkpoint: Checkpoint) -> list[Block]:
        """Allocate all pieces of a segment that is free as a whole; none if it is not."""
        number, pieces = checkpoint
        segment = next((s for s in self.segments if s.number == number), None)
        if segment is None:
            return []
        rest = segment.blocks[0]
        if rest.state != "free" or rest.size != sum(size for size, _ in pieces):
            return []
        taken = []
        for size, _ in pieces:
            block = self.take(rest, size, size, segment.pool, cuts=rest.size > size)
            taken.append(block)
            rest = segment.blocks[min(segment.blocks.index(block) + 1, len(segment.blocks) - 1)]
        return taken

    def retain_pool(self, number: int) -> None:
        """Add a user of a pool."""
        assert self.private[number].released < 0
        self.private[number].users += 1

    def begin_pool(self, number: int) -> None:
        """Send requests to the pool from here on."""
        self.retain_pool(number)
        self.scopes.append((number, self.options.every_scope_captures))

    def begin_capture(self, number: int) -> None:
        """Do the same, and begin the capture of a graph."""
        self.retain_pool(number)
        self.scopes.append((number, True))

    def end_pool(self, number: int) -> None:
        """Stop sending requests to the pool."""
        self.scopes = [scope for scope in self.scopes if scope[0] != number]

    @property
    def capturing(self) -> bool:
        """Whether caches and waiting frees are held."""
        return any(captures for _, captures in self.scopes)

    def release_pool(self, number: int) -> None:
        """Remove a user of a pool."""
        self.private[number].users -= 1
        if self.private[number].users == 0:
            self.private[number].released = self.releases
            self.releases += 1

    def empty_pool(self, number: int) -> None:
        """Give back the memory of a pool that has no users."""
        if self.private[number].released < 0:
            return
        self.statistics["num_sync_all_streams"] += 1
        self.complete_deferred()
        for block in list(self.pending):
            if self.segment_of(block).mempool == number:
                self.complete(block)
        self.release_pools([number])

    def release_pools(self, numbers: list[int]) -> None:
        """Give back what is free in these pools; forget pools of which nothing is left."""
        for number in numbers:
            for pool in ("small", "large"):
                self.release_blocks(pool, number)
            held = any(b.state != "unmapped" for s in self.segments if s.mempool == number for b in s.blocks)
            if not held:
                self.private[number].released = -1

    # Freeing.

    def record_stream(self, block: Block, stream: int) -> None:
        """Note that the block is used on another stream too."""
        if stream != self.segment_of(block).stream:
            block.used_elsewhere = True
            block.used_in_capture |= self.capturing

    def free(self, block: Block) -> None:
        """Free a block; it waits when another stream used it."""
        pool = self.segment_of(block).pool
        self.change("allocation", pool, -1)
        self.change("allocated_bytes", pool, -block.size)
        if block.size >= self.max_split:
            self._move("oversize_allocations", -1)
        if block.used_elsewhere:
            block.state = "pending"
            (self.deferred if self.capturing else self.pending).append(block)
        else:
            self.complete_free(block)

    def complete(self, block: Block) -> None:
        """Complete a free that waits: the other streams are done with the block."""
        self.pending.remove(block)
        segment = self.segment_of(block)
        self.events.append(
            ("free_completed", block.address, block.requested, segment.stream, segment.mempool)
        )
        self.complete_free(block)

    def complete_deferred(self) -> None:
        """Handle frees during a capture: uses in it ended with it, others are waited for from here on."""
        deferred, self.deferred = self.deferred, []
        for block in deferred:
            self.pending.append(block)
            if block.used_in_capture:
                self.complete(block)

    def process_events(self) -> None:
        """Complete all frees that wait, as other streams are done; nobody looks during a capture."""
        if not self.capturing:
            self.complete_deferred()
            for block in list(self.pending):
                self.complete(block)

    def complete_free(self, block: Block) -> None:
        """Join a block with its free neighbours."""
        pool = self.segment_of(block).pool
        self.change("active", pool, -1)
        self.change("active_bytes", pool, -block.size)
        self.change("requested_bytes", pool, -block.requested)
        block.state = "free"
        block.used_elsewhere = block.used_in_capture = False
        count, size = self.join(block)
        self.make_free(block)
        if self.options.expandable_segments:
            return
        split = self.is_split(block)
        self.change("inactive_split", pool, int(split) - count)
        self.change("inactive_split_bytes", pool, (block.size if split else 0) - size)

    # Giving memory back.

    def empty_cache(self) -> None:
        """Give every whole free segment back, or every whole free page of expandable ones."""
        if not self.capturing:
            self.statistics["num_sync_all_streams"] += 1
            self.process_events()
            for pool in ("large", "small"):
                self.release_blocks(pool, 0)
        released = [number for number, pool in self.private.items() if pool.released >= 0]
        self.release_pools(sorted(released, key=lambda number: self.private[number].released))

    def release_blocks(self, pool: str, mempool: int) -> None:
        """Give the whole free segments of a pool back, or the whole free pages."""
        for block in self.free_blocks(pool, mempool):
            if self.options.expandable_segments:
                self.unmap(block)
            elif not self.is_split(block):
                self.release(block)

    def release(self, block: Block) -> None:
        """Give back the segment that one free block covers."""
        segment = self.segment_of(block)
        self.segments.remove(segment)
        self.device.give(segment.size)
        self.device.unreserve(segment.address)
        self.statistics["num_device_free"] += 1
        self.change("reserved_bytes", segment.pool, -segment.size)
        self.change("segment", segment.pool, -1)
        if segment.size >= self.max_split:
            self._move("oversize_segments", -1)
        self.events.append(("segment_free", segment.address, segment.size, segment.stream, segment.mempool))

    def collect_garbage(self) -> None:
        """Give back large blocks that have been free for longer than the average, until enough is free."""
        if self.limit is None or self.options.garbage_collection_threshold <= 0:
            return
        target = self.gauge("reserved_bytes") - int(self.options.garbage_collection_threshold * self.limit)
        reclaimed = 0
        while reclaimed < target and not self.options.expandable_segments:
            whole = [b for b in self.free_blocks("large", 0) if not self.is_split(b)]
            ages = [self.searches - b.free_since for b in whole]
            if not whole:
                return
            average = sum(ages) / len(ages)
            for block, age in zip(whole, ages, strict=True):
                if age >= average:
                    reclaimed += block.size
                    self.release(block)

    def release_oversize(self, pool: str, mempool: int, stream: int, size: int) -> bool:
        """With max_split_size, give back blocks of that size or more: one that is enough, or the largest."""
        if self.options.max_split_bytes is None or self.options.expandable_segments:
            return False
        wanted = max(size, self.max_split)
        blocks = self.free_blocks(pool, mempool, stream)
        enough = [b for b in blocks if b.size >= wanted]
        if enough:
            self.release(enough[0])
            return True
        released = 0
        for block in reversed(blocks):
            if released >= wanted or block.size < self.max_split:
                break
            released += block.size
            self.release(block)
        return released >= wanted

    # Expandable segments.

    def page(self, pool: str) -> int:
        """Return the unit in which memory is mapped."""
        return 2 * MIB if pool == "small" else self.options.large_segment_bytes

    def grow_range(self, pool: str, mempool: int, stream: int, size: int) -> Block | None:
        """Map pages of a range of this pool and stream, until `size` bytes in a row are free."""
        block = self.find_space(pool, mempool, stream, size)
        if block is None:
            total = self.device.capacity
            length = ceil_to(total + total // 8, self.page(pool))
            length = min(length, (1 << 45) // self.page(pool) * self.page(pool))
            address = self.device.reserve(length)
            block = self.make_block(address, length, "unmapped")
            self.add_segment(address, length, stream, pool, mempool, block)
        if block.state == "unmapped" and not self.map(block, min(block.size, size)):
            return None
        while block.size < size:
            _, after = self.neighbours(block)
            assert after is not None
            if not self.map(after, min(size - block.size, after.size)):
                return None
            block = after
        return block

    def find_space(self, pool: str, mempool: int, stream: int, size: int) -> Block | None:
        """Find `size` bytes that are free or unmapped in a row, at the lowest unmapped block that allows
        it."""
        for segment in sorted(self.segments, key=lambda s: s.address):
            if (segment.pool, segment.mempool, segment.stream) != (pool, mempool, stream):
                continue
            for at, block in enumerate(segment.blocks):
                if block.state != "unmapped":
                    continue
                first = at - 1 if at > 0 and segment.blocks[at - 1].state == "free" else at
                room = 0
                for b in segment.blocks[first:]:
                    if b.state not in ("free", "unmapped"):
                        break
                    room += b.size
                if room >= size:
                    return segment.blocks[first]
        return None

    def map(self, block: Block, size: int) -> bool:
        """Put memory behind the first pages of an unmapped block, which joins its free neighbours."""
        segment = self.segment_of(block)
        size = ceil_to(size, self.page(segment.pool))
        if not self.device.take(size):
            return False
        if size < block.size:
            behind = self.make_block(block.address + size, block.size - size, "unmapped")
            segment.blocks.insert(segment.blocks.index(block) + 1, behind)
            block.size = size
        self.events.append(("segment_map", block.address, size, segment.stream, segment.mempool))
        self.statistics["num_device_alloc"] += 1
        self.change("reserved_bytes", segment.pool, size)
        block.state = "free"
        self.join(block)
        self.make_free(block)
        return True

    def unmap(self, block: Block) -> None:
        """Give the whole pages inside a free block back; its ragged ends stay free."""
        segment = self.segment_of(block)
        page = self.page(segment.pool)
        begin = segment.address + ceil_to(block.address - segment.address, page)
        end = segment.address + (block.address + block.size - segment.address) // page * page
        if begin >= end:
            return
        if begin > block.address:
            self.make_free(self.cut(block, begin - block.address))
        if block.address + block.size > end:
            behind = self.make_block(end, block.address + block.size - end, "free")
            segment.blocks.insert(segment.blocks.index(block) + 1, behind)
            self.make_free(behind)
            block.size = end - begin
        self.device.give(end - begin)
        self.events.append(("segment_unmap", begin, end - begin, segment.stream, segment.mempool))
        self.statistics["num_device_free"] += 1
        self.change("reserved_bytes", segment.pool, -(end - begin))
        block.state = "unmapped"
        self.join(block)
        if segment.blocks == [block]:
            self.segments.remove(segment)
            self.device.unreserve(segment.address)

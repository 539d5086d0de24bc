"""The verdict: what the card must have for a run, and whether a GPU has it. One function for everyone who
asks.

A replay shows what PyTorch's allocator holds of one GPU. The card needs more: the CUDA context, and what a
run on phantom GPUs was seen to hold beside it, such as NCCL's buffers and other processes. Where the replay
reaches less than PyTorch's own count, the need counts what it missed; where another GPU of the job was
fuller, that GPU decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xmem._core import nccl_bytes
from xmem.devices.gpus import Device
from xmem.estimation.estimate import CardPart
from xmem.records import dataclass
from xmem.run.recorded import Origin, Recorded
from xmem.simulation.alloc_conf import AllocatorOptions
from xmem.simulation.replay import Replay, Requests
from xmem.simulation.replay import replay as replay_requests
from xmem.trace.notes import CardNote, NcclNotes

# Managed memory moves to the host when the card is full; what a kernel works on has to be there. Paged
# optimizers work on two states of one parameter at a time (bitsandbytes 0.50, `Optimizer2State.update_step`).
_RESIDENT_BLOCKS = 2
_OF_NCCL = "buffers of NCCL"
_ANY_BYTES = 1 << 40  # to compare ratios by


@dataclass(frozen=True)
class Growth:
    """A quantity that was seen to be larger than another one, and is assumed to be so in the same ratio
    elsewhere.

    Attributes:
        seen_bytes: The larger quantity, as it was seen.
        instead_of_bytes: The other quantity; 0 where nothing was seen.
        both_ways: Whether it may be the smaller one: a real GPU's own count, against a replay that does not
            know how the GPU's memory was laid out when the trace began.
    """

    seen_bytes: int = 0
    instead_of_bytes: int = 0
    both_ways: bool = False

    def of(self, bytes_: int) -> int:
        """Scale ``bytes_`` of the other quantity to this one, rounded up; never less, unless both ways."""
        if self.instead_of_bytes <= 0 or self.seen_bytes <= 0:
            return bytes_
        if self.seen_bytes <= self.instead_of_bytes and not self.both_ways:
            return bytes_
        return -(-bytes_ * self.seen_bytes // self.instead_of_bytes)


@dataclass(frozen=True)
class Unreplayed:
    """Memory of the cards that the replay of a run does not show; nothing for runs that were not on phantom
    GPUs.

    Attributes:
        outside: Memory that the traced process's card held outside of PyTorch's allocator and the context,
            by name.
        allocator: PyTorch's own peak of reserved memory, instead of the replayed one.
        fullest: The peak of the fullest card of the job, instead of that of the traced one.
    """

    outside: tuple[CardPart, ...] = ()
    allocator: Growth = Growth()
    fullest: Growth = Growth()

    @property
    def outside_bytes(self) -> int:
        """Sum of ``outside``."""
        return sum(part.bytes for part in self.outside)


NOTHING = Unreplayed()


def most_unreplayed(runs: Sequence[Unreplayed]) -> Unreplayed:
    """Return the most of each over several runs of one script: the assumption for a run of another size."""
    return Unreplayed(
        outside=max((run.outside for run in runs), key=lambda parts: sum(part.bytes for part in parts)),
        allocator=max((run.allocator for run in runs), key=lambda growth: growth.of(_ANY_BYTES)),
        fullest=max((run.fullest for run in runs), key=lambda growth: growth.of(_ANY_BYTES)),
    )


@dataclass(frozen=True)
class Judged:
    """Memory that a card must have for a run.

    Attributes:
        replay: The replay for the evidence: that on the device, or the one without limit where the job does
            not fit or no device is named.
        failed: The replay on the device that ran out of memory; None where none did.
        context_bytes: CUDA context of the device.
        missed_bytes: Bytes that PyTorch's allocator reserved beyond the replay; below 0 where a real GPU
            reserved less.
        need_bytes: Memory that the card must have, including the context.
        fits: Whether the run fits, None where no device is named.
    """

    replay: Replay
    failed: Replay | None
    context_bytes: int
    unreplayed: Unreplayed
    missed_bytes: int
    need_bytes: int
    fits: bool | None

    @property
    def reserved_bytes(self) -> int:
        """The peak of reserved memory, including what the replay missed."""
        return self.replay.peak_reserved.bytes + self.missed_bytes

    @property
    def beside_bytes(self) -> int:
        """Memory that the traced card holds beside reserved memory."""
        return self.context_bytes + self.unreplayed.outside_bytes

    @property
    def taken_bytes(self) -> int:
        """Memory that is taken before a replay on the device: all that it does not allocate itself."""
        return self.beside_bytes + self.missed_bytes

    @property
    def other_card_bytes(self) -> int:
        """Bytes by which another card of the job is fuller than the traced one."""
        return self.need_bytes - self.beside_bytes - self.reserved_bytes


def judge(
    requests: Requests,
    unlimited: Replay,
    options: AllocatorOptions,
    device: Device | None,
    unreplayed: Unreplayed = NOTHING,
    *,
    explain: bool = True,
) -> Judged:
    """Replay a run on a device if it is too large without limit, and return what the card must have.

    Less memory changes the run: caches are released and requests retried before it fails.

    Args:
        requests: Requests of the run.
        unlimited: Their replay on a device without limit.
        options: Options of the allocator.
        device: The device, None for one without limit.
        unreplayed: Memory that the replay does not show.
        explain: Find out which request fails, also where none can help.
    """
    reserved_bytes = unlimited.peak_reserved.bytes
    missed_bytes = unreplayed.allocator.of(reserved_bytes) - reserved_bytes
    context_bytes = 0 if device is None else device.context_bytes
    beside_bytes = context_bytes + unreplayed.outside_bytes + missed_bytes
    limited: Replay | None = None
    hopeless = False
    if device is not None and reserved_bytes + beside_bytes > device.total_memory_bytes:
        # No cache can help where the tensors alone are too large.
        hopeless = unlimited.peak_requested.bytes + beside_bytes > device.total_memory_bytes
        if explain or not hopeless:
            total_bytes = device.total_memory_bytes
            limited = replay_requests(
                requests,
                options=options,
                capacity_bytes=total_bytes,
                other_bytes=min(max(beside_bytes, 0), total_bytes),  # others may need more than there is
            )
    failed = limited if limited is not None and limited.oom is not None else None
    ran = unlimited if limited is None or failed is not None else limited
    need_bytes = unreplayed.fullest.of(beside_bytes + ran.peak_reserved.bytes)
    fits = (
        None
        if device is None
        else failed is None and not hopeless and need_bytes <= device.total_memory_bytes
    )
    return Judged(ran, failed, context_bytes, unreplayed, missed_bytes, need_bytes, fits)


def unreplayed_of(run: Recorded, replayed: Replay) -> Unreplayed:
    """Return the memory that the replay of a run, as it was recorded, does not show.

    Args:
        run: Trace of the run.
        replayed: The replay of its requests with its own settings, without limit.
    """
    notes = run.allocator
    traced = None if notes is None else notes.busiest
    if notes is None or traced is None:
        return NOTHING
    on_gpu = run.origin in (Origin.FOREIGN_GPU, Origin.RECORDED_GPU)
    allocator = Growth(traced.peak_reserved_bytes, replayed.peak_reserved.bytes, both_ways=on_gpu)
    card = next((card for card in notes.cards if card.card == traced.card), None)
    if card is None:  # a recording, or a capture of an early version
        peaks = [row.peak_reserved_bytes for rank in notes.ranks for row in rank.devices]
        return Unreplayed(allocator=allocator, fullest=Growth(max(peaks), traced.peak_reserved_bytes))
    return Unreplayed(
        outside=_outside(card, traced.peak_reserved_bytes),
        allocator=allocator,
        fullest=Growth(max(map(_full_bytes, notes.cards)), _full_bytes(card)),
    )


def with_nccl(unreplayed: Unreplayed, notes: NcclNotes, device: Device | None) -> Unreplayed:
    """Count NCCL's buffers on a device: what they take there in place of what they took, which on the CPU is
    nothing and on a phantom GPU what NCCL takes on such a card."""
    if device is None or device.compute_capability is None or not notes.communicators:
        return unreplayed
    major, minor = device.compute_capability
    buffer_bytes, least, most = notes.settings
    total_bytes = sum(
        nccl_bytes(
            10 * major + minor,
            device.full_name,
            (buffer_bytes, least, most),
            made.ranks,
            made.here,
            made.ring,
            made.tree,
            made.near_peers,
            made.far_peers,
        )
        for made in notes.communicators
    )
    seen_bytes = sum(part.bytes for part in unreplayed.outside if part.name == "nccl")
    taken_bytes = sum(made.taken_bytes for made in notes.communicators)
    here_bytes = max(seen_bytes - taken_bytes + total_bytes, 0)
    if here_bytes == seen_bytes:
        return unreplayed
    others = (part for part in unreplayed.outside if part.name != "nccl")
    return replace(unreplayed, outside=(CardPart("nccl", here_bytes, _OF_NCCL), *others))


def _full_bytes(card: CardNote) -> int:
    return card.peak_bytes + _resident_bytes(card)


def _resident_bytes(card: CardNote) -> int:
    """Return the managed memory that has to be on the card, whatever else is."""
    return min(card.managed_bytes, _RESIDENT_BLOCKS * card.managed_largest_bytes)


def _outside(card: CardNote, reserved_bytes: int) -> tuple[CardPart, ...]:
    """Return what a card held at its peak, beside the context and reserved memory of the traced process."""
    contexts = max(card.contexts, 1)
    context_bytes = card.context_bytes // contexts
    rest_bytes = max(card.peak_bytes - context_bytes - reserved_bytes, 0)
    parts = []
    for name, bytes_, words in (
        ("nccl", card.nccl_bytes, _OF_NCCL),
        ("libraries", card.library_bytes, "work areas that libraries such as cuFFT allocate"),
        (
            "other_processes" if contexts > 1 else "other",
            rest_bytes,
            f"{contexts - 1} other processes on the same GPU, with their contexts"
            if contexts > 1
            else "allocated past PyTorch's allocator",
        ),
    ):
        taken = min(bytes_, rest_bytes)
        rest_bytes -= taken
        parts.append(CardPart(name, taken, words))
    words = "managed memory that a kernel works on; the rest may move to the host"
    parts.append(CardPart("managed", _resident_bytes(card), words))
    return tuple(part for part in parts if part.bytes)

"""What a run on a phantom GPU freed as soon as the GPU was done with it, which depends on a card's speed."""

from __future__ import annotations

from collections.abc import Iterator

from xmem.run.recorded import Recorded
from xmem.simulation.alloc_conf import release_of
from xmem.text.units import format_bytes
from xmem.trace.notes import PhantomNotes

_NOTABLE_SHARE = 0.01  # of the reserved peak
# From this release on, DDP's first buckets stay until NCCL's watchdog lets go of them.
_FIRST_THAT_HOLDS_BUCKETS = (2, 7)
_BUCKET = "DistributedDataParallel.bucket"


def notes_on_gpu_speed(context: Recorded, phantom: PhantomNotes) -> Iterator[str]:
    """Describe what a GPU of another speed frees at another time.

    Args:
        context: A run on a phantom GPU.
        phantom: What it noted.
    """
    if phantom.behind:
        yield (
            "the phantom GPU was as far behind the script as a GPU can be: what other streams and "
            "collectives use was freed as late as possible"
        )
        return
    notable_bytes = _NOTABLE_SHARE * (phantom.busiest.peak_reserved_bytes if phantom.busiest else 0)
    # A free that completed at the very next request did not wait as far as the history tells; the call shows.
    calls = int(context.operators.rows_named({"aten::record_stream"}).sum())
    blocks, waited_bytes = _freed_at_once(context, phantom)
    if calls or waited_bytes > notable_bytes:
        how = f"{calls} x record_stream" if calls else f"{blocks} blocks, {format_bytes(waited_bytes)} in all"
        yield (
            f"memory is used by more streams than its own ({how}), and was free as soon as the script let go "
            "of it; a GPU that is behind the script frees it later, which may take more memory; run with "
            "--behind to see how much"
        )
    unwaited_bytes = phantom.unwaited_bytes // max(context.notes.iterations, 1)
    if unwaited_bytes > notable_bytes:
        yield (
            f"the script does not wait for collectives that use {format_bytes(unwaited_bytes)} in an "
            "iteration; PyTorch frees their tensors up to 100 ms after the GPU is done with them, which is "
            "taken to be during the next iteration; shorter iterations may hold more at once; run with "
            "--behind for about the most"
        )
    first_bytes = _first_buckets_bytes(context)
    if first_bytes > notable_bytes:
        yield (
            f"DDP's first buckets of {format_bytes(first_bytes)} went before the second iteration, as on a "
            "GPU whose iterations take 100 ms or more; with shorter ones they stay until the third; run with "
            "--behind for the memory that it takes then"
        )


def _freed_at_once(context: Recorded, phantom: PhantomNotes) -> tuple[int, int]:
    """Return number and bytes of the blocks whose free waited for other streams."""
    sizes = [
        requests.size_bytes[row]
        for requests in phantom.requests
        if requests.device == context.traced_device[1]
        for row in requests.waits
    ]
    return len(sizes), sum(sizes)


def _first_buckets_bytes(context: Recorded) -> int:
    """Return the bytes of DDP's buckets before it made others, 0 for releases that free them at once."""
    version, tensors = context.notes.torch_version, context.notes.tensors
    if version is None or release_of(version) < _FIRST_THAT_HOLDS_BUCKETS:
        return 0
    first: dict[str, int] = {}
    for name, size_bytes in zip(tensors.name, tensors.size_bytes, strict=True):
        if name.startswith(_BUCKET):
            if name in first:  # made anew in the second iteration
                break
            first[name] = size_bytes
    return sum(first.values())

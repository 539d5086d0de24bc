"""The largest batch that fits a GPU, without touching one, and the accumulation that goes with it."""

from xmem.batch_size.find import BatchSize, find_batch_size
from xmem.batch_size.own_script import find_own_batch_size

__all__ = ["BatchSize", "find_batch_size", "find_own_batch_size"]

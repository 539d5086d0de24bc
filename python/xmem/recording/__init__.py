"""Recording of a block of the user's own process: a context manager, a decorator, an IPython magic.

Torch is known only to ``xmem.capture.child``, which is imported when a recording begins.
"""

from xmem.recording.recorder import Recorder, record
from xmem.recording.tracker import memory_tracker

__all__ = ["Recorder", "memory_tracker", "record"]

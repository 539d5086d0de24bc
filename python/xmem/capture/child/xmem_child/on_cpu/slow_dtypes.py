"""Says once that the CPU has no instructions for the dtype of the computation: such runs seem to hang."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import torch

from ..watching.modules import RootObserver

_SUPPORT = {torch.float16: "_is_mkldnn_fp16_supported", torch.bfloat16: "_is_mkldnn_bf16_supported"}


class SlowDtypes:
    """Looks at the dtype in which each outermost module is called, and passes on the calls.

    Args:
        observer: Gets the calls passed on.
        assume: Takes a sentence that the result should state.
    """

    def __init__(self, observer: RootObserver, assume: Callable[[str], None]) -> None:
        self._observer = observer
        self._assume = assume
        self._warned: set[torch.dtype] = set()

    def root_called(self, module: torch.nn.Module, name: str) -> None:
        """See ``modules.RootObserver``."""
        for dtype in set(_dtypes(module)) - self._warned:
            if dtype in _SUPPORT and not _is_fast(dtype):
                self._warned.add(dtype)
                _warn(str(dtype).removeprefix("torch."), self._assume)
        self._observer.root_called(module, name)

    def root_left(self, module: torch.nn.Module) -> None:
        """See ``modules.RootObserver``."""
        self._observer.root_left(module)


def _dtypes(module: torch.nn.Module) -> Iterator[torch.dtype]:
    if torch.is_autocast_enabled("cuda"):
        yield torch.get_autocast_dtype("cuda")
    else:
        first = next(module.parameters(), None)
        if first is not None:
            yield first.dtype


def _is_fast(dtype: torch.dtype) -> bool:
    """Return whether oneDNN has kernels of this dtype for this CPU (``torch.ops.mkldnn``, 2.6 to 2.13)."""
    try:
        return bool(getattr(torch.ops.mkldnn, _SUPPORT[dtype])())
    except (AttributeError, RuntimeError):
        return False


def _warn(dtype: str, assume: Callable[[str], None]) -> None:
    print(
        f"xmem-fast: the script computes in {dtype}, for which this CPU has no fast instructions: "
        "it may take minutes for what takes seconds in float32. "
        "Use a smaller batch, or a CUDA build of torch with --mode phantom, which computes nothing",
        file=sys.stderr,
        flush=True,
    )
    assume(f"the script computed in {dtype}, which is slow on this CPU")

"""Kernels that only a GPU runs: operators of libraries without one for the CPU, and launches of Triton.

Upstream: ``torch.library`` of torch 2.6 to 2.13; ``triton.runtime`` of Triton 3.2 to 3.7.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.library import Library

from ...following_imports import after_import
from ...values.operators import unfollowed
from .contents import FakeContents
from .operators import FakeOperator, Maker, tensors_in
from .results import NoResultError

_TRITON_NOTE = "kernels of Triton were not launched, so what they write is unknown"
_NO_TIMES = [float("inf")] * 3  # of the configurations that are not taken
_SHARED_MEMORY_BYTES = 101_376  # that a kernel may ask for on most GPUs since compute capability 8.6


class MissingKernels:
    """Makes what operators return that have no kernel for the CPU, if a library describes that.

    Args:
        maker: Makes results.
    """

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self._known: dict[Any, FakeOperator] = {}
        self._library = Library("_", "IMPL")
        self._library.fallback(self._make, "CPU")

    def end(self) -> None:
        """Let PyTorch raise its own error again."""
        self._library._destroy()

    def _make(self, overload: Any, *args: Any, **kwargs: Any) -> Any:
        operator = self._known.get(overload)
        if operator is None:
            operator = self._known[overload] = FakeOperator(overload, self._maker)
        try:
            return self._maker.make_described(operator, args, kwargs)
        except NoResultError as error:
            name = overload._schema.name
            raise NotImplementedError(
                f"{name} has no kernel for the CPU, and --mode fake does not know what it returns. Describe "
                f"its result with @torch.library.register_fake({name!r}), or capture with --mode phantom. "
                f"PyTorch says: {str(error).partition('. ')[0]}"
            ) from None


def skip_launches(contents: FakeContents, assume: Callable[[str], None]) -> None:
    """Launch no kernel of Triton, once it is imported: what one is given, it may have written.

    Args:
        contents: What is known.
        assume: Takes a sentence that a reader of the estimate should know.
    """

    def follow_functions(module: ModuleType) -> None:
        def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
            assume(_TRITON_NOTE)
            if callable(grid):
                names = self.signature.parameters
                given = self.signature.bind_partial(*args, **{n: a for n, a in kwargs.items() if n in names})
                given.apply_defaults()
                grid(given.arguments)
            if not warmup:
                with unfollowed():
                    for tensor in tensors_in((*args, *kwargs.values())):
                        contents.lose(tensor)

        module.JITFunction.run = run

    def follow_tuners(module: ModuleType) -> None:
        measure = module.Autotuner._bench

        @functools.wraps(measure)
        def measure_first(self: Any, *args: Any, config: Any, **kwargs: Any) -> Any:
            return measure(self, *args, config=config, **kwargs) if config is self.configs[0] else _NO_TIMES

        module.Autotuner._bench = measure_first
        if hasattr(module, "do_bench"):  # until Triton 3.1, which does not ask the driver
            module.do_bench = _benchmarker(64_000_000)  # type: ignore[attr-defined]

    after_import("triton.runtime.jit", follow_functions)
    after_import("triton.runtime.autotuner", follow_tuners)
    after_import("triton.runtime.driver", lambda module: module.driver.set_active(_DescribedDriver()))


def _benchmarker(cache_elements: int) -> Callable[..., Any]:
    """Return what allocates as ``triton.testing.do_bench`` does.

    Args:
        cache_elements: Of four bytes, in the tensor that empties the cache of the GPU between two calls.
    """

    def benchmark(kernel_call: Callable[[], Any], *, quantiles: Any = None, **_: Any) -> Any:
        kernel_call()
        torch.empty(cache_elements, dtype=torch.int, device="cuda").zero_()
        kernel_call()
        return [1.0] * len(quantiles) if quantiles else 1.0

    return benchmark


_CACHE_ELEMENTS = 1 << 26  # since Triton 3.2
_Target = namedtuple("_Target", ("backend", "arch", "warp_size"))  # as GPUTarget of Triton


class _DescribedDriver:
    """Answers as Triton's driver does, with what ``torch.cuda`` says of the described GPU."""

    def __init__(self) -> None:
        self.utils = SimpleNamespace(get_device_properties=self._properties)
        self.launcher_cls = None
        self.get_device_interface = lambda: torch.cuda

    def is_active(self) -> bool:
        return True

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, _device: int) -> None:
        """Do nothing: there is one GPU."""

    def get_current_stream(self, _device: int = 0) -> int:
        return 0

    def get_device_capability(self, _device: int = 0) -> tuple[int, int]:
        major, minor = torch.cuda.get_device_capability()
        return major, minor

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_current_target(self) -> Any:
        major, minor = torch.cuda.get_device_capability()
        return _Target("cuda", major * 10 + minor, 32)

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(_CACHE_ELEMENTS, dtype=torch.int, device="cuda")

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()

    def get_benchmarker(self) -> Callable[..., Any]:
        return _benchmarker(_CACHE_ELEMENTS)

    @functools.cached_property
    def _described(self) -> Any:
        return torch.cuda.get_device_properties(0)

    def _properties(self, _device: int = 0) -> dict[str, int]:
        return {
            "max_shared_mem": getattr(self._described, "shared_memory_per_block_optin", _SHARED_MEMORY_BYTES),
            "max_num_regs": 65_536,
            "multiprocessor_count": self._described.multi_processor_count,
            "warpSize": 32,
            "sm_clock_rate": 0,
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
        }

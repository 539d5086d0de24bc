"""Tuning compiles many candidates of a kernel and takes the fastest; the phantom GPU has nothing to measure.

So the first candidate is taken and the others are not compiled: Inductor takes its choice without
``max_autotune`` (ATen for products of matrices), a kernel under ``triton.autotune`` the first configuration
that compiles. Upstream: ``torch._inductor`` of 2.6 to 2.13, Triton 3.2 to 3.7.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ..following_imports import after_import

# The settings of Inductor that make it compile candidates only to measure them.
_TUNING = (
    "max_autotune",
    "max_autotune_gemm",
    "max_autotune_pointwise",
    "coordinate_descent_tuning",
    "coordinate_descent_check_all_directions",
    "benchmark_epilogue_fusion",
    "benchmark_fusion",
    "benchmark_kernel",
)
_FAILED = [float("inf")] * 3  # the time of a configuration that does not compile

_INDUCTOR_NOTE = (
    "torch.compile was asked to tune kernels (max_autotune), which needs a GPU: its default choices "
    "were used (ATen for matrix products); tuned kernels may fuse more and use other workspaces"
)
_COMPILED_NOTE = (
    "code of torch.compile was taken from the compile cache: the first run on a machine compiles it, and "
    "may need more memory, to tune its kernels"
)
_TRITON_NOTE = "for kernels under triton.autotune, the first configuration that compiles was used"


def take_first_choices(assume: Callable[[str], None], *, has_compiled: bool) -> None:
    """Bound tuning in Inductor and Triton, once they are imported; ``has_compiled`` says whether earlier
    captures left what they compiled."""
    if has_compiled:
        after_import("torch._inductor.compile_fx", lambda _: assume(_COMPILED_NOTE))
    after_import("torch._inductor.compile_fx", functools.partial(_bound_inductor, assume))
    after_import("triton.runtime.autotuner", functools.partial(_bound_triton, assume))


def _bound_inductor(assume: Callable[[str], None], module: ModuleType) -> None:
    # Forward, backward and inference graphs are all lowered in here, with the options of their compile set.
    compile_graph = module.fx_codegen_and_compile

    @functools.wraps(compile_graph)
    def compile_untuned(*args: Any, **options: Any) -> Any:
        config = torch._inductor.config
        asked = {name: False for name in _TUNING if getattr(config, name, False)}
        if any(name.startswith(("max_autotune", "coordinate")) for name in asked):
            assume(_INDUCTOR_NOTE)
        with config.patch(asked):
            return compile_graph(*args, **options)

    module.fx_codegen_and_compile = compile_untuned  # type: ignore[attr-defined]


def _bound_triton(assume: Callable[[str], None], module: ModuleType) -> None:
    tuner = module.Autotuner
    prune, measure = tuner.prune_configs, tuner._bench

    @functools.wraps(prune)
    def prune_followed(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._xmem_found = False
        return prune(self, *args, **kwargs)

    @functools.wraps(measure)
    def measure_first(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "_xmem_found", False):
            return list(_FAILED)
        times = measure(self, *args, **kwargs)
        self._xmem_found = times != _FAILED
        if self._xmem_found:
            assume(_TRITON_NOTE)
        return times

    tuner.prune_configs, tuner._bench = prune_followed, measure_first

"""Memory that holds many parameters or gradients at once, which no parameter of the script points to.

Named as it is made: the buckets of DistributedDataParallel, the parameters that FSDP gathers, the buffers of
DeepSpeed's ZeRO. Upstream: ``torch.distributed`` of 2.6 to 2.13, DeepSpeed 0.14 to 0.19.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..following_imports import after_import
from .device_memory import mark_made
from .tensor_names import TensorNames, tensors_of

_ZERO = {
    "deepspeed.runtime.zero.stage_1_and_2": "DeepSpeedZeroOptimizer",
    "deepspeed.runtime.zero.stage3": "DeepSpeedZeroOptimizer_Stage3",
    "deepspeed.runtime.bf16_optimizer": "BF16_Optimizer",
}
# What its attributes for gradients are called: averaged_gradients, grad_partitions_flat_buffer, ipg_buckets.
_OF_GRADIENTS = ("grad", "ipg")


def name_flat_memory(names: TensorNames) -> None:
    """Follow the code that makes such memory, for the life of the process."""
    if torch.distributed.is_available():
        _follow_buckets(names)
        after_import("torch.distributed.fsdp._flat_param", functools.partial(_follow_fsdp1, names))
        after_import(
            "torch.distributed.fsdp._fully_shard._fsdp_param", functools.partial(_follow_fsdp2, names)
        )
    for module, optimizer in _ZERO.items():
        after_import(module, functools.partial(_follow_zero, names, optimizer))


class MadeTensors(TorchDispatchMode):  # type: ignore[misc]
    """Collects the floating-point tensors that C++ makes; its computations pass through.

    Attributes:
        tensors: What was made, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[torch.Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not torch.ops.aten.empty.memory_format:
            return func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():  # C++ made it, for parameters on the GPU if there are any
            result = func(*args, **(kwargs or {}))
            mark_made(result)
            if result.is_floating_point():
                self.tensors.append(result)
        return result


def _follow_buckets(names: TensorNames) -> None:
    """Name the buckets that DDP's reducer makes when it is built, and again once it knows the order of
    gradients (``Reducer::initialize_buckets``)."""
    reducer = torch.distributed.Reducer

    def naming(make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def make_named(*args: Any, **kwargs: Any) -> Any:
            with MadeTensors() as made:
                result = make(*args, **kwargs)
            for number, bucket in enumerate(made.tensors):
                names.add("gradient", f"DistributedDataParallel.bucket{number}", bucket)
            return result

        return make_named

    reducer.__init__ = naming(reducer.__init__)
    reducer._rebuild_buckets = naming(reducer._rebuild_buckets)


def _follow_fsdp1(names: TensorNames, module: ModuleType) -> None:
    handle = module.FlatParamHandle
    use = handle._use_unsharded_flat_param

    @functools.wraps(use)
    def use_named(self: Any, unsharded: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        names.add("parameter", names.name_of(self.flat_param, "FlatParameter"), unsharded, again=True)
        return use(self, unsharded, *args, **kwargs)

    handle._use_unsharded_flat_param = use_named


def _follow_fsdp2(names: TensorNames, module: ModuleType) -> None:
    parameter = module.FSDPParam
    use = parameter.to_unsharded

    @functools.wraps(use)
    def use_named(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = use(self, *args, **kwargs)
        name = names.name_of(self.sharded_param, "FSDPParam")
        names.add("parameter", name, self._unsharded_param, again=True)
        return result

    parameter.to_unsharded = use_named


def _follow_zero(names: TensorNames, optimizer: str, module: ModuleType) -> None:
    zero = getattr(module, optimizer, None)
    for method in ("__init__", "setup_buckets"):
        make = getattr(zero, method, None)
        if make is not None:
            setattr(zero, method, _naming_gradients(names, make))


def _naming_gradients(names: TensorNames, make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def make_named(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = make(self, *args, **kwargs)
        for path, tensor in _gradients_of(self):
            names.add("gradient", f"{type(self).__name__}.{path}", tensor)
        return result

    return make_named


def _gradients_of(optimizer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for attribute, value in vars(optimizer).items():
        if any(part in attribute for part in _OF_GRADIENTS):
            held = value
            if isinstance(value, dict):  # of buckets, which hold a buffer or several
                held = {str(key): getattr(bucket, "buffer", bucket) for key, bucket in value.items()}
            for path, tensor in tensors_of(held, attribute):
                if tensor.is_floating_point():
                    yield path.replace("torch.", ""), tensor

"""A rank of a job on the CPU: ``init_process_group("nccl")`` finds an NCCL, which a CPU build has not.

Each backend of a group is a stand-in, PyTorch's own fake, which reaches nobody. The memory of the GPU is the
host's here, so that PyTorch looks for the backend of the CPU in any case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..absent import AbsentPeers
from ..absent.exports import wrap
from ..absent.gloo import Fake, fake_backend
from ..following_imports import after_import

_WAY_OUT = (
    "capture with the CUDA build of torch, which xmem-fast phantom-env installs beside this one (--python)"
)


_TIMEOUT = timedelta(minutes=10)  # kProcessGroupNCCLDefaultTimeout


class _NcclType(type):
    """Lets backends that the class makes pass for its instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Fake)


class FakeNccl(metaclass=_NcclType):
    """Stands in for ``ProcessGroupNCCL``."""

    class Options:
        """Takes every setting."""

        def __init__(self, is_high_priority_stream: bool = False) -> None:
            self.is_high_priority_stream = is_high_priority_stream
            self.config = SimpleNamespace()
            self._timeout: Any = None

    def __new__(cls, _store: Any, rank: int, size: int, *_: Any, **__: Any) -> Any:
        """Make a fake, with the arguments of ``ProcessGroupNCCL``."""
        return fake_backend(rank, size)


def install(absent: AbsentPeers, fail: Callable[[str], None]) -> None:
    """Let this process be a rank of its job; called once, right after ``import torch``.

    Args:
        absent: The ranks of the job.
        fail: Gives up, with a reason.
    """
    for module in (c10d, dist):
        module.ProcessGroupNCCL = FakeNccl
    c10d._NCCL_AVAILABLE = True
    c10d.default_pg_nccl_timeout = _TIMEOUT
    Fake.supports_coalescing = True  # several transfers at once are one call of NCCL
    absent.install()
    wrap("_new_process_group_helper", _with_cpu_side)
    after_import("torch.distributed.fsdp.fully_sharded_data_parallel", _name_devices)
    for module_name, (functions, what) in _NOT_FOLLOWED.items():
        after_import(module_name, functools.partial(_refuse, functions, what, fail))


def _name_devices(module: ModuleType) -> None:
    """Let FSDP take the number of a GPU, of which a CPU build makes no device."""
    build = module.FullyShardedDataParallel.__init__

    @functools.wraps(build)
    def build_on_device(self: Any, *arguments: Any, **named: Any) -> None:
        if isinstance(named.get("device_id"), int):
            named["device_id"] = torch.device("cuda", named["device_id"])
        build(self, *arguments, **named)

    module.FullyShardedDataParallel.__init__ = build_on_device


def _with_cpu_side(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Register the backend of a group for the CPU too, and as the one that barriers ask."""
    group, store = original(*arguments, **named)
    if isinstance(group, dist.ProcessGroup):
        name, description = group.group_name, group.group_desc
        backend = fake_backend(group.rank(), group.size())
        # A barrier of NCCL's wants a tensor of a real GPU, and DDP takes what is Gloo's for the real Gloo.
        other = dist.ProcessGroup.BackendType.CUSTOM
        group._register_backend(torch.device("cpu"), other, backend)
        group._set_default_backend(other)
        group._set_group_name(name)
        group._set_group_desc(description)
    return group, store


# Of a module, what begins what is not followed here, and what that is.
_NOT_FOLLOWED = {
    "deepspeed": (("initialize",), "DeepSpeed"),
    "megatron.core.parallel_state": (("initialize_model_parallel",), "Megatron-core"),
    "torch.distributed._symmetric_memory": (
        ("empty", "rendezvous", "enable_symm_mem_for_group"),
        "symmetric memory",
    ),
}


def _refuse(functions: tuple[str, ...], what: str, fail: Callable[[str], None], module: ModuleType) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        fail(f"the script uses {what}, which mode fake does not follow; {_WAY_OUT}")

    for name in functions:
        setattr(module, name, refuse)

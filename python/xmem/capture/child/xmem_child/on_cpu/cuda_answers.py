"""What ``torch.cuda`` and ``torch.accelerator`` say about the described GPU.

Memory statistics are zero: the memory of the run is what the estimate is for.
"""

from __future__ import annotations

import functools
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.cuda
import torch.utils.data.dataloader

from ..session import Session
from ..settings import Gpu
from ..watching.device_memory import CPU, CUDA, gpus_here
from .streams import DEFAULT, Event, Stream, StreamContext, streams

_CUDA_VERSION = "12.8"
_CUDNN_VERSION = 91002
_KINDS = ("current", "peak", "allocated", "freed")
_POOLS = ("all", "large_pool", "small_pool")
_STATISTICS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
_COUNTERS = (
    *(f"oversize_{what}.{kind}" for what in ("allocations", "segments") for kind in _KINDS),
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "max_split_size",
)


class _GeneratorType(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)


class Generator(torch.Generator, metaclass=_GeneratorType):  # type: ignore[misc]
    """``torch.Generator`` for which every device is the CPU."""

    def __new__(cls, device: Any = "cpu") -> Generator:  # noqa: ARG004, D102 - torch's signature
        made: Generator = super().__new__(cls, device=CPU)
        return made


def install(session: Session) -> None:
    """Make torch describe the GPU of the settings as present."""
    gpu = session.settings.gpu
    _answer(torch.cuda, _device_answers(gpu))
    _answer(torch.cuda, _work_answers())
    random, memory = _random_answers(), _memory_answers(session)
    _answer(torch.cuda.random, random)
    _answer(torch.cuda, random)
    _answer(torch.cuda.memory, memory)
    _answer(torch.cuda, memory)
    if hasattr(torch, "accelerator"):  # since torch 2.6
        _answer(torch.accelerator, _accelerator_answers(session))
    else:
        _pass_for_torch_classes()
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        setattr(torch.cuda.nvtx, name, _nothing())
    torch.cuda.nvtx.range = nullcontext
    torch.cuda._initialized = True
    torch.backends.cudnn.version = lambda: _CUDNN_VERSION
    torch.backends.cudnn.is_available = lambda: True
    torch.backends.cuda.is_built = lambda: True
    # Scripts split and print it; only CPU builds return None.
    torch.version.cuda = torch.version.cuda or _CUDA_VERSION
    torch.Generator = Generator
    torch.amp.autocast_mode.is_autocast_available = lambda device_type: device_type in ("cpu", "cuda")
    _skip_pinning()
    session.streams = streams.columns
    if session.settings.world is None:
        _limit_distributed(session)


def _pass_for_torch_classes() -> None:
    """Let torch 2.5's compiler take our streams and events, which have to inherit from abstract classes."""
    from torch import _streambase

    _streambase._StreamBase.register(Stream)
    _streambase._EventBase.register(Event)


def _answer(module: ModuleType, answers: dict[str, Any]) -> None:
    """Replace functions with answers, but only those that this version of torch has."""
    for name, value in answers.items():
        if hasattr(module, name):
            setattr(module, name, value)


def _always(value: Any) -> Callable[..., Any]:
    """Return a new function each time: dynamo keeps a table of torch's functions by identity."""
    return lambda *_args, **_options: value


def _nothing() -> Callable[..., None]:
    return _always(None)


def _current_stream() -> Callable[..., Stream]:
    return lambda *_args, **_options: streams.current


def _set_stream() -> Callable[[Any], None]:
    return lambda stream: streams.set(stream)


class _DeviceScope:
    """``torch.cuda.device(0)`` and its relatives: there is one device, so nothing changes."""

    def __init__(self, *args: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass


def _device_answers(gpu: Gpu) -> dict[str, Any]:
    major, minor = gpu.capability
    properties = SimpleNamespace(
        name=gpu.name,
        major=major,
        minor=minor,
        total_memory=gpu.total_memory_bytes,
        multi_processor_count=gpu.multiprocessors,
        warp_size=32,
        max_threads_per_block=1024,
        max_threads_per_multi_processor=1536 if (major, minor) in ((8, 6), (8, 9), (12, 0)) else 2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        is_integrated=False,
        is_multi_gpu_board=False,
        gcnArchName="",
    )
    return {
        "is_available": _always(True),
        "is_initialized": _always(True),
        "init": _nothing(),
        "_lazy_init": _nothing(),
        "_lazy_call": lambda call, **_options: call(),
        "device_count": _always(gpus_here()),
        "current_device": _always(CUDA.index),
        "set_device": _nothing(),
        "device": _DeviceScope,
        "device_of": _DeviceScope,
        "_DeviceGuard": _DeviceScope,
        "get_device_name": _always(gpu.name),
        "get_device_capability": _always(gpu.capability),
        "get_device_properties": _always(properties),
        "get_arch_list": _always([f"sm_{major}{minor}"]),
        "can_device_access_peer": _always(False),
        "is_bf16_supported": lambda including_emulation=True: including_emulation or major >= 8,
        "is_tf32_supported": _always(major >= 8),
        "get_sync_debug_mode": _always(0),
        "set_sync_debug_mode": _nothing(),
        "utilization": _always(0),
        "memory_usage": _always(0),
        "temperature": _always(0),
        "power_draw": _always(0),
        "clock_rate": _always(0),
    }


def _work_answers() -> dict[str, Any]:
    return {
        "Stream": Stream,
        "ExternalStream": Stream,
        "Event": Event,
        "stream": lambda stream: StreamContext(stream),
        "StreamContext": StreamContext,
        "set_stream": _set_stream(),
        "current_stream": _current_stream(),
        "default_stream": _always(DEFAULT),
        "is_current_stream_capturing": _always(False),
        "synchronize": _nothing(),
        "ipc_collect": _nothing(),
        "_sleep": _nothing(),
    }


def _random_answers() -> dict[str, Any]:
    # Seed and offset, as CUDA's generator keeps them.
    state = functools.partial(torch.zeros, 16, dtype=torch.uint8)
    return {
        "manual_seed": _nothing(),
        "manual_seed_all": _nothing(),
        "seed": _nothing(),
        "seed_all": _nothing(),
        "initial_seed": _always(0),
        "get_rng_state": lambda *_args, **_options: state(),
        "get_rng_state_all": lambda: [state()],
        "set_rng_state": _nothing(),
        "set_rng_state_all": _nothing(),
    }


_NOT_COUNTED = "the script asked how much GPU memory is in use, and the answer was 0"


def _counted(value: Any, session: Session) -> Callable[..., Any]:
    """Answer a question about memory in use, which is not known here, and count it: a script may act on
    it."""

    def answer(*_args: Any, **_options: Any) -> Any:
        session.assume(_NOT_COUNTED)
        return value

    return answer


def _memory_answers(session: Session) -> dict[str, Any]:
    whole = session.settings.gpu.total_memory_bytes

    def memory_stats(device: Any = None) -> OrderedDict[str, int]:  # noqa: ARG001 - torch's signature
        session.assume(_NOT_COUNTED)
        keys = {f"{name}.{pool}.{kind}" for name in _STATISTICS for pool in _POOLS for kind in _KINDS}
        return OrderedDict.fromkeys(sorted(keys.union(_COUNTERS)), 0)

    return {
        "memory_stats": memory_stats,
        "mem_get_info": _counted((whole, whole), session),
        "device_memory_used": _counted(0, session),
        "empty_cache": _nothing(),
        "reset_peak_memory_stats": _nothing(),
        "reset_accumulated_memory_stats": _nothing(),
        "reset_max_memory_allocated": _nothing(),
        "reset_max_memory_cached": _nothing(),
        "set_per_process_memory_fraction": _nothing(),
        "get_per_process_memory_fraction": _always(1.0),
        "memory_snapshot": _always([]),
        "list_gpu_processes": _always(""),
        "_record_memory_history": _nothing(),
        "_dump_snapshot": _nothing(),
    }


def _accelerator_answers(session: Session) -> dict[str, Any]:
    whole = session.settings.gpu.total_memory_bytes
    answers: dict[str, Any] = {
        "is_available": _always(True),
        "device_count": _always(gpus_here()),
        "current_accelerator": _always(torch.device("cuda")),
        "current_device_index": _always(CUDA.index),
        "current_device_idx": _always(CUDA.index),
        "set_device_index": _nothing(),
        "set_device_idx": _nothing(),
        "device_index": _DeviceScope,
        "current_stream": _current_stream(),
        "set_stream": _set_stream(),
        "synchronize": _nothing(),
        "memory_allocated": _counted(0, session),
        "max_memory_allocated": _counted(0, session),
        "memory_reserved": _counted(0, session),
        "max_memory_reserved": _counted(0, session),
        "empty_host_cache": _nothing(),
        "get_memory_info": _counted((whole, whole), session),
    }
    shared = _memory_answers(session)
    return answers | {
        name: shared[name]
        for name in (
            "memory_stats",
            "empty_cache",
            "reset_peak_memory_stats",
            "reset_accumulated_memory_stats",
        )
    }


def _skip_pinning() -> None:
    """Skip pinned staging, host memory that the trace does not need: no pinning thread and no warning."""
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    build = iterator.__init__

    @functools.wraps(build)
    def build_unpinned(self: Any, loader: Any) -> None:
        build(self, loader)
        self._pin_memory = False

    iterator.__init__ = build_unpinned


def _limit_distributed(session: Session) -> None:
    """Run a world of one process over gloo, and refuse larger ones, which a capture cannot stand for."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return
    init = distributed.init_process_group

    @functools.wraps(init)
    def init_process_group(backend: str | None = None, *args: Any, **options: Any) -> None:  # noqa: ARG001
        options.pop("device_id", None)
        init("gloo", *args, **options)
        if distributed.get_world_size() > 1:
            session.fail(
                f"the script trains with {distributed.get_world_size()} processes, which a capture on the "
                f"CPU cannot run side by side; add --world-size {distributed.get_world_size()} to run one "
                "rank of them in mode fake, or capture it with one process"
            )
        session.assume("torch.distributed ran with one process over gloo")

    distributed.init_process_group = init_process_group  # type: ignore[attr-defined]

"""What the ranks of a phantom run tell each other on the host, since the phantom's NCCL moves nothing.

A process group of NCCL alone gets a Gloo backend for CPU tensors beside it. PyTorch then sends objects
(``all_gather_object``, ``broadcast_object_list`` and their like) over Gloo, as it does in groups made with
``cpu:gloo,cuda:nccl``: through device memory they would come back as garbage. The group still says that its
backend is ``nccl``, and collectives of CUDA tensors are NCCL's. Barriers do NCCL's work, with its allocation
on the device, and then wait on Gloo. What NCCL would have allocated for objects (their pickled size, once for
every rank) is not allocated.

On a GPU, a rank waits for the others in nearly every collective. Here it runs ahead of them; so the one that
serves the store of the run waits at its end until the others have left, too.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.torch_version import TorchVersion

from ..absent.store import own_store
from ..following_imports import after_import
from ..watching.flat_memory import MadeTensors
from .servers import tell_ranks_of_id, told_color
from .symmetric_memory import stand_in_for_peers
from .unwaited_works import UnwaitedWorks

if TYPE_CHECKING:
    from ..absent import AbsentPeers

_LEFT = "xmem_phantom/left"
_PATIENCE_SECONDS = 20.0
_FIRST_WITH_WATCHDOG = (2, 7)  # that lets go of the buffers that DDP waits for
_ITERATIONS_OF_FIRST_BUCKETS = 2

# Object collectives whose caller may name the device to send through.
_WITH_DEVICE = ("broadcast_object_list", "send_object_list", "recv_object_list")

# What the script does not wait for.
unwaited = UnwaitedWorks()
# What dynamo may trace as part of something else, but is not to compile by itself.
not_compiled: set[CodeType] = set()

_in_barrier = threading.local()
_in_split = threading.local()
_splits: Counter[str] = Counter()  # of a group, by its name


def install(
    iterations: Callable[[], int], absent: AbsentPeers | None = None, *, behind: bool = False
) -> None:
    """Patch ``torch.distributed``; called once, right after ``import torch``.

    Args:
        iterations: Returns how many iterations have begun.
        absent: The ranks of the job, where not all of them run.
        behind: Whether the GPU is behind the script.
    """
    if not (dist.is_available() and dist.is_nccl_available() and dist.is_gloo_available()):
        return
    _wrap("_new_process_group_helper", functools.partial(_with_cpu_side, absent))
    if absent is None:
        _wrap("split_group", _split_with_cpu_side)
        _wrap("_hash_ranks_to_str", _name_of_split)
    else:
        _know_absent_peers()
    _wrap("_get_object_coll_device", _object_device)
    _wrap("barrier", _waiting_barrier)
    _wrap("destroy_process_group", _showing_all)
    for name in _WITH_DEVICE:
        _wrap(name, _through_cpu)
    if absent is None:
        _wrap("destroy_process_group", _leaving_first)
        atexit.register(_leave, None)
    unwaited.follow(_wrap, iterations, behind=behind)
    if behind and TorchVersion(torch.__version__) >= _FIRST_WITH_WATCHDOG:
        _keep_first_buckets()
    else:
        DistributedDataParallel._pre_forward = _after_the_watchdog(DistributedDataParallel._pre_forward)


def _know_absent_peers() -> None:
    """Let NCCL and symmetric memory work where most ranks of the job do not run."""
    # Its thread would look at the store, which is Python's, while the interpreter ends.
    os.environ["TORCH_NCCL_ENABLE_MONITORING"] = "0"
    own_store().tell_number = tell_ranks_of_id
    _wrap("_process_group_color", told_color)
    after_import("torch.distributed._symmetric_memory", stand_in_for_peers)


def _wrap(name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a function of ``torch.distributed`` with ``wrapper(original, ...)``, wherever it is exported.

    Dynamo traces the original, which it knows, where it traces a call; it compiles no call of its own accord.
    """
    original = getattr(c10d, name, None)
    if original is None:
        return

    def wrapped(*arguments: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*arguments, **named)
        return wrapper(original, *arguments, **named)

    functools.update_wrapper(wrapped, original)
    not_compiled.add(wrapped.__code__)
    for module in (c10d, dist, sys.modules.get("torch.distributed.device_mesh")):
        if getattr(module, name, None) is original:
            setattr(module, name, wrapped)


def _with_cpu_side(
    absent: AbsentPeers | None, original: Callable[..., Any], *arguments: Any, **named: Any
) -> Any:
    group, store = original(*arguments, **named)
    if isinstance(group, dist.ProcessGroup):
        _add_cpu_side(group, store, named.get("timeout"), absent)
    return group, store


def _split_with_cpu_side(
    original: Callable[..., Any], parent_pg: Any = None, *arguments: Any, **named: Any
) -> Any:
    parent = parent_pg or c10d._get_default_group()
    _splits[parent.group_name] += 1
    _in_split.name = f"{parent.group_name}:{_splits[parent.group_name]}"
    try:
        group = original(parent_pg, *arguments, **named)
    finally:
        _in_split.name = None
    if isinstance(group, dist.ProcessGroup):
        _add_cpu_side(group, c10d._world.pg_map[group][1], named.get("timeout"), None)
    return group


def _name_of_split(original: Callable[..., str], ranks: list[int]) -> str:
    """Return a name that all ranks of a split agree on.

    Torch's name contains the number of groups that a rank is in, which may differ between ranks. NCCL ignores
    names when it splits, but Gloo, which newer versions of torch split as well, would wait forever.
    """
    name = getattr(_in_split, "name", None)
    if name is None:
        return original(ranks)
    return hashlib.sha1(f"{name}:{ranks}".encode(), usedforsecurity=False).hexdigest()


def _add_cpu_side(group: Any, store: Any, timeout: Any, absent: AbsentPeers | None) -> None:
    """Register Gloo for the CPU tensors of a group that has NCCL for those on CUDA, and nothing else."""
    if not _has_nccl(group) or len(group._device_types) != 1:
        return
    # Torch takes a group's names from the backend that comes first, which will be ours.
    name, description = group.group_name, group.group_desc
    if absent is None:
        backend = _gloo(group, store, timeout, name)
    else:
        backend = absent.cpu_backend(group.rank(), group.size())
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    group._set_group_name(name)
    group._set_group_desc(description)


def _gloo(group: Any, store: Any, timeout: Any, name: str) -> Any:
    """Return a backend that reaches the other ranks through the store of the group."""
    options = dist.ProcessGroupGloo._Options()
    # All ranks of a phantom run are on this machine, whatever its network is.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._threads = 2
    if timeout is not None:
        options._timeout = timeout
    if hasattr(options, "group_name"):
        options.group_name = name
    store = dist.PrefixStore("xmem_phantom_cpu/", store)
    backend = dist.ProcessGroupGloo(store, group.rank(), group.size(), options)
    backend._set_sequence_number_for_group()
    return backend


def _has_nccl(group: Any) -> bool:
    cuda = torch.device("cuda")
    return cuda in group._device_types and isinstance(
        _innermost(group._get_backend(cuda)), dist.ProcessGroupNCCL
    )


def _innermost(backend: Any) -> Any:
    """Return the backend inside the checking wrapper of ``TORCH_DISTRIBUTED_DEBUG=DETAIL``."""
    return getattr(backend, "wrapped_pg", backend)


def _has_both_sides(group: Any) -> bool:
    devices = {device.type for device in getattr(group, "_device_types", ())}
    return devices >= {"cpu", "cuda"}


def _object_device(original: Callable[..., str], group: Any = None) -> str:
    device = original(group)
    ours = _has_both_sides(group or c10d._get_default_group()) and _backend_of(group) == "nccl"
    # What torch would see without our side: the device that its barrier runs on.
    return "cuda" if ours and getattr(_in_barrier, "now", False) else device


def _backend_of(group: Any) -> str:
    return str(c10d._world.pg_map[group or c10d._get_default_group()][0])


@contextmanager
def _barrier_on_the_device() -> Iterator[None]:
    _in_barrier.now = True
    try:
        yield
    finally:
        _in_barrier.now = False


def _waiting_barrier(original: Callable[..., Any], group: Any = None, *arguments: Any, **named: Any) -> Any:
    with _barrier_on_the_device():
        work = original(group, *arguments, **named)
    group = group or c10d._get_default_group()
    if isinstance(group, dist.ProcessGroup) and _has_both_sides(group):
        cpu = group._get_backend(torch.device("cpu"))
        waited = cpu.barrier(dist.BarrierOptions())
        if work is None:
            waited.wait()
        else:
            work = _Both(work, waited)
    return work


class _Both:
    """The handle of an asynchronous barrier, which is over when both sides are."""

    def __init__(self, device: Any, host: Any) -> None:
        self._device = device
        self._host = host

    def wait(self, *arguments: Any) -> Any:
        self._host.wait(*arguments)
        return self._device.wait(*arguments)

    def is_completed(self) -> bool:
        return bool(self._host.is_completed() and self._device.is_completed())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


def _through_cpu(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Ignore a CUDA device that an object is to be sent through."""
    named = {name: None if _is_cuda(name, value) else value for name, value in named.items()}
    return original(
        *(None if isinstance(a, torch.device) and a.type == "cuda" else a for a in arguments), **named
    )


def _is_cuda(name: str, value: Any) -> bool:
    return name == "device" and value is not None and torch.device(value).type == "cuda"


def _after_the_watchdog(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let NCCL's watchdog see that the work of the last iteration is over before the next one begins.

    DDP waits for its reductions through futures. Since torch 2.7 their buffers stay allocated until the
    watchdog has noticed, which it does every 100 ms; on a GPU most iterations take longer, here none does.
    """

    @functools.wraps(original)
    def pre_forward(module: Any, *arguments: Any, **named: Any) -> Any:
        group = module.process_group
        if isinstance(group, dist.ProcessGroup) and _has_nccl(group):
            unwaited.show_all()
            group._wait_for_pending_works()
        return original(module, *arguments, **named)

    return pre_forward


def _keep_first_buckets() -> None:
    """Let DDP's first buckets live until the third iteration begins, as they do on a GPU where NCCL's
    watchdog notices the reductions of the first iteration only after the second has made other buckets."""
    first: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
    forwards: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
    make, pre_forward = DistributedDataParallel._ddp_init_helper, DistributedDataParallel._pre_forward

    @functools.wraps(make)
    def make_keeping(module: Any, *arguments: Any, **named: Any) -> Any:
        with MadeTensors() as made:
            result = make(module, *arguments, **named)
        first[module] = made.tensors
        return result

    @functools.wraps(pre_forward)
    def pre_forward_counting(module: Any, *arguments: Any, **named: Any) -> Any:
        forwards[module] = forwards.get(module, 0) + 1
        if forwards[module] > _ITERATIONS_OF_FIRST_BUCKETS:
            first.pop(module, None)
        return pre_forward(module, *arguments, **named)

    DistributedDataParallel._ddp_init_helper = make_keeping
    DistributedDataParallel._pre_forward = pre_forward_counting


def _showing_all(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    unwaited.show_all()  # to end, a watchdog must have seen all
    return original(*arguments, **named)


def _leaving_first(original: Callable[..., Any], group: Any = None) -> Any:
    _leave(group)
    return original(group)


def _leave(group: Any) -> None:
    """Announce that this rank leaves the world group; the rank that serves the store waits for all ranks."""
    if not dist.is_initialized() or group not in (None, c10d.GroupMember.WORLD):
        return
    world = c10d._get_default_group()
    if _backend_of(world) != "nccl" and not _has_both_sides(world):
        return
    store = c10d._get_default_store()
    try:
        left = store.add(_LEFT, 1)
        failing = sys.exc_info()[0] is not None or getattr(sys, "last_type", None) is not None
        if dist.get_rank() != 0 or failing or dist.is_torchelastic_launched():
            return
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while left % dist.get_world_size() != 0 and time.monotonic() < deadline:
            time.sleep(0.02)
            left = store.add(_LEFT, 0)
    except RuntimeError:
        pass  # the store is gone, and so are the ranks to wait for

"""Requests for the GPU end on the CPU, and the script cannot tell.

A ``TorchFunctionMode`` sees every call into torch that Python makes. It rewrites device arguments, answers
``.device`` and its relatives for tensors that stand for GPU memory (``device_memory``), and makes moves
between host and GPU real copies, so that both blocks appear in the trace. Inside a call torch switches the
mode off, so Python composites (``F.multi_head_attention_forward``) see plain CPU tensors; what they return is
marked from what they were given. The autograd engine calls user code again (hooks, custom functions,
checkpoints): for it the mode is switched back on.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.overrides
import torch.utils._device
import torch.utils._pytree

from ..function_mode import (
    INTEGER_READS,
    FollowingMode,
    follow_module_moves,
    follow_threads,
    module_move,
    queries,
    read_unsigned,
    reads,
)
from ..patches import Patches
from ..session import Session
from ..watching.device_memory import (
    CPU,
    CUDA,
    is_device,
    mark,
    mark_storage,
    names_gpu,
    running,
    storage_is_device,
    storage_of,
    tensors_in,
)
from ..watching.spans import now_ns
from .compilation import region
from .streams import streams

_PINNED = "_xmem_pinned"
# Functions of device tensors with one result in host memory even on a GPU, and the place of that result; -1
# where it is the only one.
_HOST_RESULTS: dict[Any, int] = {
    # Lengths steer the loops of cuDNN on the host (aten/src/ATen/native/PackedSequence.cpp, 2.6 to 2.13).
    torch._VF._pack_padded_sequence: 1,  # batch_sizes
    torch._VF._pad_packed_sequence: 1,  # lengths
    # Shapes of the parts of a nested tensor (aten/src/ATen/NestedTensorImpl.h).
    torch.Tensor._nested_tensor_size: -1,
    torch.Tensor._nested_tensor_strides: -1,
    torch.Tensor._nested_tensor_storage_offsets: -1,
}

_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)

Handler = Callable[..., Any]


class Redirection(FollowingMode):
    """The mode; one object serves all threads, as it keeps no state of its own."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.spans)
        self._session = session
        self._constructors = torch.utils._device._device_constructors()
        self._handlers = self._handler_table()

    def __torch_function__(
        self,
        func: Handler,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        handler: Handler | None = self._handlers.get(func, self._call)
        if handler is None:
            return func(*args, **(kwargs or {}))
        return handler(func, args, kwargs or {})

    def _handler_table(self) -> dict[Any, Handler | None]:
        tensor = torch.Tensor
        table: dict[Any, Handler | None] = dict.fromkeys(queries() | reads())
        table.update(dict.fromkeys(INTEGER_READS, _read_integer))
        table.update(
            {
                tensor.device.__get__: _answer(lambda real, yes: CUDA if yes else real),
                tensor.is_cuda.__get__: _answer(lambda real, yes: yes or real),
                tensor.is_cpu.__get__: _answer(lambda real, yes: real and not yes),
                tensor.get_device: _answer(lambda real, yes: CUDA.index if yes else real),
                torch.get_device: _answer(lambda real, yes: CUDA.index if yes else real),
                tensor.to: self._to,
                tensor.cuda: self._cuda,
                tensor.cpu: self._cpu,
                tensor.type: self._type,
                tensor.pin_memory: self._pin_memory,
                tensor.is_pinned: _is_pinned,
                tensor.share_memory_: self._share_memory,
                torch._C._nn._parse_to: self._parse_to,
                torch.as_tensor: self._as_tensor,
                torch.asarray: self._as_tensor,
            }
        )
        return table

    def _call(self, func: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call any other function: its result lies where it was asked for, or else where the arguments
        lie."""
        wanted: bool | None = None
        device = kwargs.get("device")
        if device is not None:
            wanted = names_gpu(device)
            if wanted:
                kwargs = {**kwargs, "device": CPU}
        elif func in self._constructors and names_gpu(torch.utils._device.CURRENT_DEVICE):
            wanted = True
            kwargs = {**kwargs, "device": CPU}
        elif type(func) in _OPERATORS:  # of a library, which may be written in Python
            args = tuple([CPU if isinstance(a, torch.device) and names_gpu(a) else a for a in args])
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if wanted:
            self._session.request_device()
        touches_device = has_tensors = False
        for tensor in tensors_in(args):
            has_tensors = True
            if is_device(tensor):
                touches_device = True
                break
        if not touches_device and kwargs:
            for tensor in tensors_in(kwargs):
                has_tensors = True
                if is_device(tensor):
                    touches_device = True
                    break
        on_device = touches_device if wanted is None else wanted
        outer = running.on_device
        running.on_device = outer or on_device
        begin = now_ns()
        try:
            result = func(*args, **kwargs)
        finally:
            running.on_device = outer
        if func in _HOST_RESULTS:
            place = _HOST_RESULTS[func]
            mark(result if place < 0 else result[place], on_device=False)  # settled marks stay
        has_tensors |= mark(result, on_device)
        if has_tensors and self._spans.active:
            self._spans.note_call(begin, now_ns(), not (touches_device or on_device))
        return result

    def _move(
        self, tensor: torch.Tensor, to_device: bool, copy: bool = False, **options: Any
    ) -> torch.Tensor:
        """Handle ``tensor.to``: a real copy between host and GPU, otherwise whatever torch would do."""
        if to_device:
            self._session.request_device()
        from_device = is_device(tensor)
        crosses = from_device != to_device
        begin = now_ns()
        result: torch.Tensor = tensor.to(device=CPU, copy=copy or crosses, **options)
        mark(result, to_device)
        if self._spans.active:
            self._spans.note_call(begin, now_ns(), not to_device)
            if crosses and to_device and not module_move.active:
                self._session.input_arrived(result, begin, self._spans.user_line(sys._getframe()))
        return result

    def _to(self, func: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor, *rest = args
        options = dict(kwargs)
        if rest and isinstance(rest[0], torch.Tensor):
            options["other"] = rest.pop(0)
        elif rest and isinstance(rest[0], torch.dtype):
            options["dtype"] = rest.pop(0)
        else:
            for name in ("device", "dtype")[: len(rest)]:
                options[name] = rest.pop(0)
        for name in ("non_blocking", "copy")[: len(rest)]:
            options[name] = rest.pop(0)
        device: object
        if "other" in options:
            other = options.pop("other")
            device = CUDA if is_device(other) else other.device
            options["dtype"] = other.dtype
        else:
            device = options.pop("device", None)
        if names_gpu(device):
            return self._move(tensor, True, **options)
        if device is not None and torch.device(device) == CPU:
            return self._move(tensor, False, **options)
        return self._call(func, args, kwargs)

    def _parse_to(self, func: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle ``module.to(0)``: a bare index means the accelerator that this machine lacks."""
        if args and names_gpu(args[0]):
            args = (CUDA, *args[1:])
        if names_gpu(kwargs.get("device")):
            kwargs = {**kwargs, "device": CUDA}
        return func(*args, **kwargs)

    def _cuda(self, _func: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._move(args[0], True, memory_format=kwargs.get("memory_format", torch.preserve_format))

    def _cpu(self, _func: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._move(args[0], False, memory_format=kwargs.get("memory_format", torch.preserve_format))

    def _type(self, func: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle ``tensor.type()`` and ``tensor.type("torch.cuda.HalfTensor")``: the name includes the
        device."""
        dtype = args[1] if len(args) > 1 else kwargs.get("dtype")
        if dtype is None:
            name: str = func(*args)
            return name.replace("torch.", "torch.cuda.", 1) if is_device(args[0]) else name
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            host_type = "torch." + dtype.removeprefix("torch.cuda.")
            return self._move(args[0], True, dtype=torch.empty(0).type(host_type).dtype)
        return self._call(func, args, kwargs)

    def _pin_memory(self, _func: Handler, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
        """Copy to pinned memory, which is host memory from its own allocator."""
        pinned = self._move(args[0], False, copy=True)
        setattr(storage_of(pinned), _PINNED, True)
        return pinned

    def _share_memory(self, func: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0] if is_device(args[0]) else func(*args, **kwargs)

    def _as_tensor(self, func: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle ``as_tensor`` and the like: they share memory on the CPU, but copy towards the GPU."""
        device = kwargs.get("device")
        if device is None and names_gpu(torch.utils._device.CURRENT_DEVICE):
            device = CUDA
        if not names_gpu(device):
            return self._call(func, args, kwargs)
        return self._move(self._call(func, args, {**kwargs, "device": CPU}), True)


def _answer(say: Callable[[Any, bool], Any]) -> Handler:
    def handler(func: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return say(func(*args, **kwargs), is_device(args[0]))

    return handler


def _read_integer(func: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args[0].dtype == torch.uint64:
        return read_unsigned(func, args[0])
    return func(*args, **kwargs)


def _is_pinned(_func: Handler, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> bool:
    return bool(getattr(storage_of(args[0]), _PINNED, False))


def install(session: Session, patches: Patches, on_start: Callable[[], None] = lambda: None) -> Redirection:
    """Switch the redirection on for this thread and for those that start later, each of which calls
    ``on_start`` first."""
    mode = Redirection(session)
    _follow_engine(mode)
    _follow_saved_tensor_hooks(mode)
    follow_threads(mode, on_start=on_start, on_end=session.thread_ends)
    follow_module_moves(patches)
    _redirect_device_contexts(mode)
    _redirect_device_groups()
    _redirect_serialization()
    _redirect_data_parallel()
    # It takes nothing but torch's own streams, and refuses before the mode is asked.
    torch.Tensor.record_stream = lambda tensor, stream: streams.note_use(tensor, stream)
    mode.__enter__()
    return mode


def _follow_engine(mode: Redirection) -> None:
    """Keep the mode on while the engine runs, and know whether its tensors are device memory."""
    run_engine = torch.autograd._engine_run_backward

    @functools.wraps(run_engine)
    def run(roots: Any, *args: Any, **kwargs: Any) -> Any:
        outer = running.on_device
        running.on_device = outer or any(is_device(root) for root in tensors_in(roots))
        try:
            with mode.reentered():
                result = run_engine(roots, *args, **kwargs)
            mark(result, running.on_device)
        finally:
            running.on_device = outer
        return result

    torch.autograd._engine_run_backward = run


def _follow_saved_tensor_hooks(mode: Redirection) -> None:
    """Follow hooks that pack and unpack saved tensors (checkpointing, offloading) inside operators."""
    hooks = torch.autograd.graph.saved_tensors_hooks
    build = hooks.__init__

    def followed(hook: Handler) -> Handler:
        compiled = region.active

        @functools.wraps(hook)
        def call(value: Any) -> Any:
            with mode.reentered(), region.set(compiled):
                return hook(value)

        return call

    @functools.wraps(build)
    def build_followed(self: Any, pack_hook: Handler, unpack_hook: Handler) -> None:
        build(self, followed(pack_hook), followed(unpack_hook))

    hooks.__init__ = build_followed


def _redirect_device_contexts(mode: Redirection) -> None:
    """Redirect ``torch.set_default_device("cuda")``, which lies below our mode and acts inside composites
    too."""
    context = torch.utils._device.DeviceContext
    add_device = context.__torch_function__
    constructors = torch.utils._device._device_constructors()

    def add_redirected_device(
        self: Any, func: Handler, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in constructors and kwargs.get("device") is None and names_gpu(self.device):
            will_redirect = mode in torch.overrides._get_current_function_mode_stack()
            kwargs = {**kwargs, "device": CUDA if will_redirect else CPU}
        return add_device(self, func, types, args, kwargs)

    context.__torch_function__ = add_redirected_device


def _redirect_device_groups() -> None:
    """Redirect the grouping behind foreach and fused optimizers, which asks C++ for the device."""
    group_tensors = torch.utils._foreach_utils._group_tensors_by_device_and_dtype

    @functools.wraps(group_tensors)
    def group(*args: Any, **kwargs: Any) -> dict[tuple[Any, Any], Any]:
        groups = {}
        for (device, dtype), (lists, indices) in group_tensors(*args, **kwargs).items():
            first = next(tensors_in(lists), None)
            on_gpu = first is not None and is_device(first)
            groups[CUDA if on_gpu else device, dtype] = (lists, indices)
        return groups

    for name, module in list(sys.modules.items()):
        if (
            name.startswith("torch.")
            and vars(module).get("_group_tensors_by_device_and_dtype") is group_tensors
        ):
            module._group_tensors_by_device_and_dtype = group  # type: ignore[attr-defined]


def _redirect_serialization() -> None:
    """Make checkpoints remember GPU tensors as such, and load to where they or ``map_location`` say."""

    def tag(storage: Any) -> str | None:
        return str(CUDA) if storage_is_device(_untyped(storage)) else None

    def restore(storage: Any, location: str) -> Any:
        if not location.startswith("cuda"):
            return None
        mark_storage(_untyped(storage), True)
        return storage

    # The first package to answer wins; the CPU's, which claims every storage, has 10.
    torch.serialization.register_package(5, tag, restore)


def _redirect_data_parallel() -> None:
    """Make ``DataParallel`` over one GPU move its inputs and call the module; its scatter is CUDA's own."""

    def scatter(_self: Any, inputs: Any, kwargs: Any, _device_ids: Any) -> Any:
        move = functools.partial(torch.utils._pytree.tree_map_only, torch.Tensor, torch.Tensor.cuda)
        return (move(inputs),), (move(kwargs),)

    torch.nn.DataParallel.scatter = scatter


def _untyped(storage: Any) -> Any:
    return getattr(storage, "_untyped_storage", storage)

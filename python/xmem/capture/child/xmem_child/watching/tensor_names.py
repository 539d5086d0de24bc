"""The name and role of tensors by the address of their memory, as rows of the trace's metadata.

A row is written once for each (role, storage): the note is kept on the storage object, so an address that is
reused by another tensor gets a row of its own. ``time_ns`` is when the tensor was seen alive.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from .device_memory import storage_is_device, storage_of
from .spans import now_ns

_PLAIN = (torch.Tensor, torch.nn.Parameter)


# What libraries keep as attributes of a parameter, and its role.
_COMPANIONS = {
    "ds_tensor": "parameter",  # DeepSpeed ZeRO-3: this rank's part
    "_local_shard": "parameter",  # FSDP1: the same
    "_mp_shard": "parameter",  # FSDP1: in low precision
    "main_param": "parameter",  # Megatron: in float32
    "CB": "parameter",  # bitsandbytes: in 8 bits
    "SCB": "buffer",  # bitsandbytes: its scales
    "quant_state": "buffer",  # bitsandbytes: scales of 4 bits
    "main_grad": "gradient",  # Megatron, Transformer Engine: a view of a buffer of many
    "_saved_grad_shard": "gradient",  # FSDP1
}


def has_lazy_tensors(module: torch.nn.Module) -> bool:
    """Whether it holds parameters or buffers that get their sizes at its first call (``LazyLinear``)."""
    # Not by the module's own attributes: Megatron's DistributedDataParallel has a list called `buffers`.
    parameters, buffers = torch.nn.Module.parameters(module), torch.nn.Module.buffers(module)
    return any(map(is_lazy, chain(parameters, buffers)))


class TensorNames:
    """Columns of (role, name, address, size, time, dtype, shape, parameter group)."""

    def __init__(self) -> None:
        self.role: list[str] = []
        self.name: list[str] = []
        self.address: list[int] = []
        self.size_bytes: list[int] = []
        self.time_ns: list[int] = []
        self.dtype: list[str] = []
        self.shape: list[list[int]] = []
        self.group: list[int] = []
        self.modules: list[dict[str, Any]] = []
        # On storages: the roles in which this object has named them.
        self._mark = f"_xmem_roles_{id(self)}"
        self._marked: list[weakref.ref[torch.UntypedStorage]] = []
        # Rows of parameters that no module had yet, with what follows the parameter's name.
        self._unnamed: list[tuple[int, weakref.ref[torch.Tensor], str]] = []
        self._roots: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()
        self._parameter_names = WeakTensorKeyDictionary()
        # Whether modules that were never called still have to be looked for, once.
        self.search_modules = False
        self.only_device = False
        self.on_new_storage: Callable[[torch.UntypedStorage], None] | None = None

    def add(
        self,
        role: str,
        name: str,
        tensor: torch.Tensor,
        time_ns: int | None = None,
        group: int = -1,
        *,
        again: bool = False,
    ) -> None:
        """Write a row, unless this storage has one in this role or lies on the host.

        Args:
            role: See the module.
            name: Name of the tensor.
            tensor: The tensor; for a wrapper, the tensors that it holds get rows.
            time_ns: When it was seen, now by default.
            group: The parameter group of the optimizer, -1 where there is none.
            again: Write a row all the same: the storage gives its memory back and takes it again.
        """
        for part in _plain_tensors(tensor):
            self._add_plain(role, name, part, time_ns, group, again)

    def _add_plain(
        self, role: str, name: str, tensor: torch.Tensor, time_ns: int | None, group: int, again: bool
    ) -> None:
        storage = storage_of(tensor)
        if storage is None or (self.only_device and not storage_is_device(storage)):
            return
        try:
            address = storage.data_ptr()
        except RuntimeError:  # of a wrapper without memory of its own
            return
        roles: set[str] | None = getattr(storage, self._mark, None)
        if roles is None:
            roles = set()
            setattr(storage, self._mark, roles)
            self._marked.append(weakref.ref(storage))
            if self.on_new_storage is not None:
                self.on_new_storage(storage)
        if role in roles and not again:
            return
        roles.add(role)
        self.role.append(role)
        self.name.append(name)
        self.address.append(address)
        self.size_bytes.append(storage.nbytes())
        self.time_ns.append(now_ns() if time_ns is None else time_ns)
        self.dtype.append(str(tensor.dtype).removeprefix("torch."))
        self.shape.append(list(tensor.shape))
        self.group.append(group)

    def add_root(self, module: torch.nn.Module, name: str) -> None:
        """Learn an outermost module; its parameters and buffers get rows now and whenever they move.

        A module that lacks some of them yet is learned at a later call.
        """
        if module in self._roots or has_lazy_tensors(module):
            return
        self._roots[module] = name
        parameters = list(module.parameters())
        if parameters:
            self.modules.append(
                {
                    "name": name,
                    "parameters": sum(parameter.numel() for parameter in parameters),
                    "parameter_bytes": sum(
                        parameter.numel() * parameter.element_size() for parameter in parameters
                    ),
                }
            )
        self._name_root(module, name)

    def name_of(self, parameter: torch.Tensor, otherwise: str) -> str:
        """Return the dotted name of a parameter of a known module, or else ``otherwise``."""
        name: str = self._parameter_names.get(parameter, otherwise)
        return name

    def _search(self) -> None:
        """Name what modules hold if no root of theirs was called: a model whose ``forward`` is called by
        another function, or whose weights another function computes with."""
        if not self.search_modules:
            return
        self.search_modules = False
        # By their type, since asking an object for its class may have side effects.
        modules = [found for found in gc.get_objects() if issubclass(type(found), torch.nn.Module)]
        modules = [module for module in modules if "_modules" in vars(module)]  # it is set up
        inner = {id(child) for module in modules for child in module._modules.values()}
        for module in modules:
            if id(module) not in inner and not has_lazy_tensors(module):
                self._name_root(module, type(module).__name__)

    def before_step(self, optimizer: Optimizer) -> None:
        """Name the model, and the gradients that the optimizer is about to use."""
        self._search()
        for module, name in list(self._roots.items()):
            self._name_root(module, name)
        self._name_gradients(optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        """Name the optimizer's state, and what a closure produced."""
        self._name_gradients(optimizer)
        for group, name, parameter in self._parameters_of(optimizer):
            self._add_of("parameter", name, "", parameter, parameter, group)
            for key, tensor in tensors_of(optimizer.state.get(parameter)):
                self._add_of("optimizer_state", name, f".{key}", parameter, tensor, group)

    def name_gradients(self) -> None:
        """Name the gradients that the parameters of the known modules have."""
        for module in list(self._roots):
            for parameter in module.parameters():
                if parameter.grad is not None:
                    self.add("gradient", self._parameter_names.get(parameter, ""), parameter.grad)

    def forget(self) -> None:
        """Remove all marks from storages, so that another object may name those that live on."""
        for reference in self._marked:
            storage = reference()
            if storage is not None:
                delattr(storage, self._mark)
        self._marked.clear()

    def columns(self, base_ns: int) -> dict[str, list[Any]]:
        """Return the rows as columns, with times since ``base_ns``."""
        self._search()
        for row, reference, suffix in self._unnamed:
            parameter = reference()
            if parameter is not None and parameter in self._parameter_names:
                self.name[row] = self._parameter_names[parameter] + suffix
        return {
            "role": self.role,
            "name": self.name,
            "address": self.address,
            "size_bytes": self.size_bytes,
            "time_ns": [time - base_ns for time in self.time_ns],
            "dtype": self.dtype,
            "shape": self.shape,
            "group": self.group,
        }

    def _name_root(self, module: torch.nn.Module, root: str) -> None:
        for path, parameter in module.named_parameters():
            if parameter not in self._parameter_names:
                self._parameter_names[parameter] = f"{root}.{path}"
            self.add("parameter", self._parameter_names[parameter], parameter)
            self._add_companions(self._parameter_names[parameter], parameter)
        for path, buffer in module.named_buffers():
            self.add("buffer", f"{root}.{path}", buffer)

    def _add_companions(self, name: str, parameter: torch.Tensor) -> None:
        own = vars(parameter)
        for attribute in own.keys() & _COMPANIONS:
            held = own[attribute]
            for path, tensor in tensors_of(held if isinstance(held, torch.Tensor) else _attributes_of(held)):
                suffix = f"{attribute}.{path}" if path else attribute
                self.add(_COMPANIONS[attribute], f"{name}.{suffix}", tensor)

    def _name_gradients(self, optimizer: Optimizer) -> None:
        for group, name, parameter in self._parameters_of(optimizer):
            gradient = parameter.grad
            if gradient is not None:
                self._add_of("gradient", name, "", parameter, gradient, group)

    def _add_of(
        self, role: str, name: str, suffix: str, parameter: torch.Tensor, tensor: torch.Tensor, group: int
    ) -> None:
        rows = len(self.role)
        self.add(role, name + suffix, tensor, group=group)
        if len(self.role) > rows and parameter not in self._parameter_names:
            self._unnamed.append((rows, weakref.ref(parameter), suffix))

    def _parameters_of(self, optimizer: Optimizer) -> Iterator[tuple[int, str, torch.Tensor]]:
        unnamed = 0
        for index, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                name = self._parameter_names.get(parameter)
                if name is None:
                    name = f"{type(optimizer).__name__}.params.{unnamed}"
                    unnamed += 1
                yield index, name, parameter


def _plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors that hold the memory of one: itself, or those within a wrapper (torchao's, say)."""
    part = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
    flatten = None if type(part) in _PLAIN else getattr(part, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
        return
    for name in flatten()[0]:
        yield from _plain_tensors(getattr(part, name))


def _attributes_of(value: object) -> dict[str, Any]:
    """Return what an object and those within it hold: bitsandbytes quantizes the scales again
    (``state2``)."""
    own = getattr(value, "__dict__", {})
    return {
        name: _attributes_of(held) if name == "state2" else held
        for name, held in own.items()
        if not name.startswith("__")
    }


def tensors_of(state: object, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of nested dictionaries and lists, with the path of keys that leads to each."""
    if isinstance(state, torch.Tensor):
        yield path, state
        return
    items: Any = ()
    if isinstance(state, dict):
        items = state.items()
    elif isinstance(state, (list, tuple)):
        items = enumerate(state)
    for key, value in items:
        yield from tensors_of(value, f"{path}.{key}" if path else str(key))

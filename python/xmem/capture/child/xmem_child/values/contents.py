"""What is known about the memory of the phantom GPU, by storage.

A fact is about a whole storage: its bytes, one number that fills it, the share of a mask that is true, or
numbers that all of its elements are among. It ends with the storage, and with anything that may have written
something unknown into it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

import torch

from . import host_tensors

# Fewer than trigger Python's garbage collection: most facts end young, like the tensors that they describe.
_SWEEP_AT_LEAST = 128

Number = bool | int | float | complex


class Fact:
    """What is known about one storage: one of ``bytes``, ``later``, ``number``, ``draw``, ``share`` and
    ``among``.

    Attributes:
        draw: Draws its random numbers, too many to keep one by one: routes follow from them.
        view: The values in the form of the tensor that asked last, for the next one, which mostly has the
            same; what it adds to an address in them, where there are bytes, gives one on the GPU (``shift``).
        is_even: Whether it counts something unknown that was spread evenly (tokens of experts).
    """

    __slots__ = (
        "among",
        "bytes",
        "draw",
        "dtype",
        "is_even",
        "later",
        "number",
        "share",
        "shift",
        "view",
        "watched",
        "weak",
    )

    def __init__(self, weak: int, watched: int) -> None:
        self.weak = weak
        self.watched = watched
        self.view: torch.Tensor | None = None
        self.shift = 0
        self.bytes: torch.UntypedStorage | None = None
        self.later: Callable[[], torch.Tensor | None] | None = None
        self.number: Number | None = None
        self.dtype = torch.uint8  # of number
        self.draw: Callable[[], torch.Tensor | None] | None = None
        self.share: float | None = None
        self.among: torch.Tensor | None = None
        self.is_even = False

    @property
    def gives_values(self) -> bool:
        """Whether it gives the value of each element."""
        return self.share is None and self.among is None and self.draw is None


def weight(dtype: torch.dtype) -> float:
    """Return how much an element of a type counts towards the limit of what is kept."""
    return 1.0 if dtype.is_floating_point or dtype.is_complex else 0.125


class Contents:
    """Facts about storages of the GPU, as tensors of the host.

    Ask it only where operators are not followed (``unfollowed``): it calls some itself.

    Attributes:
        has_even: Whether anything was noted that counts what is spread evenly.

    Args:
        most_elements: Limit for a tensor of floats whose values are kept one by one; one of integers or a
            mask may have eight times as many elements, since sizes come from those (routes of experts,
            lengths).
        watch: Tells what else may have written to memory; by default the kernels that are launched.
    """

    # Whether nobody computes what is in a tensor's memory, so that facts stand for its values.
    is_fake: Callable[[torch.Tensor], bool] = staticmethod(attrgetter("is_cuda"))

    def __init__(self, most_elements: int, watch: Watch | None = None) -> None:
        self.most_elements = most_elements
        self._facts: dict[int, Fact] = {}  # by the address of the StorageImpl
        self._sweep_at = _SWEEP_AT_LEAST
        self._unwritten: dict[int, int] = {}  # weak references to storages of the host, by their addresses
        self._watch = watch or _LaunchWatch()
        self._marks = self._watch.marks
        self.has_even = False

    def is_small(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor may be kept element by element."""
        return self._few(tensor.numel(), tensor.dtype)

    def _few(self, elements: int, dtype: torch.dtype) -> bool:
        return elements <= self.most_elements or elements * weight(dtype) <= self.most_elements

    def __bool__(self) -> bool:
        return bool(self._facts)

    def has_nothing_of(self, args: tuple[Any, ...]) -> bool:
        """Return whether nothing is known about the first tensor among arguments, a GPU tensor: a quick
        no."""
        for a in args:
            first = a[0] if isinstance(a, (list, tuple)) and a else a
            if isinstance(first, torch.Tensor):
                unknown = self.is_fake(first) and torch._C._storage_address(first) not in self._facts
                return unknown and first.numel() != 0
        return False

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether anything was noted about the tensor's storage."""
        return torch._C._storage_address(tensor) in self._facts

    def knows(self, tensor: torch.Tensor) -> bool:
        """Return whether a fact about the tensor's storage gives values."""
        fact = self._fact(tensor)
        return fact is not None and fact.gives_values

    def number(self, tensor: torch.Tensor) -> Number | None:
        """Return the number that fills a GPU tensor, None if there is none or it is not known."""
        fact = self._fact(tensor)
        if fact is None or not fact.gives_values:
            return None
        if fact.number is not None:
            return fact.number if fact.dtype == tensor.dtype else None
        values = self.tensor(tensor)
        if values is None or not bool((values == values.flatten()[0]).all()):
            return None
        number: Number = values.flatten()[0].item()
        return number

    def has_share(self, mask: torch.Tensor) -> bool:
        """Return whether it was noted how much of the mask is true."""
        fact = self._fact(mask)
        return fact is not None and fact.share is not None

    def tensor(self, tensor: torch.Tensor, *, to_write: bool = False) -> torch.Tensor | None:
        """Return the values of a GPU tensor, as a host tensor with the same strides.

        Args:
            tensor: Of the GPU.
            to_write: Whether it will be written: what is written is known from then on.

        Returns:
            The values; None if they are unknown or too many.
        """
        fact = self._facts.get(torch._C._storage_address(tensor))
        if fact is not None and (fact.watched < 0 or self._marks[fact.watched]):
            fact = self._fact(tensor)
        if fact is None:
            if tensor.numel():
                return None
            # There is nothing to know.
            return host_tensors.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        view = fact.view
        if (
            view is not None
            and view.size() == tensor.size()
            and view.dtype == tensor.dtype
            and not (tensor.is_neg() or tensor.is_conj())
        ):
            if fact.number is not None:
                if not to_write:
                    return view
            # The address tells the place in the storage, and that the storage was not resized since.
            elif view.stride() == tensor.stride() and tensor.data_ptr() - view.data_ptr() == fact.shift:
                return view
        return self._in_form(tensor, fact, to_write)

    def _in_form(self, tensor: torch.Tensor, fact: Fact, to_write: bool) -> torch.Tensor | None:
        """Return the values of a storage in the form of a tensor, and keep that form for the next one."""
        if not tensor.numel():
            return host_tensors.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        if not fact.gives_values or tensor.is_conj() or tensor.is_neg():
            return None
        if fact.number is not None and not to_write and tensor.dtype == fact.dtype:
            fact.view = host_tensors.full((), fact.number, dtype=fact.dtype).expand(tensor.size())
            return fact.view
        kept = self._bytes(tensor, fact)
        if kept is None or not self.is_small(tensor):
            return None
        view = host_tensors.empty(0, dtype=tensor.dtype)
        view.set_(kept, tensor.storage_offset(), tensor.size(), tensor.stride())
        fact.view, fact.shift = view, tensor.data_ptr() - view.data_ptr()
        return view

    def share(self, mask: torch.Tensor) -> float:
        """Return the share of a mask of unknown values that is taken as true: all of it, a slice's share of
        the larger tensor, or what was noted."""
        fact = self._fact(mask)
        if fact is not None and fact.share is not None:
            return fact.share
        whole = storage_of(mask).nbytes() // mask.element_size()
        return mask.numel() / whole if 0 < mask.numel() < whole else 1.0

    def set(self, tensor: torch.Tensor, values: torch.Tensor, *, fresh: bool = False) -> None:
        """Keep the values of a tensor that is all of its storage; of a part only where the rest is known.

        Args:
            tensor: Of the GPU.
            values: Host tensor that shares no memory with anything else.
            fresh: Whether the storage was made for this tensor, so that the rest of it does not matter.
        """
        if not self._few(values.numel(), tensor.dtype):
            self.forget(tensor)
            return
        storage = storage_of(tensor)
        if is_whole(tensor, storage):
            self._set_whole(tensor, storage, values)
        elif fresh:
            whole = host_tensors.zeros(storage.nbytes(), dtype=torch.uint8).untyped_storage()
            part = host_tensors.empty(0, dtype=tensor.dtype)
            part.set_(whole, tensor.storage_offset(), tensor.size(), tensor.stride()).copy_(values)
            self._new_fact(tensor, storage).bytes = whole
        elif (view := self.tensor(tensor, to_write=True)) is not None:
            view.copy_(values)
        else:
            self.forget(tensor)

    def set_copy(self, tensor: torch.Tensor, values: torch.Tensor) -> bool:
        """Keep a copy of values, which may be of another type or size, if they are few and the tensor is all
        of its storage; returns whether that is so."""
        storage = storage_of(tensor)
        if not is_whole(tensor, storage) or not self.is_small(tensor):
            return False
        if values.size() == tensor.size() and values.stride() == tensor.stride():
            values = values.to(tensor.dtype, copy=True)
        else:
            values = host_tensors.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype).copy_(
                values
            )
        self._set_whole(tensor, storage, values)
        return True

    def _set_whole(self, tensor: torch.Tensor, storage: torch.UntypedStorage, values: torch.Tensor) -> None:
        kept = values.untyped_storage()
        alike = values.size() == tensor.size() and values.stride() == tensor.stride()
        if not alike or values.dtype != tensor.dtype or kept.nbytes() != storage.nbytes():
            values = host_tensors.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype).copy_(
                values
            )
            kept = values.untyped_storage()
        fact = self._new_fact(tensor, storage)
        fact.bytes = kept
        fact.view, fact.shift = values, tensor.data_ptr() - values.data_ptr()

    def set_later(self, tensor: torch.Tensor, draw: Callable[[], torch.Tensor | None]) -> None:
        """Keep a function that finds the values of a tensor; they may turn out to be unknown."""
        storage = storage_of(tensor)
        if is_whole(tensor, storage) and self.is_small(tensor):
            self._new_fact(tensor, storage).later = draw
        else:
            self.forget(tensor)

    def set_draw(self, tensor: torch.Tensor, draw: Callable[[], torch.Tensor | None]) -> None:
        """Keep a function that draws the numbers of a tensor. Of as many as there may be integers, only what
        ``draw_of`` is asked for is found out."""
        storage = storage_of(tensor)
        if self.is_small(tensor):
            self.set_later(tensor, draw)
        elif is_whole(tensor, storage) and self._few(tensor.numel(), torch.int64):
            self._new_fact(tensor, storage).draw = draw
        else:
            self.forget(tensor)

    def draw_of(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor | None] | None:
        """Return what draws the numbers of a tensor, where they are too many to keep one by one."""
        fact = self._fact(tensor)
        return None if fact is None else fact.draw

    def fill(self, tensor: torch.Tensor, number: Number) -> None:
        """Note that all elements are one number."""
        storage = storage_of(tensor)
        if is_whole(tensor, storage):
            fact = self._new_fact(tensor, storage)
            fact.number, fact.dtype = number, tensor.dtype
        elif (view := self.tensor(tensor, to_write=True)) is not None:
            view.fill_(number)
        else:
            self.forget(tensor)

    def note_share(self, mask: torch.Tensor, share: float) -> None:
        """Note the share of a mask that is true; its values are unknown."""
        storage = storage_of(mask)
        if is_whole(mask, storage):
            self._new_fact(mask, storage).share = share

    def among(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the distinct numbers, ascending, that each element is one of; None if unknown."""
        fact = self._fact(tensor)
        return None if fact is None or fact.among is None else fact.among.to(tensor.dtype)

    def note_among(self, tensor: torch.Tensor, numbers: torch.Tensor) -> None:
        """Note that the values are unknown, but that each is one of these distinct, ascending numbers."""
        storage = storage_of(tensor)
        if is_whole(tensor, storage):
            self._new_fact(tensor, storage).among = numbers

    def note_even(self, counts: torch.Tensor) -> None:
        """Note that the values count something unknown, spread evenly."""
        fact = self._fact(counts)
        if fact is not None:
            fact.is_even = self.has_even = True

    def is_even(self, tensor: torch.Tensor) -> bool:
        """Return whether the values follow from counts of something that was spread evenly."""
        fact = self._fact(tensor) if self.has_even else None
        return fact is not None and fact.is_even

    def follow_even(self, result: torch.Tensor, inputs: Iterable[int]) -> None:
        """Note a result that follows from such counts among the storages with these addresses."""
        if self.has_even and any((fact := self._facts.get(a)) is not None and fact.is_even for a in inputs):
            self.note_even(result)

    def note_unwritten(self, tensor: torch.Tensor) -> None:
        """Note that a write of the host to one of its own tensors was skipped: its values are unknown."""
        storage = storage_of(tensor)
        if not self.is_unwritten(tensor):
            self._unwritten[storage._cdata] = storage._weak_ref()

    def is_unwritten(self, tensor: torch.Tensor) -> bool:
        """Return whether a write to a host tensor was skipped."""
        if not self._unwritten:
            return False
        address = torch._C._storage_address(tensor)
        weak = self._unwritten.get(address)
        if weak is None or not torch.UntypedStorage._expired(weak):
            return weak is not None
        del self._unwritten[address]  # the storage is gone, and another one may have its address
        torch.UntypedStorage._free_weak_ref(weak)
        return False

    def hold(self, tensor: torch.Tensor) -> Fact | None:
        """Return what is known now, to be renewed if a launch turns out to only read the tensor."""
        return self._fact(tensor)

    def renew(self, tensor: torch.Tensor, held: Fact) -> None:
        """Restore a fact that was held before a launch and still holds after it."""
        if self._facts.get(torch._C._storage_address(tensor)) is held:
            self._watch.end(held.watched)
            storage = storage_of(tensor)
            held.watched = self._watch.begin(storage.data_ptr(), storage.nbytes())

    def forget(self, tensor: torch.Tensor) -> None:
        """Forget what is known: something unknown was written."""
        fact = self._facts.pop(torch._C._storage_address(tensor), None)
        if fact is not None:
            self._drop(fact)

    def _fact(self, tensor: torch.Tensor) -> Fact | None:
        fact = self._facts.get(torch._C._storage_address(tensor))
        if fact is None or (fact.watched >= 0 and not self._marks[fact.watched]):
            return fact
        self.forget(tensor)
        return None

    def _new_fact(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> Fact:
        self.forget(tensor)
        if len(self._facts) >= self._sweep_at:
            self._sweep()
        fact = Fact(storage._weak_ref(), self._watch.begin(storage.data_ptr(), storage.nbytes()))
        self._facts[storage._cdata] = fact
        return fact

    def _bytes(self, tensor: torch.Tensor, fact: Fact) -> torch.UntypedStorage | None:
        """Return the values of a whole storage; compute them now if that was put off."""
        nbytes = storage_of(tensor).nbytes()
        if fact.bytes is None and fact.later is not None:
            later, fact.later = fact.later, None
            found = later()
            fact.bytes = None if found is None else found.untyped_storage()
        if fact.number is not None:
            elements = nbytes // fact.dtype.itemsize
            if not self._few(elements, fact.dtype):
                self.forget(tensor)
                return None
            fact.bytes = host_tensors.full((elements,), fact.number, dtype=fact.dtype).untyped_storage()
            fact.number = fact.view = None
        if fact.bytes is None or fact.bytes.nbytes() != nbytes:  # unknown after all, or resized since
            self.forget(tensor)
            return None
        return fact.bytes

    def _sweep(self) -> None:
        """Drop what is known about storages that are gone."""
        gone = [key for key, fact in self._facts.items() if torch.UntypedStorage._expired(fact.weak)]
        for key in gone:
            self._drop(self._facts.pop(key))
        self._sweep_at = max(2 * len(self._facts), _SWEEP_AT_LEAST)

    def _drop(self, fact: Fact) -> None:
        torch.UntypedStorage._free_weak_ref(fact.weak)
        self._watch.end(fact.watched)


# A storage that Python has seen keeps its Python object, which torch 2.10 and newer count among its owners.
# The engine then adds gradients out of place (``can_accumulate_inplace`` asks for one owner), which takes
# memory that no real run takes. In this state, which torch has for several interpreters in one process, a
# storage gets an object that it does not know about.
_c10 = ctypes.PyDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
_init_hermetic = getattr(_c10, "_ZN3c104impl19HermeticPyObjectTLS10init_stateEv", None)
_set_hermetic = getattr(_c10, "_ZN3c104impl19HermeticPyObjectTLS9set_stateEb", None)
if _init_hermetic is not None:
    _init_hermetic()


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Return the storage of a tensor without leaving a trace on it."""
    if _set_hermetic is None:
        return tensor.untyped_storage()
    _set_hermetic(True)
    try:
        return tensor.untyped_storage()
    finally:
        _set_hermetic(False)


def is_whole(tensor: torch.Tensor, storage: torch.UntypedStorage | None = None) -> bool:
    """Return whether a tensor covers all of its storage, each element once."""
    elements = tensor.numel()
    if storage is None:
        storage = storage_of(tensor)
    if elements * tensor.element_size() != storage.nbytes():
        return False
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


class Watch(Protocol):
    """Ranges of memory that something else than operators may write to.

    Attributes:
        marks: By number, not 0 once that may have happened.
    """

    marks: memoryview

    def begin(self, address: int, nbytes: int) -> int:
        """Watch a range from now on; return its number, -1 if too many are watched."""

    def end(self, watched: int) -> None:
        """Stop watching it."""


class _LaunchWatch:
    """Ranges of device memory that kernels other than PyTorch's may write to: the phantom looks for their
    addresses among the arguments of each launch (``memory/watched.hpp``).

    Attributes:
        marks: By number, not 0 once a kernel may have written to the range.
    """

    def __init__(self) -> None:
        library = ctypes.PyDLL(None)  # short calls, for which the interpreter's lock is not given away
        self._begin = library.xmem_phantom_watch
        self._begin.argtypes, self._begin.restype = [ctypes.c_uint64, ctypes.c_uint64], ctypes.c_int32
        self._end = library.xmem_phantom_unwatch
        self._end.argtypes, self._end.restype = [ctypes.c_int32], None
        marks = library.xmem_phantom_touched
        marks.argtypes, marks.restype = [ctypes.POINTER(ctypes.c_int32)], ctypes.c_void_p
        count = ctypes.c_int32()
        address = marks(ctypes.byref(count))
        self.marks = memoryview((ctypes.c_uint8 * count.value).from_address(address)).cast("B")

    def begin(self, address: int, nbytes: int) -> int:
        """Watch a range from now on; return its number, -1 if too many are watched: it counts as written
        to."""
        return int(self._begin(address, nbytes))

    def end(self, watched: int) -> None:
        """Stop watching it."""
        if watched >= 0:
            self._end(watched)

"""Operators of tensors on the CPU that make their results and compute nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...unseen import Aside, Unseen
from ...values.contents import storage_of
from ...values.operators import CPU_KEYS, Operator, calls, is_arithmetic, unfollowed
from ..attention_kernels import result_strides
from .contents import FakeContents, zero
from .results import GIVEN, NEW, SEVERAL, NoResultError, Results

# What they write does not depend on what was there.
_OVERWRITING = frozenset(
    """zero_ fill_.Scalar fill_.Tensor copy_ normal_ uniform_ random_ random_.from random_.to bernoulli_.float
    bernoulli_.Tensor exponential_ log_normal_ cauchy_ geometric_ _fill_mem_eff_dropout_mask_""".split()  # noqa: SIM905
)
_LISTS = ("_foreach_", "_fused_")
# Losses whose result keeps the memory of all elements, though it is one number (``resize_({})`` in the
# ``TORCH_META_FUNC`` of Loss.cpp, ``resize_as_`` in cuda/Loss.cu), and those that take as much meanwhile.
_KEPT_LOSSES = ("mse_loss", "smooth_l1_loss", "binary_cross_entropy")
_STAGED_LOSSES = ("mse_loss", "smooth_l1_loss", "huber_loss")
_COPIES = frozenset({"_to_copy", "lift_fresh_copy"})

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class _Count(threading.local):
    """How many elements the operators of this thread find, that look for some in unknown values."""

    value = 0


class Maker:
    """Makes what operators would return.

    Args:
        contents: Where it is noted that nobody has written them.
        aside: Where PyTorch is asked what operators return.
        unseen: Shows new tensors to the profiler, inside of what it does not see.
    """

    def __init__(self, contents: FakeContents, aside: Aside, unseen: Unseen) -> None:
        self._contents = contents
        self._unseen = unseen
        self._results = Results(aside)
        self._empty_strided = Operator(torch.ops.aten.empty_strided.default)
        self._count = _Count()
        self._convolution = FakeOperator(torch.ops.aten.convolution.default, self)
        self._special: dict[str, Callable[..., Any]] = {
            "convolution": self._convolve,
            "_convolution": self._convolved,
            "_local_scalar_dense": self._number,
            "equal": lambda *_: False,
            "resize_": self._resized,
            "nonzero": self._places,
            "bincount": self._bins,
            "masked_select": self._selected,
            **dict.fromkeys(("_unique2", "_unique"), self._unique),
            **dict.fromkeys(("unique_dim", "unique_dim_consecutive", "unique_consecutive"), self._unique),
            **dict.fromkeys(("index.Tensor", "_unsafe_index.Tensor"), self._index),
            **dict.fromkeys(
                ("index_put_", "index_put", "_unsafe_index_put", "_index_put_impl_"), self._index
            ),
            "_scaled_dot_product_flash_attention_for_cpu": self._attention,
            "native_dropout": self._dropout,
            **dict.fromkeys((*_KEPT_LOSSES, *_STAGED_LOSSES), self._loss),
            "embedding_dense_backward": self._embedded,
            "_amp_foreach_non_finite_check_and_unscale_": self._unscaled,
        }

    def make_specially(self, name: str, make: Callable[..., Any]) -> None:
        """Let a function make the results of an operator, with the arguments of ``make``."""
        self._special[name] = make

    @contextmanager
    def counting(self, count: int) -> Iterator[None]:
        """Make operators that look for elements in unknown values find as many, meanwhile."""
        outer, self._count.value = self._count.value, count
        try:
            yield
        finally:
            self._count.value = outer

    def make(self, operator: FakeOperator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Return what a call would return, and note what it would write to, without any values.

        An operator that PyTorch has no description of is computed, with whatever values there are.
        """
        special = self._special.get(operator.name)
        if special is not None:
            return special(operator, keys, args, kwargs)
        return self.make_plainly(operator, keys, args, kwargs)

    def make_plainly(self, operator: FakeOperator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Return what a call would return, by PyTorch's description, or computed where there is none."""
        try:
            return self.make_described(operator, args, kwargs)
        except NoResultError:
            return self._computed(operator, keys, args, kwargs)

    def make_described(self, operator: FakeOperator, args: Args, kwargs: Kwargs) -> Any:
        """Return what a call would return, by PyTorch's description of its result alone.

        Raises:
            NoResultError: There is none, or the arguments are wrong.
        """
        if operator.returns_nothing:
            self._lose_written(operator, args, kwargs)
            return None
        described, sizes = self._results.of(operator, args, kwargs)
        with unfollowed():
            self._lose_written(operator, args, kwargs)
            for name, size in zip(sorted(operator.outputs), sizes, strict=True):
                out = kwargs[name]
                if tuple(out.size()) != size:
                    out.resize_(size)
                self._contents.lose(out)
            return self._build(described, args, kwargs)

    def _computed(self, operator: FakeOperator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        with unfollowed():
            was_hidden = self._unseen.begin_seen()
            try:
                result = operator.call_at(keys, args, kwargs)
            finally:
                if was_hidden:
                    self._unseen.end_seen()
            self._lose_written(operator, args, kwargs)
            for tensor in tensors_in(result):
                if tensor.layout is torch.strided:
                    self._contents.lose(tensor)
        return result

    def _lose_written(self, operator: FakeOperator, args: Args, kwargs: Kwargs) -> None:
        for written in operator.written_in(args, kwargs):
            for tensor in tensors_in(written):
                self._contents.lose(tensor)

    def _build(self, described: Any, args: Args, kwargs: Kwargs) -> Any:
        kind = described[0]
        if kind == NEW:
            return self.new(described[1], described[2], described[3])
        if kind == GIVEN:
            place = described[1]
            return kwargs[place] if isinstance(place, str) else args[place]
        if kind == SEVERAL:
            return described[1]([self._build(each, args, kwargs) for each in described[2]])
        return described[1]

    def new(self, size: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
        """Make a tensor that nobody has written."""
        was_hidden = self._unseen.begin_seen()
        made: torch.Tensor = self._empty_strided.redispatch(CPU_KEYS, size, strides, dtype=dtype)
        if was_hidden:
            self._unseen.end_seen()
        zero(made)
        self._contents.lose(made)
        return made

    # Operators whose results depend on values, or differ from CUDA's.

    def _number(self, _operator: Any, _keys: Any, args: Args, _kwargs: Kwargs) -> Any:
        dtype = args[0].dtype
        if dtype == torch.bool:
            return False
        return 0.0 if dtype.is_floating_point else 0j if dtype.is_complex else 0

    def _resized(self, operator: FakeOperator, keys: Any, args: Args, kwargs: Kwargs) -> torch.Tensor:
        """Resize a tensor; nobody wrote what a larger one holds."""
        tensor: torch.Tensor = args[0]
        with unfollowed():
            before = storage_of(tensor).nbytes()
            was_hidden = self._unseen.begin_seen()
            operator.redispatch(keys, *args, **kwargs)
            if was_hidden:
                self._unseen.end_seen()
            if storage_of(tensor).nbytes() > before:
                self._contents.lose(tensor)
        return tensor

    def _places(self, _operator: Any, _keys: Any, args: Args, _kwargs: Kwargs) -> torch.Tensor:
        count = self._count.value
        with unfollowed():
            return self.new((count, args[0].dim()), (1, count), torch.int64)

    def _bins(self, operator: FakeOperator, _keys: Any, args: Args, kwargs: Kwargs) -> torch.Tensor:
        weights = operator.given("weights", args, kwargs)
        dtype = torch.int64 if weights is None else torch.float64
        if weights is not None and weights.dtype == torch.float32:
            dtype = torch.float32
        with unfollowed():
            return self.new((max(operator.given("minlength", args, kwargs), 1),), (1,), dtype)

    def _selected(self, _operator: Any, _keys: Any, args: Args, _kwargs: Kwargs) -> torch.Tensor:
        tensor, mask = torch.broadcast_tensors(args[0], args[1])
        return torch.ops.aten.index.Tensor(tensor, [mask])

    def _unique(self, operator: FakeOperator, _keys: Any, args: Args, kwargs: Kwargs) -> Any:
        tensor, count = args[0], self._count.value
        by_dim = "dim" in operator.name
        along = tensor.size(args[1]) if by_dim else tensor.numel()
        size = [count]
        if by_dim:
            size = list(tensor.size())
            size[args[1]] = count
        names = {argument.name for argument in operator.arguments}
        wants = {
            name: name in names and operator.given(name, args, kwargs)
            for name in ("return_inverse", "return_counts")
        }
        inverse = (along,) if by_dim else tuple(tensor.size())
        with unfollowed():
            found = [
                self.new(tuple(size), _contiguous(size), tensor.dtype),
                self.new(inverse, _contiguous(inverse), torch.int64)
                if wants["return_inverse"] or by_dim
                else self.new((0,), (1,), torch.int64),
            ]
            if operator.name != "_unique":
                counts = (count,) if wants["return_counts"] else (0,)
                found.append(self.new(counts, (1,), torch.int64))
        return tuple(found)

    def _index(self, operator: FakeOperator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Find the places of masks first, as the kernels do themselves."""
        indices: list[Any] = []
        for index in args[1]:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                indices += torch.ops.aten.nonzero.default(index).unbind(1)
            else:
                indices.append(index)
        return self.make_plainly(operator, keys, (args[0], indices, *args[2:]), kwargs)

    def _convolve(self, _operator: Any, _keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Call the operator inside, as PyTorch does: its arguments say what cuDNN may do."""
        backend = torch.backends.cudnn
        settings = backend.benchmark, backend.deterministic, backend.enabled, backend.allow_tf32
        return torch.ops.aten._convolution.default(*args, *settings, **kwargs)

    def _convolved(self, _operator: Any, keys: Any, args: Args, _kwargs: Kwargs) -> Any:
        return self.make_plainly(self._convolution, keys, args[: len(self._convolution.arguments)], {})

    def _unscaled(self, _operator: Any, _keys: Any, args: Args, _kwargs: Kwargs) -> None:
        """Lose the gradients; that one of them is infinite is not found."""
        for gradient in args[0]:
            self._contents.lose(gradient)

    def _dropout(self, _operator: Any, _keys: Any, args: Args, _kwargs: Kwargs) -> Any:
        """Make the mask first, as the kernels do."""
        tensor = args[0]
        with unfollowed():
            size, strides = tuple(tensor.size()), dense_strides(tensor)
            mask = self.new(size, strides, torch.bool)
            return self.new(size, strides, tensor.dtype), mask

    def _loss(self, operator: FakeOperator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Make the losses of all elements, which are reduced to one number afterwards."""
        if operator.given("reduction", args, kwargs) == 0:
            return self.make_plainly(operator, keys, args, kwargs)
        with unfollowed():
            size = tuple(torch.broadcast_shapes(args[0].size(), args[1].size()))
            dtype = torch.result_type(args[0], args[1])
            kept = self.new(size, _contiguous(size), dtype) if operator.name in _KEPT_LOSSES else None
            staged = self.new(size, _contiguous(size), dtype) if operator.name in _STAGED_LOSSES else None
            result = self.new((), (), dtype) if kept is None else kept.resize_(())
            del staged
        return result

    def _embedded(self, operator: FakeOperator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Make a contiguous copy of the gradient first, as the kernels do; it ends with the call."""
        gradient = args[0]
        with unfollowed():
            size = tuple(gradient.size())
            copied = None if gradient.is_contiguous() else self.new(size, _contiguous(size), gradient.dtype)
        result = self.make_plainly(operator, keys, args, kwargs)
        del copied
        return result

    def _attention(self, operator: FakeOperator, _keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Make the result with CUDA's strides (see ``alignments``)."""
        query, key, value = args[:3]
        batch, heads, length, _ = query.shape
        mask, is_causal = (operator.given(name, args, kwargs) for name in ("attn_mask", "is_causal"))
        with unfollowed():
            strides = result_strides(query, key, value, mask, is_causal)
            return (
                self.new((batch, heads, length, value.size(-1)), strides, query.dtype),
                self.new((batch, heads, length), (length * heads, 1, heads), torch.float32),
            )


class FakeOperator(Operator):
    """One overload of an operator, which is computed where all that it reads is known and small.

    Attributes:
        returns_nothing: Whether it only writes.
        is_elementwise: Whether the numbers that it is given do not decide about sizes.
        is_arithmetic: Whether its result follows from the weights of a model.
        overwrites: Whether its result depends on nothing that was in the tensor which it writes to.
        resizes: Whether it gives a tensor memory that nobody has written.
    """

    __slots__ = ("_maker", "is_arithmetic", "is_elementwise", "overwrites", "resizes", "returns_nothing")

    def __init__(self, overload: Any, maker: Maker) -> None:
        super().__init__(overload)
        base = self.name.partition(".")[0]
        self._maker = maker
        self.returns_nothing = not overload._schema.returns
        self.is_arithmetic = self.is_own and base not in _COPIES and is_arithmetic(base)
        self.overwrites = self.name in _OVERWRITING
        self.resizes = self.name == "resize_"
        self.is_elementwise = self.is_pointwise or base.startswith(_LISTS)

    def make(self, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Make the result of a call, and keep nothing of it."""
        return self._maker.make(self, keys, args, kwargs)

    def call(self, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Make the result of a call, as a kernel calls it."""
        current = calls.current
        current.began = True
        current.result = result = self._maker.make(self, keys, args, kwargs)
        return result

    call_ready = call


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a value as operators take and return them."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from tensors_in(value)


def dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides that a result has which keeps the layout of a tensor."""
    return tuple(torch.empty_like(tensor, device="meta").stride())


def _contiguous(size: Any) -> tuple[int, ...]:
    strides, step = [], 1
    for length in reversed(size):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))

"""``flex_attention`` inside ``torch.compile``: one kernel of Triton forward and one backward on CUDA.

The eager one makes all scores, on the CPU as on CUDA, and is left as it is. The compiled one keeps the
logarithms of sums beside its result, and makes no scores: Inductor allocates here what
``torch/_inductor/kernel/flex`` (torch 2.6 to 2.13) asks for, in its order. Short queries are decoded by
another kernel, which splits the keys over the multiprocessors and adds the parts up.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch

from ...following_imports import after_import
from ...unseen import Unseen
from ..compilation import region

_enter = torch._C._autograd._record_function_with_args_enter
_exit = torch._C._autograd._record_function_with_args_exit
_record = torch._C._autograd._enable_record_function

_DECODED_BELOW = 128  # queries; _use_flex_decoding
_EAGER_NOTE = (
    "flex_attention ran eagerly and trains a tensor that its function of the scores reads: a GPU sorts "
    "indices for that, in large buffers that are not counted here; compile it, or capture with --mode phantom"
)
_BACKENDS = ("AUTO", "TRITON", "TRITON_DECODE")
# Of a block mask, in the order in which compiled code allocates them.
_MASK_RESULTS = (
    "kv_num_blocks",
    "full_kv_num_blocks",
    "kv_indices",
    "full_kv_indices",
    "q_indices",
    "q_num_blocks",
    "full_q_indices",
    "full_q_num_blocks",
)

Lose = Callable[[torch.Tensor], None]


def follow_flex_attention(lose: Lose, assume: Callable[[str], None]) -> None:
    """Make compiled ``flex_attention`` and ``create_block_mask`` allocate what they do on CUDA.

    Args:
        lose: Takes tensors that nobody computes.
        assume: Takes a sentence that a reader of the estimate should know.
    """

    def follow(module: ModuleType) -> None:
        _follow_attention(module, lose, assume)
        _follow_masks(module, lose)
        over_places = module._vmap_for_bhqkv
        module._vmap_for_bhqkv = lambda function, *args, **kwargs: over_places(  # type: ignore[attr-defined]
            _unrecorded(function), *args, **kwargs
        )

    after_import("torch.nn.attention.flex_attention", follow)


def _follow_attention(module: ModuleType, lose: Lose, assume: Callable[[str], None]) -> None:
    in_eager = module.flex_attention_hop
    gives_maxima = hasattr(module, "AuxRequest")  # came with the third result

    @functools.wraps(in_eager)
    def attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        score_mod: Any,
        block_mask: tuple[Any, ...],
        scale: float,
        kernel_options: dict[str, Any],
    ) -> Any:
        captured = list(_captured(score_mod, {}))
        if not region.active:
            if not captured:
                return in_eager(query, key, value, score_mod, block_mask, scale, kernel_options)
            if torch.is_grad_enabled() and any(each.requires_grad for each in captured):
                assume(_EAGER_NOTE)
            lifted = _lifted(score_mod, captured)
            return in_eager(query, key, value, lifted, block_mask, scale, kernel_options, tuple(captured))
        backend = kernel_options.get("BACKEND", "AUTO")
        if backend not in _BACKENDS:
            raise NotImplementedError(
                f"flex_attention with BACKEND={backend!r}: --mode fake does not know what its kernels "
                "allocate. Leave the backend out, or capture with --mode phantom."
            )
        if gives_maxima and torch.is_autocast_enabled("cuda"):
            query, key, value = (each.to(torch.get_autocast_dtype("cuda")) for each in (query, key, value))
        masks = [each for each in block_mask if isinstance(each, torch.Tensor)]
        call = _Call(masks[1].size(1), kernel_options, gives_maxima, lose)
        captured = [each for each in captured if each.requires_grad]
        out, sums, maxima = _Attention.apply(call, query, key, value, len(captured), *captured, *masks)
        if torch.is_grad_enabled() and out.requires_grad:
            out, sums = _Delta.apply(call, out, sums, *captured)
        return (out, sums, maxima) if gives_maxima else (out, sums)

    module.flex_attention_hop = attend  # type: ignore[attr-defined]
    warn = getattr(module, "_warn_once", None)
    if warn is not None:

        @functools.wraps(warn)
        def warn_in_eager(*args: Any, **kwargs: Any) -> None:
            if not region.active:
                warn(*args, **kwargs)

        module._warn_once = warn_in_eager  # type: ignore[attr-defined]


def _follow_masks(module: ModuleType, lose: Lose) -> None:
    create, create_empty = module.create_block_mask, module._create_empty_block_mask
    unseen = Unseen()

    @functools.wraps(create)
    def create_block_mask(*args: Any, **kwargs: Any) -> Any:
        if not region.active:
            return create(*args, **kwargs)
        with unseen:  # the mask itself, which is as large as the scores of a head
            mask = create(*args, **kwargs)
        blocks = mask.kv_indices
        size = tuple(blocks.shape[:-1])
        temporary = {
            until: _made(blocks, (*size, blocks.shape[-1] + more), dtype, lose)
            for until, more, dtype in ((4, 0, torch.int64), (8, 1, torch.int32), (6, 1, torch.int32))
        }
        _settle(mask, temporary)
        return mask

    @functools.wraps(create_empty)
    def create_empty_block_mask(query: torch.Tensor, key: torch.Tensor) -> Any:
        if not region.active:
            return create_empty(query, key)
        with unseen:
            mask = create_empty(query, key)
        _settle(mask, {3: _made(query, (), torch.int64, lose)})
        return mask

    module.create_block_mask = create_block_mask  # type: ignore[attr-defined]
    module._create_empty_block_mask = create_empty_block_mask  # type: ignore[attr-defined]


def _settle(mask: Any, temporary: dict[int, torch.Tensor]) -> None:
    """Give the tensors of a mask memory that is seen.

    Args:
        mask: The mask.
        temporary: What compiled code makes before them, by how many of them there are when it is gone.
    """
    names = [name for name in _MASK_RESULTS if getattr(mask, name) is not None]
    for count, name in enumerate(names):
        temporary.pop(count, None)
        setattr(mask, name, getattr(mask, name).clone())


@dataclass
class _Call:
    """One call of the compiled kernel.

    Attributes:
        mask_heads: For how many heads there is a mask.
        options: For the kernel.
        gives_maxima: Whether the kernel has a buffer for the largest score of each query.
        lose: Takes tensors that nobody computes.
        gradients: Of what the function of the scores captured, as backward adds them up.
        grad_out: As backward was given it, which is there until backward ends.
    """

    mask_heads: int
    options: dict[str, Any]
    gives_maxima: bool
    lose: Lose
    gradients: list[torch.Tensor] = field(default_factory=list)
    grad_out: torch.Tensor | None = None

    def made(self, like: torch.Tensor, size: Any, dtype: torch.dtype, strides: Any = None) -> torch.Tensor:
        """Return a tensor beside another."""
        return _made(like, size, dtype, self.lose, strides)

    def is_decoded(self, query: torch.Tensor, key: torch.Tensor) -> bool:
        """Return whether the kernel for short queries takes this call."""
        options, heads = self.options, query.size(1)
        shared = heads // key.size(1)
        return (
            options.get("BACKEND", "AUTO") != "TRITON"
            and not options.get("FORCE_USE_FLEX_ATTENTION", False)
            and not options.get("OUTPUT_MAX", False)
            and query.size(2) < _DECODED_BELOW
            and self.mask_heads in ((1,) if shared > 1 else (1, heads))
            and shared & (shared - 1) == 0
        )


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """Makes the result and the logarithms of sums, and the gradients of what is given."""

    @staticmethod
    def forward(
        ctx: Any,
        call: _Call,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        count: int,
        *captured_and_masks: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        size = (*query.shape[:3], value.size(-1))
        strides = _strides_as(size, query)
        if call.is_decoded(query, key):
            out, sums = _decode(call, query, key, size, strides)
            maxima = None
        else:
            sums = call.made(query, size[:3], torch.float32)
            maxima = call.made(query, size[:3], torch.float32) if call.gives_maxima else None
            out = call.made(query, size, query.dtype, strides)
        ctx.call, ctx.captured = call, count
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(query, key, value, sums, *captured_and_masks)
        if maxima is not None:
            ctx.mark_non_differentiable(maxima)
        return out, sums, maxima

    @staticmethod
    def backward(ctx: Any, _grad_out: Any, _delta: Any, _grad_maxima: Any) -> Any:
        call: _Call = ctx.call
        query, key, value, _, *others = ctx.saved_tensors  # once: recomputation gives them once
        batch = query.size(0)
        grad_query = call.made(query, query.shape, query.dtype, _strides_as(query.shape, query))
        grad_value, grad_key = (
            call.made(each, size, each.dtype, _strides_as(size, each))
            for each in (value, key)
            for size in [(batch, *each.shape[1:])]
        )
        if key.size(0) != batch:
            grad_key, grad_value = grad_key.sum(0, keepdim=True), grad_value.sum(0, keepdim=True)
        captured = []
        for each in others[: ctx.captured]:
            added_up = call.gradients.pop(0)
            same = each.dtype == added_up.dtype
            captured.append(added_up if same else call.made(each, each.shape, each.dtype))
        call.grad_out = None
        rest = [None] * (len(ctx.needs_input_grad) - 5 - len(captured))
        return None, grad_query, grad_key, grad_value, None, *captured, *rest


class _Delta(torch.autograd.Function):  # type: ignore[misc]
    """Makes what backward needs of the result, which is gone before the gradients are made."""

    @staticmethod
    def forward(
        ctx: Any, call: _Call, out: torch.Tensor, sums: torch.Tensor, *captured: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(out, sums, *captured)
        return out.detach(), sums.detach()

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor | None, _grad_sums: Any) -> Any:
        call: _Call = ctx.call
        out, sums, *captured = ctx.saved_tensors
        call.grad_out = grad_out
        if grad_out is None or grad_out.stride() != out.stride():  # compiled code knows one layout
            grad_out = call.made(out, out.shape, out.dtype, out.stride())
        # They are added up in float32, and made in the reverse order.
        call.gradients = [call.made(each, each.shape, torch.float32) for each in reversed(captured)][::-1]
        return None, grad_out, call.made(sums, sums.shape, torch.float32), *[None] * len(captured)


def _decode(
    call: _Call, query: torch.Tensor, key: torch.Tensor, size: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make the result of parts for splits of the keys (``create_flex_decoding_kernel``)."""
    batch, heads, length, width = size
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    splits = call.options.get("SPLIT_KV") or max(multiprocessors // (batch * key.size(1)) * 2, 1)
    maxima = call.made(query, (batch, splits, heads, length), torch.float32)
    sums = call.made(query, (batch, splits, heads, length), torch.float32)
    parts = call.made(query, (batch, splits, heads, length, width), torch.float32)
    over_splits = [call.made(query, (batch, heads, length), torch.float32) for _ in range(3)]
    del sums
    out = call.made(query, size, query.dtype, strides)
    del maxima, parts
    return out, over_splits[-1]


def _made(like: torch.Tensor, size: Any, dtype: torch.dtype, lose: Lose, strides: Any = None) -> torch.Tensor:
    made = (
        like.new_empty(size, dtype=dtype)
        if strides is None
        else like.new_empty_strided(size, strides, dtype=dtype)
    )
    lose(made)
    return made


def _strides_as(size: Any, tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of a dense tensor whose dimensions lie in the order of another's, the last one
    innermost (``infer_dense_strides``)."""
    last = len(size) - 1
    strides, step = [0] * len(size), 1
    for place in [last, *(p for p in sorted(range(len(size)), key=tensor.stride) if p != last)]:
        strides[place] = step
        step *= size[place]
    return tuple(strides)


def _lifted(score_mod: Any, captured: list[torch.Tensor]) -> Callable[..., Any]:
    """Return the function of the scores with what it captured as further arguments, as dynamo makes it."""

    def with_arguments(*args: Any) -> Any:
        given = dict(zip(map(id, captured), args[-len(captured) :], strict=True))
        return _replaced(score_mod, given)(*args[: -len(captured)])

    return with_arguments


def _unrecorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose operators the profiler does not see, but as one.

    It notes the shapes of what operators are given, and with that keeps what a tensor of ``vmap`` inside
    another consists of until the profile ends (``BatchedTensorImpl`` and the profiler's weak references,
    torch 2.6 to 2.13).
    """

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        handle = _enter("flex_attention")
        _record(False)
        try:
            return function(*args)
        finally:
            _record(True)
            _exit(handle)

    return call


def _replaced(value: Any, given: dict[int, Any]) -> Any:
    """Return a function that reads other tensors where it captured these."""
    if id(value) in given:
        return given[id(value)]
    if isinstance(value, functools.partial):
        return functools.partial(
            _replaced(value.func, given),
            *(_replaced(each, given) for each in value.args),
            **{name: _replaced(each, given) for name, each in value.keywords.items()},
        )
    if isinstance(value, FunctionType) and not given.keys().isdisjoint(map(id, _captured(value, {}))):
        cells = tuple(CellType(_replaced(cell.cell_contents, given)) for cell in value.__closure__ or ())
        read = {name: _replaced(value.__globals__[name], given) for name in _globals_of(value)}
        return FunctionType(
            value.__code__, {**value.__globals__, **read}, value.__name__, value.__defaults__, cells
        )
    return value


def _captured(value: Any, seen: dict[int, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors that a function reads beside its arguments, in the order in which it does."""
    if id(value) in seen:
        return
    seen[id(value)] = value
    inside: Iterable[Any] = ()
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, functools.partial):
        inside = (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, FunctionType):
        cells = dict(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
        inside = [
            cells[i.argval].cell_contents if i.argval in cells else value.__globals__.get(i.argval)
            for i in dis.get_instructions(value)
            if i.opname.startswith("LOAD_GLOBAL") or (i.opname.startswith("LOAD_DEREF") and i.argval in cells)
        ]
    for each in inside:
        yield from _captured(each, seen)


def _globals_of(function: FunctionType) -> Iterator[str]:
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield name

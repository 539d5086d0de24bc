"""Which operators are followed, and how: a kernel at a dispatch key that PyTorch leaves free.

A ``TorchDispatchMode`` would see the same calls, but PyTorch allocates differently under one: gradients are
added out of place (``can_accumulate_inplace`` and ``isTensorSubclassLike``, torch 2.6 to 2.13). The key lies
below autograd and above the backends, so kernels see each call once, in the backward pass too, whose threads
take the set of included keys from the thread that started it. Operators without a kernel here fall through,
at no cost.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.library import Library, fallthrough_kernel

from . import host_tensors

_C = torch._C
_KEY_NAME = "Fake"
KEY = _C._dispatch_key_parse(_KEY_NAME)
_KEY_SET = _C.DispatchKeySet(KEY)
CPU_KEYS = _C.DispatchKeySet(_C.DispatchKey.CPU)

# What a call may go to below this key; anything else (modes, subclasses, functorch) calls operators again.
ON_GPU, ON_HOST, TRACED, SPARSE, AGAIN = range(5)
_GOES_TO = {
    _C.DispatchKey.CUDA: ON_GPU,
    _C.DispatchKey.CPU: ON_HOST,
    _C.DispatchKey.BackendSelect: ON_HOST,
    _C.DispatchKey.PythonDispatcher: TRACED,
    _C.DispatchKey.SparseCUDA: SPARSE,
}
BELOW: dict[int, tuple[Any, int]] = {}
"""What ``below`` returned, by the bits of all keys; there are few different ones."""


def below(keys: Any) -> tuple[Any, int]:
    """Return the keys below this one, and what a call with them goes to."""
    rest = keys.remove(KEY)
    found = BELOW[keys.raw_repr()] = rest, _GOES_TO.get(rest.highestPriorityTypeId(), AGAIN)
    return found


# Arithmetic of models, whose results are unknown because the weights are; they write to nothing but their
# results.
_ARITHMETIC = re.compile(
    r"""_backward|backward_|conv|norm(?!al)|attention|lstm|gru|rnn|mkldnn|miopen|_mps|cudnn|fft|quantiz|fake_quant
    |sparse|nested|linalg(?!_check)|mm$|^bmm|matmul|^mv$|^dot$|^vdot|pool|upsample|grid_sampl|special_|dropout|embedding
    |gelu|silu|mish|softplus|elu|glu|hard|softmax|_loss|^cdist|^_cdist|sdp|dist$|sobol|addr$|addmv|jagged
    |_copy$|^empty|^new_empty|_test_|^to_|chol|svd|qr$|lu_|triangular|_fw_primal|_lazy_clone|^resolve|^lift|pin_
    |stft|window|qscheme|^q_|vulkan|col2im|im2col|shuffle|_assert|sym_|_version|^is_|^size|^stride|_nnpack
    |^data$|^set_data|_backward$|output_nr|retains_grad|_coalesced|^_?indices|^_?values|prelu|logit|celu|rrelu
    |weight_int|fbgemm|_scaled|_int_mm|batch_dim|_cslt|_cufft|_use_|_pack_padded|_pad_packed|transformer
    |segment_reduce|_trilinear|_spdiags|binomial|_standard_gamma|_sample_dirichlet|_dirichlet""",
    re.VERBOSE,
)


# Operators of sparse tensors that have a kernel.
_OF_SPARSE = frozenset({"_coalesce"})


def is_arithmetic(base: str) -> bool:
    """Return whether an operator of PyTorch's, by its name without the overload, is arithmetic of models."""
    return _ARITHMETIC.search(base) is not None


class Operator:
    """One overload of an operator, with what its schema says.

    Attributes:
        arguments: Arguments of the schema.
        overload: ``torch.ops.NAMESPACE.NAME.OVERLOAD``.
        name: ``NAME.OVERLOAD`` or ``NAME`` with the namespace before it, unless that is ``aten``.
        written: Positions of the arguments that it writes to, and names of those passed by name.
        outputs: Names of the arguments that it overwrites completely (``out=``).
        writes: Whether there are any of those.
        random: Whether it draws numbers.
        redispatch: Calls it at any keys, with arguments as ``with_tensors`` gives them.
        is_own: Whether it is PyTorch's, not a library's.
        is_pointwise: Whether each element of the result follows from those at its position.
    """

    __slots__ = (
        "_tensor_places",
        "arguments",
        "is_own",
        "is_pointwise",
        "name",
        "outputs",
        "overload",
        "random",
        "redispatch",
        "writes",
        "written",
    )

    def __init__(self, overload: Any) -> None:
        self.overload = overload
        schema = overload._schema
        name = schema.name.removeprefix("aten::")
        self.name = f"{name}.{schema.overload_name}" if schema.overload_name else name
        arguments = self.arguments = list(schema.arguments)
        writes = [a.alias_info is not None and a.alias_info.is_write for a in arguments]
        self.outputs = frozenset(a.name for a in arguments if a.is_out)
        self.written: tuple[int | str, ...] = tuple(
            a.name if a.kwarg_only else place
            for place, (a, write) in enumerate(zip(arguments, writes, strict=True))
            if write and not a.is_out
        )
        of_tensors = [str(a.type) in ("Tensor", "Optional[Tensor]") for a in arguments]
        self._tensor_places = tuple(
            place for place, a in enumerate(arguments) if of_tensors[place] and not a.kwarg_only
        )
        self.is_own = overload.namespace in _OWN_SPACES
        self.is_pointwise = torch.Tag.pointwise in overload.tags
        self.writes = bool(self.written or self.outputs)
        self.random = torch.Tag.nondeterministic_seeded in overload.tags
        self.redispatch = overload._handle.redispatch_boxed

    def call(self, keys: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call it at the keys below this one, as the script does."""
        return self.call_ready(keys, self.with_tensors(args), kwargs)

    def call_ready(self, keys: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do the same with arguments that have gone through ``with_tensors``."""
        current = calls.current
        current.began = True
        current.result = result = self.redispatch(keys, *args, **kwargs)
        return result

    def call_at(self, keys: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call it at any keys."""
        return self.redispatch(keys, *self.with_tensors(args), **kwargs)

    def with_tensors(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments with tensors again where the dispatcher made Python numbers of them.

        A tensor that stands for a number takes no part in type promotion within its kind; one of the other
        operand's type does not either.
        """
        if not self.has_numbers(args):
            return args
        return tuple(
            _number_tensor(a, args) if place in self._tensor_places and type(a) in _NUMBER_TYPES else a
            for place, a in enumerate(args)
        )

    def given(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a call gives for an argument of the schema, or the default."""
        place, argument = next((i, a) for i, a in enumerate(self.arguments) if a.name == name)
        return args[place] if place < len(args) else kwargs.get(name, argument.default_value)

    def has_numbers(self, args: tuple[Any, ...]) -> bool:
        """Return whether Python numbers stand in the place of tensors, as the dispatcher gives them."""
        for place in self._tensor_places:  # noqa: SIM110 - every call comes here
            if place < len(args) and type(args[place]) in _NUMBER_TYPES:
                return True
        return False

    def written_in(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the arguments that it writes to, as they come: tensors, or lists of them."""
        found = []
        for key in self.written:
            if isinstance(key, str):
                found.append(kwargs.get(key))
            elif key < len(args):
                found.append(args[key])
        return found


class _Call:
    """One call of a kernel: whether it called the operator, and what that returned."""

    __slots__ = ("began", "result")

    def __init__(self) -> None:
        self.began = False
        self.result: Any = _NOTHING


class _Calls(threading.local):
    """The call that this thread is in, the innermost of several."""

    def __init__(self) -> None:
        self.current = _Call()


_NOTHING = object()
calls = _Calls()

Kernel = Callable[[Operator, Any, tuple[Any, ...], dict[str, Any]], Any]
"""Called with the operator, the keys below this one, and the arguments by place and by name."""

_NUMBERS = (bool, int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool)
_NUMBER_TYPES = frozenset(_NUMBERS)
_NUMBER_TENSORS: dict[tuple[type, Any, torch.dtype], torch.Tensor] = {}  # of types that hold the number
_MOST_NUMBERS = 1 << 14


def _number_tensor(number: Any, args: tuple[Any, ...]) -> torch.Tensor:
    for a in reversed(args):
        if isinstance(a, torch.Tensor):
            dtype = a.dtype
            known = _NUMBER_TENSORS.get((type(number), number, dtype))
            if known is not None:
                return known
            if _holds(dtype, number):
                break
    else:
        kinds = {bool: torch.bool, int: torch.int64, float: torch.get_default_dtype()}
        dtype = kinds.get(type(number), torch.complex64)
    if len(_NUMBER_TENSORS) >= _MOST_NUMBERS:
        _NUMBER_TENSORS.clear()
    with unfollowed():
        made = host_tensors.tensor(number, dtype=dtype)
    if type(made) is torch.Tensor:  # not in a trace of PyTorch's own
        _NUMBER_TENSORS[type(number), number, dtype] = made
    return made


def _holds(dtype: torch.dtype, number: Any) -> bool:
    """Return whether a number is of the same kind as a type, or of a lower one."""
    if dtype.is_complex:
        return True
    if isinstance(number, complex):
        return False
    if dtype.is_floating_point:
        return True
    return isinstance(number, bool) if dtype == torch.bool else not isinstance(number, float)


def unfollowed() -> AbstractContextManager[Any]:
    """Return a context in which operators that this thread calls are not followed."""
    guard: AbstractContextManager[Any] = _C._ExcludeDispatchKeyGuard(_KEY_SET)
    return guard


def follow_this_thread() -> None:
    """Switch the kernels on for the calling thread, and the threads of its backward passes."""
    _C._dispatch_tls_set_dispatch_key_included(KEY, True)


class Registry:
    """Registers kernels for all existing operators and for those that libraries add later.

    Args:
        kernel_of: Returns the kernel of an operator, for calls with tensors of the GPU, or for one.
        forget_written: Takes calls that wrote something unknown.
        failed: Takes the operator whose kernel raised an error, which the script does not see.
        on_host: Operators whose kernels take calls with tensors of the host, too.
    """

    def __init__(
        self,
        kernel_of: Callable[[Operator], Kernel],
        forget_written: Callable[[Operator, tuple[Any, ...], dict[str, Any]], None],
        failed: Callable[[str, Exception], None],
        on_host: frozenset[str] = frozenset(),
    ) -> None:
        self._on_host = on_host
        self._kernel_of = kernel_of
        self._forget_written = forget_written
        self._failed = failed
        self._seen: set[str] = set()
        self._load: Callable[[Any], Any] | None = None  # torch's own function
        self._libraries: dict[str, Library] = {}  # kernels live as long as these
        self._fallback = Library("_", "IMPL")
        self._fallback.fallback(fallthrough_kernel, _KEY_NAME)
        _leave_higher_orders()

    def follow_libraries(self) -> None:
        """Register the operators of a library whenever one is loaded."""
        load = torch.ops.load_library

        @functools.wraps(load)
        def load_library(path: Any) -> None:
            load(path)
            self.register()

        torch.ops.load_library = load_library
        self._load = load

    def end(self) -> None:
        """Remove all kernels."""
        if self._load is not None:
            torch.ops.load_library = self._load
        for library in (*self._libraries.values(), self._fallback):
            library._destroy()
        self._libraries.clear()

    def register(self) -> None:
        """Register the operators that were not there before."""
        new = set(_C._dispatch_get_all_op_names()) - self._seen
        self._seen |= new
        for full_name in sorted(new):
            space, _, name = full_name.partition("::")
            if not self._may_matter(space, name, full_name):
                continue
            try:
                operator = self._operator(_overload(space, name))
            except AttributeError:  # a library gave it a kernel, and no schema that Python can call
                continue
            if space not in self._libraries:
                self._libraries[space] = Library(space, "IMPL")
            kernel = self._followed(operator, self._kernel_of(operator))
            self._libraries[space].m.impl(name, _KEY_NAME, kernel, True)

    def _may_matter(self, space: str, name: str, full_name: str) -> bool:
        return _may_matter(space, name, full_name)

    def _operator(self, overload: Any) -> Operator:
        return Operator(overload)

    def _followed(self, operator: Operator, kernel: Kernel) -> Callable[..., Any]:
        on_host = operator.name in self._on_host
        of_sparse = operator.name in _OF_SPARSE

        def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
            keys, goes_to = BELOW.get(keys.raw_repr()) or below(keys)
            if goes_to == ON_GPU or (goes_to == ON_HOST and (on_host or _makes_on_gpu(kwargs))):
                return self._call(operator, kernel, keys, args, kwargs)
            if goes_to == SPARSE and of_sparse:
                return self._call(operator, kernel, keys, args, kwargs)
            if goes_to == ON_HOST:
                return operator.call_at(keys, args, kwargs)
            if goes_to != TRACED and not operator.has_numbers(args):
                return operator.call_at(keys, args, kwargs)  # whose calls come here
            # A trace of torch.compile; or modes and subclasses, which have to see the numbers as such.
            with unfollowed():
                result = operator.overload(*args, **kwargs)
            self._forget_written(operator, args, kwargs)
            return result

        return call

    def _call(
        self, operator: Operator, kernel: Kernel, keys: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a kernel; the script sees only the operator's own errors."""
        outer, mine = calls.current, _Call()
        calls.current = mine
        try:
            return kernel(operator, keys, args, kwargs)
        except Exception as error:
            if mine.began and mine.result is _NOTHING:
                raise
            self._failed(operator.name, error)
            self._forget_written(operator, args, kwargs)
            if mine.began:
                return mine.result
            with unfollowed():
                return operator.call_at(keys, args, kwargs)
        finally:
            calls.current = outer


def _leave_higher_orders() -> None:
    """Let operators that take functions (``flex_attention``, ``cond``) fall through, too: their dispatcher,
    which is in Python, does not look for fallbacks of this key."""
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(KEY)
    for operator in torch._ops._higher_order_ops.values():
        operator.fallthrough(KEY)


def _makes_on_gpu(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "cuda"


SPACES_LEFT_OUT = frozenset(
    """quantized _quantized static_runtime mkldnn onednn prepacked sparse profiler _test mkldnn_prepacked mkl
    inductor quantization debugprims rngprims prims symm_mem _c10d_functional _c10d_functional_autograd
    _dtensor fsdp streams higher_order aoti_torch _inductor_test""".split()  # noqa: SIM905
)


# PyTorch's own. Of a library's operators, those that run on the host too, by code of its own for it: kernels
# that the others launch say what they write to, and Python that serves every device may do anything.
_OWN_SPACES = frozenset({"aten", "c10d"})


def _may_matter(space: str, name: str, full_name: str) -> bool:
    if space in SPACES_LEFT_OUT or _C._dispatch_has_kernel_for_dispatch_key(
        full_name, "CompositeImplicitAutograd"
    ):
        return False
    if space not in _OWN_SPACES and not all(
        _C._dispatch_has_kernel_for_dispatch_key(full_name, key) for key in ("CPU", "CUDA")
    ):
        return False
    base = name.partition(".")[0]
    schema = _C._get_schema(f"{space}::{base}", name.partition(".")[2])
    aliases = [a.alias_info for a in schema.arguments if a.alias_info is not None]
    if base == _AFTER_TENSOR or any(alias.is_write for alias in aliases):
        return True
    return not aliases and (space != "aten" or _ARITHMETIC.search(base) is None)


# A view; ``torch.tensor`` fills its result unseen, and then calls this one.
_AFTER_TENSOR = "lift_fresh"


def _overload(space: str, name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(getattr(torch.ops, space), base), overload or "default")

"""Which operators are made instead of computed; what is not known follows the rules of the phantom GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...system import after_fork
from ...unseen import Aside, Unseen
from ...values.collectives import Collectives, RunningPeers, note_reductions
from ...values.contents import is_whole
from ...values.engine import Engine
from ...values.imbalance import Imbalance
from ...values.inside import follow_inside
from ...values.known import KnownValues
from ...values.operators import (
    AGAIN,
    BELOW,
    KEY,
    ON_HOST,
    SPACES_LEFT_OUT,
    Kernel,
    Operator,
    Registry,
    below,
    unfollowed,
)
from ...values.reads import Reads
from ...values.rules import Rules
from ...watching.device_memory import running
from ...watching.spans import SpanRecorder
from . import dtensors
from .collectives import SPACE as COLLECTIVES
from .collectives import FakeCollectives
from .contents import FakeContents
from .flex_attention import follow_flex_attention
from .gpu_kernels import MissingKernels, skip_launches
from .nccl import Connections
from .operators import Args, FakeOperator, Kwargs, Maker, tensors_in
from .recurrent_cells import RecurrentCells
from .sync_norms import SyncNorms
from .transforms import follow_transforms

_C = torch._C

# Composite, and yet one operation on a GPU: what they do inside depends on the machine.
_WHOLE = frozenset(
    {"copy_", "convolution", "_convolution", "convolution_backward", "_to_copy", "_linalg_check_errors"}
)
_WHOLE_PREFIXES = ("_foreach_", "_fused_")
# They make memory or tell where it is, and touch none of it.
_PASSED = frozenset(
    """set_ set_.source_Storage set_.source_Storage_storage_offset set_.source_Tensor lift _lazy_clone
    lift_fresh record_stream _pin_memory is_pinned _pack_padded_sequence_backward""".split()  # noqa: SIM905
)
# They consist of others, and write lengths for the host into the second of their results by themselves.
_WITH_LENGTHS = frozenset({"_pack_padded_sequence", "_pad_packed_sequence"})


class FakeValues(KnownValues):
    """Makes what operators on the CPU would return, and answers reads of what is not known.

    Args:
        chosen: Values that the user gave, by line or function.
        most_elements: Limit for a tensor of floats that is computed; see ``Contents``.
        spans: Knows the user's lines.
        assume: Takes a sentence that a reader of the estimate should know.
        peers: The ranks that run of the job that this process has a rank of, if any.
        imbalance: Tokens that experts of a rank get, over their share.
    """

    def __init__(
        self,
        chosen: dict[str, float],
        most_elements: int,
        spans: SpanRecorder,
        assume: Callable[[str], None],
        peers: RunningPeers | None = None,
        imbalance: float = 1.0,
    ) -> None:
        super().__init__(Reads(spans, chosen, assume), assume)
        self._aside = Aside()
        self._contents = FakeContents(most_elements)
        unseen = Unseen()
        maker = Maker(self._contents, self._aside, unseen)
        engine = Engine(self._contents)
        self._imbalance = Imbalance(imbalance, self._contents, assume)
        self._connections: Connections | None = None
        collectives = {} if peers is None else self._collectives(engine, maker, peers)
        rules = Rules(engine, self._reads, lambda *_: 0, maker.counting, collectives)
        # Its kernels live as long as it does.
        # Without a world, groups have one rank, and collectives change nothing.
        passed = SPACES_LEFT_OUT | (frozenset() if collectives else {"c10d"})
        self._registry = _Registry(rules, engine, maker, self._contents, unseen, passed, self._kernel_failed)
        self._registry.register()
        self._registry.follow_libraries()
        self._kernels = MissingKernels(maker), RecurrentCells(maker), SyncNorms(maker)
        skip_launches(self._contents, assume)
        follow_transforms(maker, assume)
        follow_flex_attention(self._contents.lose, assume)
        follow_inside()
        after_fork(self._in_fork)

    def _collectives(self, engine: Engine, maker: Maker, peers: RunningPeers) -> dict[str, Kernel]:
        """Return the kernels of collectives, and let their results be made."""
        made = FakeCollectives(self._contents, maker)
        self._connections = made.connections
        for name in torch._C._dispatch_get_all_op_names():
            if name.startswith(COLLECTIVES):
                maker.make_specially(name, made.make)
        note_reductions()
        return Collectives(engine, self._reads, self._assume, self._imbalance, peers).kernels

    def not_written(self, tensor: torch.Tensor) -> None:
        """Note that a tensor does not hold what the script expects it to hold."""
        self._contents.lose(tensor)

    def notes(self) -> dict[str, Any]:
        """Return what the metadata say of the run: reads of unknown values, and what NCCL would take."""
        nccl = {} if self._connections is None else {"nccl": self._connections.rows()}
        return {**nccl, **super().notes()}

    def ended(self) -> None:
        """Note that the run has ended, before its assumptions are read."""
        self._imbalance.note_unused()

    def end(self) -> None:
        """Let operators compute again; call this in each thread that was followed."""
        _C._dispatch_tls_set_dispatch_key_included(KEY, False)
        self._registry.end()
        for kernels in self._kernels:
            kernels.end()

    def _in_fork(self) -> None:
        """Compute in a fork, which is a worker that loads data."""
        _C._dispatch_tls_set_dispatch_key_included(KEY, False)
        self._aside.in_fork()


class _Registry(Registry):
    """Registers kernels above those of the CPU."""

    def __init__(
        self,
        rules: Rules,
        engine: Engine,
        maker: Maker,
        contents: FakeContents,
        unseen: Unseen,
        passed: frozenset[str],
        failed: Callable[[str, Exception], None],
    ) -> None:
        super().__init__(rules.kernel_of, engine.forget_written, failed)
        self._plain = engine.call
        self._maker = maker
        self._contents = contents
        self._unseen = unseen
        self._passed = passed

    def _may_matter(self, space: str, name: str, full_name: str) -> bool:
        if space in self._passed or (space == "aten" and name in _PASSED):
            return False
        base = name.partition(".")[0]
        if space == "aten" and (base in _WHOLE or name in _WITH_LENGTHS or base.startswith(_WHOLE_PREFIXES)):
            return True
        if not _C._dispatch_has_kernel_for_dispatch_key(full_name, "CPU"):
            return False
        schema = _C._get_schema(f"{space}::{base}", name.partition(".")[2])
        aliases = [a.alias_info for a in schema.arguments if a.alias_info is not None]
        return not aliases or any(alias.is_write for alias in aliases)  # the others are views

    def _operator(self, overload: Any) -> Operator:
        return FakeOperator(overload, self._maker)

    def _followed(self, operator: Operator, kernel: Kernel) -> Callable[..., Any]:
        assert isinstance(operator, FakeOperator)
        is_plain = kernel == self._plain and not operator.random
        contents, unseen = self._contents, self._unseen

        if operator.name in _WITH_LENGTHS:

            def call_with_lengths(keys: Any, *args: Any, **kwargs: Any) -> Any:
                result = operator.call_at(keys.remove(KEY), args, kwargs)
                contents.wrote(result[1])
                return result

            return call_with_lengths

        if operator.name.startswith(COLLECTIVES):

            def call_collective(keys: Any, *args: Any, **kwargs: Any) -> Any:
                with unseen:
                    return self._call(operator, kernel, keys.remove(KEY), args, kwargs)

            return call_collective

        def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
            keys, goes_to = BELOW.get(keys.raw_repr()) or below(keys)
            if goes_to != ON_HOST or (kwargs and _makes_elsewhere(kwargs)):
                if goes_to == AGAIN and dtensors.is_of_dtensors(args, kwargs):
                    return dtensors.call(operator.overload, args, kwargs)
                return operator.call_at(keys, args, kwargs)
            if not self._is_made(operator, args, kwargs):
                return self._compute(operator, keys, args, kwargs)
            if operator.is_arithmetic or (is_plain and (not contents or contents.has_nothing_of(args))):
                return operator.make(keys, args, kwargs)
            with unseen:
                return self._call(operator, kernel, keys, args, kwargs)

        return call

    def _compute(self, operator: FakeOperator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        if operator.has_numbers(args):
            with self._unseen:
                args = operator.with_tensors(args)  # which keeps tensors for numbers
        with unfollowed():
            result = operator.redispatch(keys, *args, **kwargs)
            if operator.writes:
                for tensor in _written(operator, args, kwargs):
                    if self._contents.is_fake(tensor) and is_whole(tensor):
                        self._contents.wrote(tensor)
        return result

    def _is_made(self, operator: FakeOperator, args: Args, kwargs: Kwargs) -> bool:
        """Return whether a call reads something that nobody wrote, or is too large to be computed."""
        contents = self._contents
        is_fake, are_few = contents.is_fake, contents.are_few
        reads_first = not operator.overwrites
        shape: Any = None
        for tensor in tensors_in(args):
            if tensor.layout is not torch.strided:
                return False
            elements = tensor.numel()
            if not are_few(elements, tensor.dtype):
                return True
            if reads_first and elements and is_fake(tensor):
                return True
            reads_first = True
            if shape is None:
                shape = tensor.size()
            elif operator.is_pointwise and tensor.size() != shape:
                shape = torch.broadcast_shapes(shape, tensor.size())
                if not are_few(shape.numel(), tensor.dtype):
                    return True
        for name, value in kwargs.items():
            if isinstance(value, torch.Tensor) and name not in operator.outputs and is_fake(value):
                return True
        if operator.resizes or (operator.is_arithmetic and running.on_device):
            return True
        return shape is None and self._makes_much(args, kwargs)

    def _makes_much(self, args: Args, kwargs: Kwargs) -> bool:
        size = args[0] if args else None
        if not isinstance(size, (list, tuple)):
            return False
        elements = 1
        for length in size:
            elements *= length
        return not self._contents.are_few(elements, kwargs.get("dtype") or torch.get_default_dtype())


def _makes_elsewhere(kwargs: Kwargs) -> bool:
    """Return whether a call asks for a tensor without memory, as models that are built on ``meta`` do, and
    PyTorch's own traces (``FakeTensorMode``)."""
    device = kwargs.get("device")
    return device is not None and torch.device(device).type != "cpu"


def _written(operator: Operator, args: Args, kwargs: Kwargs) -> Iterator[torch.Tensor]:
    """Yield the tensors that a call writes to."""
    for written in (*operator.written_in(args, kwargs), *map(kwargs.get, operator.outputs)):
        yield from tensors_in(written)

"""The values assumed for unknown ones, the same for every way to read them (``docs/values.md``).

Results of a model's arithmetic are unknown: nothing is computed. A number is read as 0, and a condition as
false. Numbers are finite. A mask counts as all of it, or as the share of a larger mask that it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from . import host_tensors
from .contents import is_whole
from .engine import Args, Engine, Kwargs, UnknownValueError
from .operators import Kernel, Operator, unfollowed
from .reads import Reads

_SELECTING = "sizes"
_DECIDING = "decisions"
_READING = "numbers"
# Whole numbers of a tensor up to this size that comes to the host are sizes, lengths or places.
_LOOKED_AT = 1024

# The most numbers that elements of a tensor are among: classes, levels, devices; not positions in a sequence.
_MOST_NUMBERS = 256


class Rules:
    """Kernels of operators that need special treatment.

    Args:
        engine: Runs operators whose inputs are known.
        reads: Where reads of unknown values are noted.
        written: ``xmem_phantom_written``: reads back what the host wrote last.
        answering: Makes small reads of this thread give a number meanwhile, wherever they come from.
        others: Kernels of more operators.
    """

    def __init__(
        self,
        engine: Engine,
        reads: Reads,
        written: Callable[[int, int, int], int],
        answering: Callable[[int], Any],
        others: dict[str, Kernel],
    ) -> None:
        self._engine = engine
        self._contents = engine.contents
        self._reads = reads
        self._written = written
        self._answering = answering
        follow, leave = engine.call_followed, _as_it_is
        self._kernels: dict[str, Kernel] = {
            # Values arrive and leave.
            "copy_": self._copy,
            "_to_copy": self._convert,
            "_local_scalar_dense": self._read,
            "equal": self._equal,
            "lift_fresh": self._lift,
            "resize_": engine.call_unknown,  # what a larger one holds, nobody wrote
            # One number everywhere.
            **dict.fromkeys(("zero_", "zeros", "zeros_like", "new_zeros"), self._filled(0)),
            **dict.fromkeys(("ones", "ones_like", "new_ones"), self._filled(1)),
            "fill_.Scalar": self._fill,
            "full": self._fill,
            "full_like": self._fill,
            "new_full": self._fill,
            # Numbers are finite, and equal to themselves.
            **dict.fromkeys(("eq.Tensor", "ne.Tensor"), self._compare),
            **dict.fromkeys(("eq.Scalar", "ne.Scalar", "eq_.Scalar", "ne_.Scalar"), self._compare),
            "isnan": self._never,
            "isinf": self._never,
            "_is_all_true": self._valid,
            "_linalg_check_errors": self._succeeded,
            "_amp_foreach_non_finite_check_and_unscale_": self._unscale,
            **dict.fromkeys(("normal.Tensor_Tensor", "normal.float_Tensor"), self._draw_normal),
            **dict.fromkeys(("normal.Tensor_Tensor_out", "normal.float_Tensor_out"), self._draw_normal),
            # Sizes that depend on values.
            "nonzero": self._nonzero,
            **dict.fromkeys(
                ("_unique2", "_unique", "unique_dim", "unique_consecutive", "unique_dim_consecutive"),
                self._unique,
            ),
            "_coalesce": self._coalesce,
            "masked_select": follow,
            "_index_put_impl_": self._put,
            **dict.fromkeys(
                ("index.Tensor", "_unsafe_index.Tensor", "index_select", "gather", "take"), self._chosen_from
            ),
            **dict.fromkeys(
                ("topk", "sort", "sort.stable", "argmax", "argmin", "max.dim", "min.dim"), self._places
            ),
            "repeat_interleave.Tensor": self._repeat,
            **dict.fromkeys(("index_put_", "index_put", "_unsafe_index_put"), leave),
            # Counts of what is unknown.
            **dict.fromkeys(
                ("sum", "sum.dim_IntList", "count_nonzero", "count_nonzero.dim_IntList"), self._count
            ),
            "bincount": self._histogram,
            "histc": self._histogram,
            **dict.fromkeys(
                ("scatter.value", "scatter.src", "scatter_.value", "scatter_.src"), self._scatter
            ),
            "clone": self._clone,
            # What one side decides.
            **dict.fromkeys(
                ("logical_and", "logical_and_", "bitwise_and.Tensor", "bitwise_and_.Tensor"),
                self._decided_by(False),
            ),
            **dict.fromkeys(
                ("logical_or", "logical_or_", "bitwise_or.Tensor", "bitwise_or_.Tensor"),
                self._decided_by(True),
            ),
            **others,
        }

    def kernel_of(self, operator: Operator) -> Kernel:
        """Return the kernel of an operator, for calls with tensors of the GPU or for one."""
        if operator.is_own or operator.writes:
            return self._kernels.get(operator.name, self._engine.call)
        return self._of_library

    # Values arrive and leave.

    def _copy(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        target, source = args[:2]
        if not isinstance(source, torch.Tensor):
            return self._engine.call(operator, keys, args, kwargs)
        with unfollowed():
            values = self._engine.values_of(source)
            result = operator.call(keys, args, kwargs)
            self._keep_copy(target, source, values)
        return result

    def _convert(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        source = args[0]
        with unfollowed():
            values = self._engine.values_of(source)
            result = operator.call(keys, args, kwargs)
            if isinstance(result, torch.Tensor):
                self._keep_copy(result, source, values)
        return result

    def _keep_copy(self, target: torch.Tensor, source: torch.Tensor, values: torch.Tensor | None) -> None:
        """Keep what a copy into a GPU or host tensor makes known; ``values`` are those of the source."""
        if target.layout is not torch.strided:
            return
        even = self._contents.is_fake(source) and self._contents.is_even(source)
        self._keep_copy_of(target, source, values)
        if even and self._contents.is_fake(target):
            self._contents.note_even(target)

    def _keep_copy_of(self, target: torch.Tensor, source: torch.Tensor, values: torch.Tensor | None) -> None:
        if not self._contents.is_fake(target):
            if values is not None:
                target.copy_(values)
            elif self._contents.is_fake(source):
                self._leave_unknown(target, source)
        elif values is None:
            self._copy_unknown(target, source)
        elif self._contents.set_copy(target, values):
            pass
        elif not any(values.stride()) and values.numel() and values.size() == target.size():
            self._contents.fill(target, values.as_strided((), ()).to(target.dtype).item())
        else:
            self._contents.set(target, values)

    def _leave_unknown(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Fill a tensor of the host into which unknown values were copied: of a mask, its share is true.
        Copies of many numbers count as moves of data, which nobody looks at."""
        if self._is_mask(source):
            share = self._share(source, "copy to the host", self._contents.share(source))
            chosen = host_tensors.arange(target.numel()) < round(share * target.numel())
            target.copy_(chosen.view(target.size()))
            return
        most = 1 if source.dtype.is_floating_point or source.dtype.is_complex else _LOOKED_AT
        if 0 < source.numel() <= most:
            target.fill_(self._reads.unknown(_READING, "copy to the host", 0))

    def _copy_unknown(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Keep what is known after a copy of unknown values; a mask that becomes numbers counts as all
        true."""
        if self._contents.is_fake(source) and self._is_mask(source):
            share = self._contents.share(source)
            if source.dtype == torch.bool and target.dtype != torch.bool and share == 1:
                self._contents.fill(target, 1)
            else:
                self._contents.note_share(target, share)
        else:
            self._contents.forget(target)

    def _read(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        with unfollowed():
            known = self._contents.tensor(args[0]) if args[0].layout is torch.strided else None
            result = operator.call(keys, args, kwargs)
            if known is not None:
                chosen = self._reads.chosen_here()
                return known.item() if chosen is None else type(known.item())(chosen)
        kind = _DECIDING if args[0].dtype == torch.bool else _READING
        return self._reads.unknown(kind, "item", result)

    def _equal(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        one, other = args[:2]
        with unfollowed():
            try:
                host_args, _ = self._engine.on_host(operator, args, kwargs)
            except UnknownValueError:
                host_args = ()
            result = operator.call(keys, args, kwargs)
            if host_args and one.dtype == other.dtype:
                return bool(torch.equal(*host_args))
        if one.size() != other.size():
            return result
        return self._reads.unknown(_DECIDING, "equal", bool(result))

    def _lift(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Handle the end of ``torch.tensor``, which has just copied its result to the GPU."""
        tensor = args[0]
        with unfollowed():
            if is_whole(tensor) and tensor.numel() and self._contents.is_small(tensor):
                values = host_tensors.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
                nbytes = tensor.numel() * tensor.element_size()
                if self._written(tensor.data_ptr(), values.data_ptr(), nbytes):
                    self._contents.set(tensor, values)
            return operator.call(keys, args, kwargs)

    # One number everywhere.

    def _filled(self, number: int) -> Kernel:
        def fill(operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
            with unfollowed():
                result = operator.call(keys, args, kwargs)
                self._note_fill(result, number)
            return result

        return fill

    def _fill(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        with unfollowed():
            result = operator.call(keys, args, kwargs)
            number = args[-1] if len(args) > 1 else kwargs.get("fill_value", kwargs.get("value"))
            if isinstance(number, (bool, int, float)):
                self._note_fill(result, number)
            else:
                self._engine.forget(result)
        return result

    def _note_fill(self, result: Any, number: float) -> None:
        if self._is_followed(result):
            self._contents.fill(result, _as(result.dtype, number))
        else:
            self._engine.forget(result)

    # Numbers are finite, and equal to themselves.

    def _compare(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        one, other = args[:2]
        differs = operator.name.startswith("ne")
        if isinstance(other, float) and (math.isinf(other) or math.isnan(other)):
            return self._always(differs, operator, keys, args, kwargs)
        if one is other or (
            isinstance(other, torch.Tensor)
            and isinstance(one, torch.Tensor)
            and one.numel()
            and one.data_ptr() == other.data_ptr()
            and one.stride() == other.stride()
        ):
            return self._always(not differs, operator, keys, args, kwargs)
        result = self._engine.call(operator, keys, args, kwargs)
        if self._is_followed(one) and one.numel():
            with unfollowed():
                numbers = self._contents.among(one)
                if numbers is not None and not self._contents.knows(result):
                    is_among = not isinstance(other, int) or bool((numbers == other).any())
                    share = is_among / numbers.numel()
                    self._contents.note_share(result, 1 - share if differs else share)
        return result

    def _never(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        return self._always(False, operator, keys, args, kwargs)

    def _always(self, answer: bool, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Return the answer for unknown numbers; known ones may be infinite."""
        try:
            self._engine.on_host(operator, args, kwargs)
        except UnknownValueError:
            with unfollowed():
                result = operator.call(keys, args, kwargs)
                self._note_fill(result, answer)
            return result
        return self._engine.call(operator, keys, args, kwargs)

    def _valid(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Let the checks that PyTorch makes on values before it uses them pass."""
        return self._always(True, operator, keys, args, kwargs)

    def _succeeded(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Let factorizations of unknown matrices have succeeded. Nobody waits for that: however often it is
        asked, the answer stays."""
        infos = args[0]
        if self._values(infos) is not None:
            return operator.call(keys, args, kwargs)
        infos.any()  # what it asks first, for the memory that this takes
        return None

    def _unscale(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Leave the note on infinite gradients as it is: no gradient is infinite."""
        with unfollowed():
            result = operator.call(keys, args, kwargs)
            self._engine.forget(args[0])
        return result

    def _draw_normal(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Draw normal numbers; the operator itself asks whether no deviation is negative."""
        with self._answering(True):
            return self._engine.call(operator, keys, args, kwargs)

    # Sizes that depend on values.

    def _nonzero(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        mask = args[0]
        chosen = self._reads.chosen_here()
        values = None if chosen is not None else self._values(mask)
        with unfollowed():
            if values is not None:
                found = values.nonzero()
                count = found.size(0)
            else:
                share = self._share(mask, "nonzero", self._contents.share(mask))
                count = round(mask.numel() * share)
                found = None
                if share == 1 and self._contents.is_small(mask):
                    found = host_tensors.ones(mask.size(), dtype=torch.bool).nonzero()
            return self._counted(count, found, operator, keys, args, kwargs)

    def _unique(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        chosen = self._reads.chosen_here()
        found = None
        with unfollowed():
            if chosen is None:
                try:
                    found = self._engine.run(operator, *self._engine.on_host(operator, args, kwargs))
                except UnknownValueError:
                    found = None
            if found is not None:
                dim = args[1] if "dim" in operator.name else 0
                count = found[0].size(dim)
            else:
                found = self._different(operator, args)
                natural = 1.0 if found is None else found[0].size(0) / args[0].numel()
                share = self._share(args[0], "unique", natural)
                count = round(args[0].numel() * share)
                found = found if share == natural else None
            return self._counted(count, found, operator, keys, args, kwargs)

    def _coalesce(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Add up the elements of a sparse tensor that lie at one place; unknown places all differ."""
        with unfollowed():
            places = args[0]._indices()
            known = self._values(places) if self._reads.chosen_here() is None else None
            if known is not None:
                count = known.unique(dim=1).size(1)
            else:
                count = round(places.size(1) * self._share(places, "coalesce", 1.0))
            return self._counted(count, None, operator, keys, args, kwargs)

    def _of_library(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Call an operator of a library, whose sizes may depend on values too (boxes that do not overlap)."""
        try:
            found = self._engine.run(operator, *self._engine.on_host(operator, args, kwargs))
        except UnknownValueError:
            return operator.call(keys, args, kwargs)  # which may consist of operators that are followed
        with unfollowed():
            if not isinstance(found, torch.Tensor) or found.dim() == 0:
                return self._counted(0, found, operator, keys, args, kwargs)
            result = self._counted(found.size(0), None, operator, keys, args, kwargs)
            if result.size() != found.size():
                result.resize_(found.size())
            self._engine.keep(result, found, args)
        return result

    def _counted(
        self, count: int, found: Any, operator: Operator, keys: Any, args: Args, kwargs: Kwargs
    ) -> Any:
        """Call an operator that reads the number of elements it has found from the GPU."""
        with self._answering(count):
            result = operator.call(keys, args, kwargs)
        if found is not None:
            self._engine.keep(result, found, args)
        return result

    def _chosen_from(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Note that elements chosen from a known tensor are among its numbers, even if it is unknown
        which."""
        source = args[0]
        # A mask among the indices is counted by an operator that this one calls.
        call = self._engine.call_followed if _has_mask(args[1]) else self._engine.call
        result = call(operator, keys, args, kwargs)
        is_integer = not source.dtype.is_floating_point and source.dtype != torch.bool
        if is_integer and self._contents.is_fake(result):
            with unfollowed():
                if not self._contents.knows(result) and (numbers := self._numbers_of(source)) is not None:
                    self._contents.note_among(result, numbers)
        return result

    def _places(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Note that positions along a dimension (routes to experts, classes) are among as many as it has;
        which, where they follow from many random numbers, is found out when somebody asks."""
        draw = self._contents.draw_of(args[0]) if args[0].layout is torch.strided else None
        result = self._engine.call(operator, keys, args, kwargs)
        if draw is not None:
            with unfollowed():
                self._engine.find_later(operator, result, draw, args, kwargs)
        places = result if isinstance(result, torch.Tensor) else result[1]
        if self._contents.knows(places):
            return result
        dim = operator.given("dim", args, kwargs)
        count = args[0].numel() if dim is None or not args[0].dim() else args[0].size(dim)
        if 0 < count <= _MOST_NUMBERS and self._contents.is_fake(places):
            with unfollowed():
                self._contents.note_among(places, host_tensors.arange(count))
        return result

    def _numbers_of(self, source: torch.Tensor) -> torch.Tensor | None:
        """Return the distinct numbers that the elements of a tensor are among, if known and few."""
        values = self._contents.tensor(source)
        if values is None:
            return self._contents.among(source)
        numbers = values.unique() if self._contents.is_small(values) else values.flatten()[:1]
        return numbers if 0 < numbers.numel() <= _MOST_NUMBERS else None

    def _different(self, operator: Operator, args: Args) -> tuple[torch.Tensor, None, None] | None:
        """Return what ``unique`` finds in a tensor if the numbers that its elements are among are known;
        where each of them is, and how often, is not known."""
        if "dim" in operator.name or "consecutive" in operator.name or args[0].layout is not torch.strided:
            return None
        numbers = self._contents.among(args[0])
        if numbers is None or numbers.numel() > args[0].numel():
            return None
        return numbers, None, None

    def _repeat(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Take unknown repeats as one each."""
        repeats = args[0]
        if self._values(repeats) is not None or not is_whole(repeats):
            return self._engine.call_followed(operator, keys, args, kwargs)
        self._reads.unknown(_SELECTING, "repeat_interleave", 1)
        with unfollowed():
            self._contents.fill(repeats, 1)
        try:
            return self._engine.call_followed(operator, keys, args, kwargs)
        finally:
            self._contents.forget(repeats)

    def _share(self, mask: torch.Tensor, name: str, natural: float) -> float:
        """Return the natural share of what is selected, or the one that the user chose."""
        if mask.numel() == 0:
            return natural
        return min(max(float(self._reads.unknown(_SELECTING, name, natural)), 0.0), 1.0)

    def _values(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the values of a tensor if they are few enough to run operators with."""
        found = self._engine.values_of(tensor)
        return found if found is not None and self._contents.is_small(found) else None

    def _is_followed(self, tensor: Any) -> bool:
        """Return whether facts stand for the values of something."""
        return (
            isinstance(tensor, torch.Tensor)
            and self._contents.is_fake(tensor)
            and tensor.layout is torch.strided
        )

    # Counts of what is unknown.

    def _is_mask(self, tensor: torch.Tensor) -> bool:
        if tensor.layout is not torch.strided:
            return False
        return tensor.dtype == torch.bool or self._contents.has_share(tensor)

    def _count(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        mask = args[0]
        if not self._is_mask(mask) or self._contents.knows(mask):
            return self._engine.call(operator, keys, args, kwargs)
        with unfollowed():
            share = self._contents.share(mask)
            result = operator.call(keys, args, kwargs)
            if isinstance(result, torch.Tensor) and result.numel():
                each = mask.numel() * share / result.numel()
                self._contents.fill(result, _as(result.dtype, round(each)))
                self._contents.note_even(result)
        return result

    def _histogram(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Spread unknown numbers evenly; their weights are a separate matter."""
        known = self._values(args[0]) is not None or kwargs.get("weights") is not None
        result = self._engine.call_followed(operator, keys, args, kwargs)
        if not known and result.numel():
            with unfollowed():
                self._contents.set(result, _even(args[0].numel(), result.numel()).to(result.dtype))
                self._contents.note_even(result)
        return result

    def _scatter(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Note how many elements of zeros were set, which is known even if their positions are not."""
        target, index, source = args[0], args[2], args[3]
        with unfollowed():
            zeros = self._number_in(target)
            number = source if isinstance(source, (bool, int, float)) else self._number_in(source)
        result = self._engine.call(operator, keys, args, kwargs)
        if zeros == 0 and number == 1 and result.numel() and not self._contents.knows(result):
            self._contents.note_share(result, index.numel() / result.numel())
        return result

    def _put(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Note the same of ``zeros[rows, places] = 1``."""
        target, indices, source = args[:3]
        with unfollowed():
            adds = operator.given("accumulate", args, kwargs)
            is_of_ones = not adds and self._number_in(target) == 0 and self._number_in(source) == 1
        result = self._engine.call_followed(operator, keys, args, kwargs)
        if is_of_ones and not _has_mask(indices) and not self._contents.knows(target):
            given = [each for each in indices if each is not None]
            places = torch.broadcast_shapes(*(each.size() for each in given)).numel()
            indexed = math.prod(target.size(dim) for dim, each in enumerate(indices) if each is not None)
            self._contents.note_share(target, min(places / indexed, 1.0))
        return result

    def _number_in(self, tensor: torch.Tensor) -> Any:
        """Return the number that fills a tensor; None if there is none, or it is not known."""
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or not tensor.numel():
            return None
        if not tensor.dim() and not self._contents.is_fake(tensor):
            return tensor.item()  # the host's: of `mask[places] = 1`
        return self._contents.number(tensor)

    def _is_given(self, tensor: Any) -> bool:
        """Return whether the values of a tensor are known, so that the operator is run with them."""
        return self._is_followed(tensor) and self._contents.is_small(tensor) and self._contents.knows(tensor)

    def _clone(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        result = self._engine.call(operator, keys, args, kwargs)
        if args[0].layout is torch.strided and self._contents.has_share(args[0]):
            self._contents.note_share(result, self._contents.share(args[0]))
        return result

    # What one side decides.

    def _decided_by(self, answer: bool) -> Kernel:
        def decide(operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
            with unfollowed():
                follows = all(self._is_given(side) for side in args[:2])
                decided = not follows and any(self._number_in(side) == answer for side in args[:2])
            result = self._engine.call(operator, keys, args, kwargs)
            # All bits of 0 are false; of other numbers, not all are true.
            if decided and isinstance(result, torch.Tensor) and (not answer or result.dtype == torch.bool):
                with unfollowed():
                    self._contents.fill(result, _as(result.dtype, answer))
            return result

        return decide


def _as_it_is(operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
    """Call an operator that consists of others, which are followed."""
    return operator.call(keys, args, kwargs)


def _as(dtype: torch.dtype, number: float) -> Any:
    if dtype == torch.bool:
        return bool(number)
    return number if dtype.is_floating_point or dtype.is_complex else int(number)


def _has_mask(indices: Any) -> bool:
    """Return whether an argument is a list of indices with a mask (of bytes, too) among them."""
    return isinstance(indices, (list, tuple)) and any(
        each is not None and each.dtype in (torch.bool, torch.uint8) for each in indices
    )


def _even(count: int, bins: int) -> torch.Tensor:
    """Spread a count over bins; the first ones take the remainder."""
    return host_tensors.full((bins,), count // bins) + (host_tensors.arange(bins) < count % bins)

"""Runs operators whose inputs are known a second time, on the host, so that their results become known."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from . import host_tensors
from .contents import Contents, is_whole, weight
from .draws import prepare, state_of
from .operators import CPU_KEYS, Operator, unfollowed

_CPU = torch.device("cpu")
_FAILURES = 3  # failures of an operator on the host, after which it is not tried again
_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype})
_BY_ONE_ELEMENT = frozenset({"all", "any", "max", "min", "_is_all_true", "_is_any_true"})

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class UnknownValueError(Exception):
    """The values of an input are not known."""


class Engine:
    """Runs operators and keeps what is known about their results.

    Args:
        contents: What is known.
    """

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self._failures: Counter[str] = Counter()
        self._given_up: set[str] = set()  # operators that do not run on the host
        self._drawn = 0

    def call(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Call an operator as it was called, and find out what is known about its result."""
        with unfollowed():
            if operator.random:
                return self._call_random(operator, keys, args, kwargs)
            if self.contents.has_nothing_of(args):
                return self.call_unknown(operator, keys, args, kwargs)
            args = operator.with_tensors(args)
            try:
                host_args, host_kwargs = self._on_host(operator, args, kwargs)
            except UnknownValueError:
                return self.call_unknown(operator, keys, args, kwargs)
            result = operator.call_ready(keys, args, kwargs)
            if operator.writes or self.contents.has_even:
                self._finish(operator, args, kwargs, result, host_args, host_kwargs)
                return result
            try:
                values = self._run(operator, host_args, host_kwargs)
            except UnknownValueError:
                return result
            self._keep_new(result, values, host_args)
            return result

    def call_followed(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Do the same; the operators that it calls itself are followed if this thread is."""
        if operator.random:
            return self._call_random(operator, keys, args, kwargs)
        args = operator.with_tensors(args)
        try:
            host_args, host_kwargs = self.on_host(operator, args, kwargs)
        except UnknownValueError:
            return self.call_unknown(operator, keys, args, kwargs)
        result = operator.call_ready(keys, args, kwargs)
        with unfollowed():
            self._finish(operator, args, kwargs, result, host_args, host_kwargs)
        return result

    def call_unknown(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Call an operator whose result is unknown."""
        result = operator.call(keys, args, kwargs)
        if operator.writes and self.contents:
            self.forget_written(operator, args, kwargs)
        return result

    def forget_written(self, operator: Operator, args: Args, kwargs: Kwargs) -> None:
        """Forget the values of what the operator wrote to."""
        for written in operator.written_in(args, kwargs):
            self.forget(written)
        for name in operator.outputs:
            self.forget(kwargs.get(name))

    def forget(self, written: Any) -> None:
        """Forget a tensor, one of a subclass, or each of a list, to which something unknown was written."""
        if isinstance(written, (list, tuple)):
            for each in written:
                self.forget(each)
        elif isinstance(written, torch.Tensor):
            for tensor in _plain_tensors(written):
                self.contents.forget(tensor)

    def on_host(self, operator: Operator, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Return the arguments of a call, with the values of the GPU's tensors.

        Raises:
            UnknownValueError: Some are not known, or there are too many.
        """
        with unfollowed():
            return self._on_host(operator, args, kwargs)

    def _on_host(self, operator: Operator, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        if operator.name in self._given_up:
            raise UnknownValueError
        written = operator.written
        host_args = tuple([self._host(a, place in written) for place, a in enumerate(args)])
        if not kwargs:
            return host_args, kwargs
        host_kwargs = {
            name: self._host(a, name in written) for name, a in kwargs.items() if name not in operator.outputs
        }
        if "device" in host_kwargs:
            host_kwargs["device"] = _CPU
        return host_args, host_kwargs

    def values_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the values of a tensor that an operator reads, None if they are unknown; with strides of 0
        where one number fills it."""
        with unfollowed():
            try:
                found: torch.Tensor = self._host(tensor, to_write=False)
            except UnknownValueError:
                return None
            return found

    def run(self, operator: Operator, host_args: Args, host_kwargs: Kwargs) -> Any:
        """Return the result of an operator on the host.

        Raises:
            UnknownValueError: It does not run there.
        """
        return self._run(operator, operator.with_tensors(host_args), host_kwargs)

    def _run(self, operator: Operator, host_args: Args, host_kwargs: Kwargs) -> Any:
        host_args, host_kwargs, by_one = self._small(operator, host_args, host_kwargs)
        if operator.outputs:
            host_kwargs = {**host_kwargs, **{name: host_tensors.empty(0) for name in operator.outputs}}
        try:
            result = operator.redispatch(CPU_KEYS, *host_args, **host_kwargs)
        except Exception as error:
            self._failures[operator.name] += 1
            if self._failures[operator.name] >= _FAILURES:
                self._given_up.add(operator.name)
            raise UnknownValueError from error
        return _ByOne(result) if by_one else result

    def keep(self, result: Any, values: Any, inputs: tuple[Any, ...]) -> None:
        """Keep the values of a result, unless it is one of the inputs."""
        self._keep(result, values, _storages(inputs))

    def _keep(self, result: Any, values: Any, inputs: set[int]) -> None:
        if isinstance(result, torch.Tensor):
            if self.contents.is_fake(result) and torch._C._storage_address(result) not in inputs:
                shared = isinstance(values, torch.Tensor) and torch._C._storage_address(values) in inputs
                self._keep_one(result, values, shared)
                self.contents.follow_even(result, inputs)
        elif isinstance(result, (list, tuple)):
            for place, one in enumerate(result):
                self._keep(one, _part(values, place), inputs)

    def draw_later(
        self, operator: Operator, result: torch.Tensor, args: Args, kwargs: Kwargs, state: Any = None
    ) -> None:
        """Draw the numbers of a random tensor when they are asked for.

        Args:
            operator: The operator that drew them.
            result: The GPU tensor.
            args: Arguments of the call, with host tensors.
            kwargs: Keyword arguments, likewise.
            state: State of the generator before the call (``draws.state_of``).
        """
        as_on_gpu = prepare(operator, state, result, args, kwargs)
        if as_on_gpu is not None:
            self.contents.set_draw(result, as_on_gpu)
            return
        self._drawn += 1
        seed = torch.initial_seed() + self._drawn
        strides = result.stride()

        def draw() -> torch.Tensor | None:
            with unfollowed():
                try:
                    drawn = self._seeded(seed, operator, args, kwargs)
                except UnknownValueError:
                    return None
                if drawn.stride() == strides and is_whole(drawn):
                    return drawn
                return host_tensors.empty_strided(drawn.size(), strides, dtype=drawn.dtype).copy_(drawn)

        self.contents.set_later(result, draw)

    def find_later(
        self,
        operator: Operator,
        result: Any,
        draw: Callable[[], torch.Tensor | None],
        args: Args,
        kwargs: Kwargs,
    ) -> None:
        """Run an operator of many random numbers when its results are asked for.

        Args:
            operator: The operator.
            result: Its results.
            draw: Draws the numbers of the first argument.
            args: All arguments; the others are no tensors.
            kwargs: Keyword arguments, likewise.
        """
        size, others = args[0].size(), args[1:]  # what stays must not keep memory of the GPU

        @functools.cache
        def found() -> Any:
            with unfollowed():
                drawn = draw()
                if drawn is None or drawn.size() != size:
                    return None
                try:
                    return operator.call_at(CPU_KEYS, (drawn, *others), kwargs)
                except Exception:  # the numbers stay unknown
                    return None

        def part(
            place: int | None, size: torch.Size, strides: Any, dtype: torch.dtype
        ) -> torch.Tensor | None:
            values = found()
            if values is None:
                return None
            of_result = values if place is None else values[place]
            with unfollowed():
                return torch.empty_strided(size, strides, dtype=dtype).copy_(of_result)

        for place, one in [(None, result)] if isinstance(result, torch.Tensor) else enumerate(result):
            self.contents.set_later(one, functools.partial(part, place, one.size(), one.stride(), one.dtype))

    def _finish(
        self,
        operator: Operator,
        args: Args,
        kwargs: Kwargs,
        result: Any,
        host_args: Args,
        host_kwargs: Kwargs,
    ) -> None:
        try:
            values = self._run(operator, host_args, host_kwargs)
        except UnknownValueError:
            self.forget_written(operator, args, kwargs)
            return
        for key in operator.written:
            tensor, host = (
                (kwargs.get(key), host_kwargs.get(key))
                if isinstance(key, str)
                else (args[key], host_args[key])
            )
            if host is None or not isinstance(tensor, torch.Tensor):
                continue
            if not self.contents.knows(tensor):
                self.contents.set(tensor, host.clone())
        if operator.outputs:
            kwargs = {name: a for name, a in kwargs.items() if name not in operator.outputs}
        self.keep(result, values, (*args, *kwargs.values()))

    def _keep_new(self, result: Any, values: Any, host_args: Args) -> None:
        """Do as ``keep`` does, quickly: all inputs are known, so a storage of which nothing is known is none
        of theirs."""
        if isinstance(result, torch.Tensor):
            if self.contents.is_fake(result) and not self.contents.has(result):
                self._keep_one(result, values, any(values is a for a in host_args))
        elif isinstance(result, (list, tuple)):
            for place, one in enumerate(result):
                self._keep_new(one, _part(values, place), host_args)

    def _keep_one(self, result: torch.Tensor, values: Any, shared: bool) -> None:
        """Keep the values of a new tensor; some may share their memory with something else."""
        if isinstance(values, _ByOne):
            self.contents.fill(result, values.result.item())
        elif not isinstance(values, torch.Tensor) or values.size() != result.size():
            self.contents.forget(result)
        else:
            self.contents.set(result, values.clone() if shared or values._is_view() else values, fresh=True)

    def _host(self, value: Any, to_write: bool) -> Any:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                raise UnknownValueError
            if not self.contents.is_fake(value):
                few = value.is_cpu and self.contents.is_small(value)
                if not few or self.contents.is_unwritten(value):
                    raise UnknownValueError
                return value
            found = self.contents.tensor(value, to_write=to_write)
            if found is None:
                raise UnknownValueError
            return found
        if isinstance(value, (list, tuple)) and value and not isinstance(value[0], (int, float, bool)):
            return [self._host(each, to_write) for each in value]
        if isinstance(value, torch.device):
            return _CPU
        return None if isinstance(value, torch.Generator) else value

    def _small(self, operator: Operator, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs, bool]:
        """Return the arguments as they are or, where one number fills each tensor, one element of each.

        Raises:
            UnknownValueError: There are too many elements.
        """
        most = 2 * self.contents.most_elements
        if _at_most(args, kwargs) <= most or _elements(args) + _elements(kwargs.values()) <= most:
            return args, kwargs, False
        tensors = _host_tensors((args, kwargs))
        base = operator.name.partition(".")[0]
        by_one = operator.is_pointwise or (base in _BY_ONE_ELEMENT and len(args) == 1)
        if not by_one or any(any(tensor.stride()) for tensor in tensors):
            raise UnknownValueError
        return tuple(_one(a) for a in args), {name: _one(a) for name, a in kwargs.items()}, True

    def _call_random(self, operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        state = state_of(operator, args, kwargs)
        result = operator.call(keys, args, kwargs)
        first = result if isinstance(result, torch.Tensor) else None
        if first is None or not self.contents.is_fake(first) or operator.outputs:
            self.forget_written(operator, args, kwargs)
        elif not tensors or (operator.written == (0,) and len(tensors) == 1):
            with unfollowed():
                host_args = tuple(_empty_like(a) if isinstance(a, torch.Tensor) else a for a in args)
                self.draw_later(operator, first, host_args, kwargs, state)
        elif operator.name.partition(".")[0].endswith("_like"):
            with unfollowed():
                self.draw_later(operator, first, (_empty_like(args[0]), *args[1:]), kwargs, state)
        else:
            self.forget_written(operator, args, kwargs)
            self._draw_by_inputs(operator, first, args, kwargs)
        return result

    def _draw_by_inputs(self, operator: Operator, result: torch.Tensor, args: Args, kwargs: Kwargs) -> None:
        if operator.written:
            return
        try:
            host_args, host_kwargs = self.on_host(operator, args, kwargs)
        except UnknownValueError:
            return
        with unfollowed():
            self.draw_later(operator, result, host_args, host_kwargs)

    def _seeded(self, seed: int, operator: Operator, args: Args, kwargs: Kwargs) -> torch.Tensor:
        """Draw on the host, without a trace in the script's own random numbers.

        Raises:
            UnknownValueError: The operator does not run there.
        """
        host = {k: _CPU if k == "device" else v for k, v in kwargs.items() if k != "generator"}
        host.pop("pin_memory", None)
        args = tuple(
            _CPU if isinstance(a, torch.device) else None if isinstance(a, torch.Generator) else a
            for a in args
        )
        generator = torch.default_generator
        state = generator.get_state()
        generator.manual_seed(seed % (1 << 63))
        try:
            drawn = self.run(operator, args, host)
        finally:
            generator.set_state(state)
        if not isinstance(drawn, torch.Tensor):
            raise UnknownValueError
        return drawn


class _ByOne:
    """The result of one element that stands for all."""

    def __init__(self, result: Any) -> None:
        self.result = result


def _part(values: Any, place: int) -> Any:
    return _ByOne(values.result[place]) if isinstance(values, _ByOne) else values[place]


def _at_most(args: Args, kwargs: Kwargs) -> int:
    """Return a quick upper limit of ``_elements``; lists of lists hold no tensors."""
    count = 0
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            count += value.numel()
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, torch.Tensor):
                    count += each.numel()
    return count


def _elements(values: Iterable[Any]) -> float:
    """Return the number of elements of tensors, in lists too, as ``contents.weight`` counts them."""
    count = 0.0
    for value in values:
        if isinstance(value, torch.Tensor):
            count += value.numel() * weight(value.dtype)
        elif isinstance(value, list):
            count += _elements(value)
    return count


def _one(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.as_strided((1,), (1,))
    return value


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return host_tensors.empty(tensor.size(), dtype=tensor.dtype)


def _host_tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if not value.is_cuda:
            yield value
    elif isinstance(value, dict):
        yield from _host_tensors(tuple(value.values()))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _host_tensors(each)


def _storages(values: Iterable[Any]) -> set[int]:
    """Return the addresses of the storages of tensors, including those in lists."""
    found = set()
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.layout is torch.strided:
                found.add(torch._C._storage_address(value))
        elif isinstance(value, (list, tuple)):
            found |= _storages(value)
    return found


def _plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors with memory that a tensor consists of: itself, or those inside a subclass."""
    if type(tensor) is not torch.Tensor and hasattr(tensor, "__tensor_flatten__"):
        inner = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        for each in inner:  # DTensor names its mesh among them
            yield from _plain_tensors(each) if isinstance(each, torch.Tensor) else ()
    elif tensor.layout is torch.strided:
        yield tensor

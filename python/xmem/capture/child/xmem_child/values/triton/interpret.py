"""Runs a program on the host, its instances side by side.

Every value has a first dimension for the instances, of size 1 where it is the same for all of them. Where
instances go different ways, those that go the same way do so together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from .. import host_tensors
from .arithmetic import compute, dtype_of
from .memory import Memory
from .program import Operation, Program, Region, UnsupportedError, hands_on, pointed_to

_MOST_OPERATIONS = 1 << 18  # of one launch: some seconds
_MOST_OPERATIONS_IN_ALL = 1 << 20  # of all launches: about half a minute
_MOST_ELEMENTS = 1 << 18  # of a value, of all instances that run side by side
_UNIT_BITS = 14  # so many elements more count as one operation more
_MOST_TURNS = 1 << 12  # of a loop that may wait for an instance beside it


class _Budget:
    """Operations that may still be run on the host for kernels of this process."""

    left = _MOST_OPERATIONS_IN_ALL


class _TooMuchError(UnsupportedError):
    """A launch has too many operations."""


_budget = _Budget()


class _Values(dict[str, torch.Tensor]):
    """The values of some instances, by name.

    Args:
        count: How many instances.
        outer: The values of more instances, and which of those these are.
    """

    def __init__(self, count: int, outer: tuple[_Values, torch.Tensor] | None = None) -> None:
        super().__init__()
        self.count = count
        self._outer = outer

    def __missing__(self, name: str) -> torch.Tensor:
        if self._outer is None:
            raise KeyError(name)
        values, chosen = self._outer
        self[name] = found = _of(values[name], chosen)
        return found

    def only(self, chosen: torch.Tensor) -> _Values:
        """Return the values of the instances at some places."""
        return _Values(chosen.numel(), (self, chosen))


def run(
    program: Program, grid: tuple[int, int, int], arguments: Sequence[int | float], memory: Memory
) -> None:
    """Run all instances of a kernel.

    Args:
        program: The kernel.
        grid: How many instances there are, in three directions.
        arguments: Arguments of the launch, one for each of the program's parameters; a pointer is its
            address.
        memory: The memory that pointers lead to; it is written to.

    Raises:
        UnsupportedError: The program does something that is not done on the host, or too much.
        UnknownMemoryError: It reads something unknown.
    """
    launch = _Launch(program, grid, arguments)
    together = min(math.prod(grid), max(1, _MOST_ELEMENTS // _largest(program.body)))
    if together <= 1:
        launch.run(memory, 1)
        return
    before = memory.copy()
    try:
        launch.run(memory, together)
    except _TooMuchError:
        raise
    except (UnsupportedError, RuntimeError):
        # An instance that waits for one before it goes on when that has ended.
        memory.restore(before)
        launch.run(memory, 1)


class _Launch:
    """A launch; see ``run``."""

    def __init__(
        self, program: Program, grid: tuple[int, int, int], arguments: Sequence[int | float]
    ) -> None:
        pairs = zip(program.parameters.items(), arguments, strict=True)
        self._arguments = {
            name: host_tensors.tensor([value], dtype=dtype_of(kind)) for (name, kind), value in pairs
        }
        self._body = program.body
        self._grid = grid

    def run(self, memory: Memory, together: int) -> None:
        """Run all instances, some of them side by side."""
        wide, high, _ = self._grid
        count = math.prod(self._grid)
        instances = _Instances(self._grid, memory)
        for first in range(0, count, together):
            number = host_tensors.arange(first, min(first + together, count))
            values = _Values(number.numel())
            values.update(self._arguments)
            places = (number % wide, number // wide % high, number // (wide * high))
            values.update({axis: place.to(torch.int32) for axis, place in zip("xyz", places, strict=True)})
            instances.run(self._body, values)


class _Instances:
    def __init__(self, grid: tuple[int, int, int], memory: Memory) -> None:
        self._grid = grid
        self._memory = memory
        self._left = min(_MOST_OPERATIONS, _budget.left)

    def run(self, region: Region, values: _Values) -> list[torch.Tensor]:
        """Run the operations of a region; returns what its last one hands on."""
        for operation in region.operations:
            operands = [] if operation.name in _LOOPS else [values[name] for name in operation.operands]
            if hands_on(operation):
                return operands
            self._count(1 + (operands[0].numel() >> _UNIT_BITS if operands else 0))
            results = self._results(operation, operands, values)
            values.update(zip(operation.results, results, strict=True))
        return []

    def _count(self, operations: int) -> None:
        self._left -= operations
        _budget.left -= operations
        if self._left < 0:
            raise _TooMuchError("too many operations")

    def _results(
        self, operation: Operation, operands: list[torch.Tensor], values: _Values
    ) -> list[torch.Tensor]:
        name = operation.name
        if name in _LOOPS:
            return _LOOPS[name](self, operation, values)
        if name in _CONTROL:
            return _CONTROL[name](self, operation, operands, values)
        if name == "tt.store":
            self._store(operands)
            return []
        if name == "tt.load":
            return self._load(operation, operands)
        if name == "tt.split":
            return list(operands[0].unbind(-1))
        if name in _SILENT:
            return []
        if name == "tt.get_program_id":
            return [values[operation.text]]
        if name == "tt.get_num_programs":
            return [host_tensors.tensor([self._grid["xyz".index(operation.text)]], dtype=torch.int32)]
        return [compute(operation, operands)]

    def _if(self, operation: Operation, operands: list[torch.Tensor], values: _Values) -> list[torch.Tensor]:
        def side(taken: bool, inside: _Values) -> list[torch.Tensor]:
            number = 0 if taken else 1
            return self.run(operation.regions[number], inside) if number < len(operation.regions) else []

        condition = _scalar(operands[0])
        if bool(condition.all()):
            return side(True, values)
        if not bool(condition.any()):
            return side(False, values)
        parts = [
            (chosen, side(taken, values.only(chosen)))
            for taken, chosen in ((True, _places(condition)), (False, _places(~condition)))
        ]
        return _merged(parts, values.count)

    def _for(self, operation: Operation, values: _Values) -> list[torch.Tensor]:
        counter, first, end, step = operation.operands
        names = [counter, *(name for name, _ in operation.carried)]

        def goes_on(inside: _Values, state: list[torch.Tensor]) -> list[torch.Tensor]:
            return [state[0] < inside[end], *state]

        def body(inside: _Values, state: list[torch.Tensor]) -> list[torch.Tensor]:
            inside.update(zip(names, state, strict=True))
            return [state[0] + inside[step], *self.run(operation.regions[0], inside)]

        start = [values[first], *(values[name] for _, name in operation.carried)]
        return _loop(values, start, goes_on, body)[1:]

    def _while(self, operation: Operation, values: _Values) -> list[torch.Tensor]:
        before, after = operation.regions
        names = [name for name, _ in operation.carried]
        turns = 0

        def goes_on(inside: _Values, state: list[torch.Tensor]) -> list[torch.Tensor]:
            nonlocal turns
            turns += 1
            if turns > _MOST_TURNS and values.count > 1:
                raise UnsupportedError("instances that wait for others")
            inside.update(zip(names, state, strict=True))
            return self.run(before, inside)

        def body(inside: _Values, state: list[torch.Tensor]) -> list[torch.Tensor]:
            inside.update(zip(after.parameters, state, strict=True))
            return self.run(after, inside)

        return _loop(values, [values[name] for _, name in operation.carried], goes_on, body)

    def _reduce(
        self, operation: Operation, operands: list[torch.Tensor], values: _Values
    ) -> list[torch.Tensor]:
        """Combine neighbours until one is left."""
        axis = int(operation.attributes["axis"]) + 1
        state = [operand.movedim(axis, 0) for operand in operands]
        while (size := state[0].size(0)) > 1:
            even = size // 2 * 2
            combined = self._combine(
                operation, [s[0:even:2] for s in state], [s[1:even:2] for s in state], values
            )
            state = [torch.cat([c, s[even:]]) for c, s in zip(combined, state, strict=True)]
        return [s[0] for s in state]

    def _scan(
        self, operation: Operation, operands: list[torch.Tensor], values: _Values
    ) -> list[torch.Tensor]:
        """Combine each element with those 1, 2, 4, ... before it."""
        axis = int(operation.attributes["axis"]) + 1
        reverse = operation.attributes.get("reverse", "false") == "true"
        state = [operand.movedim(axis, 0) for operand in operands]
        if reverse:
            state = [s.flip(0) for s in state]
        step = 1
        while step < state[0].size(0):
            combined = self._combine(operation, [s[:-step] for s in state], [s[step:] for s in state], values)
            state = [torch.cat([s[:step], c]) for c, s in zip(combined, state, strict=True)]
            step *= 2
        if reverse:
            state = [s.flip(0) for s in state]
        return [s.movedim(0, axis) for s in state]

    def _combine(
        self, operation: Operation, first: list[torch.Tensor], second: list[torch.Tensor], values: _Values
    ) -> list[torch.Tensor]:
        region = operation.regions[0]
        inside = _Combined(values)
        inside.update(zip(region.parameters, [*first, *second], strict=True))
        return [
            result.expand(one.size()) for result, one in zip(self.run(region, inside), first, strict=True)
        ]

    def _load(self, operation: Operation, operands: list[torch.Tensor]) -> list[torch.Tensor]:
        dtype = dtype_of(pointed_to(operation))
        if len(operands) == 1:
            pointers = operands[0]
            return [self._memory.load(pointers.flatten(), dtype).view(pointers.size())]
        pointers, mask = torch.broadcast_tensors(*operands[:2])
        if len(operands) > 2:
            loaded = operands[2].to(dtype).expand(pointers.size()).clone()
        else:
            loaded = host_tensors.zeros(pointers.size(), dtype=dtype)
        loaded[mask] = self._memory.load(pointers[mask], dtype)
        return [loaded]

    def _store(self, operands: list[torch.Tensor]) -> None:
        pointers, written, *masks = torch.broadcast_tensors(*operands[:3])
        for mask in masks:
            pointers, written = pointers[mask], written[mask]
        self._memory.store(pointers.flatten(), written.flatten())

    def _atomic(
        self, operation: Operation, operands: list[torch.Tensor], values: _Values
    ) -> list[torch.Tensor]:
        """Update one element after the other, as a GPU does in some order."""
        change = _ATOMIC.get(operation.text.partition(",")[0])
        if change is None:
            raise UnsupportedError(operation.text)
        # Each instance does it, also where all do the same.
        each = [operand.expand(values.count, *operand.shape[1:]) for operand in operands[:3]]
        pointers, given, *masks = torch.broadcast_tensors(*each)
        mask = masks[0] if masks else torch.ones_like(pointers).bool()
        addresses, numbers = pointers[mask], given[mask]
        if change is torch.add and not numbers.is_floating_point():
            found = _add_all(self._memory, addresses, numbers)
        else:
            self._count(numbers.numel())
            found = torch.empty_like(numbers)
            for place in range(numbers.numel()):
                one = slice(place, place + 1)
                found[one] = self._memory.load(addresses[one], numbers.dtype)
                self._memory.store(addresses[one], change(found[one], numbers[one]))
        before = host_tensors.zeros(given.size(), dtype=given.dtype)
        before[mask] = found
        return [before] if operation.results else []


class _Combined(_Values):
    """Values inside the combination of two elements, which is done for many at once.

    Args:
        outside: The values around it; those used must not depend on the instance.
    """

    def __init__(self, outside: _Values) -> None:
        super().__init__(outside.count)
        self._outside = outside

    def __missing__(self, name: str) -> torch.Tensor:
        found = self._outside[name]
        if found.numel() > 1:
            raise UnsupportedError("a combination that depends on more than its elements")
        return found


def _loop(
    values: _Values,
    state: list[torch.Tensor],
    goes_on: Callable[[_Values, list[torch.Tensor]], list[torch.Tensor]],
    body: Callable[[_Values, list[torch.Tensor]], list[torch.Tensor]],
) -> list[torch.Tensor]:
    """Run a loop until it has ended for all instances; returns its state then.

    Args:
        values: Values of the instances.
        state: What the loop begins with.
        goes_on: Returns whether the loop goes on, and what its body takes or, at its end, the loop gives.
        body: Returns the next state.
    """
    instances = host_tensors.arange(values.count)
    inside = values
    parts: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
    while True:
        goes, *handed = goes_on(inside, state)
        if not bool(_scalar(goes).all()):
            ended, going = _places(~goes), _places(goes)
            if goes.size(0) == 1 or not going.numel():
                parts.append((instances, handed))
                return _merged(parts, values.count)
            parts.append((instances[ended], [_of(value, ended) for value in handed]))
            instances = instances[going]
            inside = values.only(instances)
            handed = [_of(value, going) for value in handed]
        state = body(inside, handed)


def _merged(parts: list[tuple[torch.Tensor, list[torch.Tensor]]], count: int) -> list[torch.Tensor]:
    """Return values of all instances, from those of groups of them and the groups' places."""
    if len(parts) == 1:
        return parts[0][1]
    merged = []
    for number, first in enumerate(parts[0][1]):
        whole = host_tensors.empty((count, *first.shape[1:]), dtype=first.dtype)
        for places, results in parts:
            whole[places] = results[number]
        merged.append(whole)
    return merged


def _of(value: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return value if value.size(0) == 1 else value[chosen]


def _places(condition: torch.Tensor) -> torch.Tensor:
    return condition.nonzero().flatten()


def _scalar(condition: torch.Tensor) -> torch.Tensor:
    if condition.dim() != 1:
        raise UnsupportedError("a condition that is a block")
    return condition


def _largest(region: Region) -> int:
    """Return the elements of the largest value of one instance."""
    kinds = (operation.result_type for operation in region.operations)
    inside = (_largest(each) for operation in region.operations for each in operation.regions)
    return max([1, *(math.prod(kind.shape) for kind in kinds if kind is not None), *inside])


def _add_all(memory: Memory, addresses: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Add integers at once; each finds what was there and what those before it added."""
    different, which = addresses.unique(return_inverse=True)
    start = memory.load(different, numbers.dtype)
    order = which.argsort(stable=True)
    ordered = numbers[order].long()
    sums = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])
    ends = torch.bincount(which, minlength=different.numel()).cumsum(0)
    begins = torch.cat([ends.new_zeros(1), ends])[: different.numel()]
    found = torch.empty_like(numbers)
    found[order] = (start[which[order]] + sums[:-1] - sums[begins][which[order]]).to(numbers.dtype)
    memory.store(different, (start + sums[ends] - sums[begins]).to(numbers.dtype))
    return found


_LOOPS: dict[str, Callable[..., list[torch.Tensor]]] = {
    "scf.for": _Instances._for,
    "scf.while": _Instances._while,
}
_CONTROL: dict[str, Callable[..., list[torch.Tensor]]] = {
    "scf.if": _Instances._if,
    "tt.reduce": _Instances._reduce,
    "tt.scan": _Instances._scan,
    "tt.atomic_rmw": _Instances._atomic,
}
_SILENT = frozenset({"tt.assert", "tt.print", "gpu.barrier", "tt.debug_barrier"})
_ATOMIC: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "fadd": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "exch": lambda _, new: new,
}

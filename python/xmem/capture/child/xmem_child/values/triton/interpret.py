"""Runs a program on the host, one instance after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

from .. import host_tensors
from .arithmetic import compute, dtype_of
from .memory import Memory
from .program import Operation, Program, Region, UnsupportedError, hands_on, pointed_to

_MOST_OPERATIONS = 1 << 18  # of all instances: some seconds
_MOST_OPERATIONS_IN_ALL = 1 << 20  # of all launches: about half a minute

Values = dict[str, torch.Tensor]


class _Budget:
    """Operations that may still be run on the host for kernels of this process."""

    left = _MOST_OPERATIONS_IN_ALL


_budget = _Budget()


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
    pairs = zip(program.parameters.items(), arguments, strict=True)
    values = {name: host_tensors.tensor(value, dtype=dtype_of(kind)) for (name, kind), value in pairs}
    instance = _Instances(grid, memory)
    for z, y, x in itertools.product(*(range(size) for size in reversed(grid))):
        instance.place = (x, y, z)
        instance.run(program.body, dict(values))


class _Instances:
    def __init__(self, grid: tuple[int, int, int], memory: Memory) -> None:
        self.place = (0, 0, 0)
        self.grid = grid
        self._memory = memory
        self._left = min(_MOST_OPERATIONS, _budget.left)

    def run(self, region: Region, values: Values) -> list[torch.Tensor]:
        """Run the operations of a region; returns what its last one hands on."""
        for operation in region.operations:
            operands = [] if operation.name in _LOOPS else [values[name] for name in operation.operands]
            if hands_on(operation):
                return operands
            self._count(1 + (operands[0].numel() >> 12 if operands else 0))
            results = self._results(operation, operands, values)
            values.update(zip(operation.results, results, strict=True))
        return []

    def _count(self, operations: int) -> None:
        self._left -= operations
        _budget.left -= operations
        if self._left < 0:
            raise UnsupportedError("too many operations")

    def _results(
        self, operation: Operation, operands: list[torch.Tensor], values: Values
    ) -> list[torch.Tensor]:
        name = operation.name
        if name in _LOOPS:
            return _LOOPS[name](self, operation, values)
        if name in _CONTROL:
            return _CONTROL[name](self, operation, operands, values)
        if name == "tt.store":
            self._store(operands)
            return []
        if name in _MEMORY:
            return _MEMORY[name](self, operation, operands)
        if name == "tt.split":
            return list(operands[0].unbind(-1))
        if name in _SILENT:
            return []
        if name in _PLACES:
            sizes = self.place if name == "tt.get_program_id" else self.grid
            return [host_tensors.tensor(sizes["xyz".index(operation.text)], dtype=torch.int32)]
        return [compute(operation, operands)]

    def _if(self, operation: Operation, operands: list[torch.Tensor], values: Values) -> list[torch.Tensor]:
        if bool(operands[0]):
            return self.run(operation.regions[0], values)
        return self.run(operation.regions[1], values) if len(operation.regions) > 1 else []

    def _for(self, operation: Operation, values: Values) -> list[torch.Tensor]:
        counter, first, end, step = operation.operands
        pairs = operation.carried
        state = [values[start] for _, start in pairs]
        dtype = values[first].dtype
        for number in range(int(values[first]), int(values[end]), int(values[step])):
            values[counter] = host_tensors.tensor(number, dtype=dtype)
            values.update((name, value) for (name, _), value in zip(pairs, state, strict=True))
            state = self.run(operation.regions[0], values)
        return state

    def _while(self, operation: Operation, values: Values) -> list[torch.Tensor]:
        before, after = operation.regions
        pairs = operation.carried
        state = [values[start] for _, start in pairs]
        while True:
            values.update((name, value) for (name, _), value in zip(pairs, state, strict=True))
            condition, *state = self.run(before, values)
            if not bool(condition):
                return state
            values.update(zip(after.parameters, state, strict=True))
            state = self.run(after, values)

    def _reduce(
        self, operation: Operation, operands: list[torch.Tensor], values: Values
    ) -> list[torch.Tensor]:
        """Combine neighbours until one is left."""
        axis = int(operation.attributes["axis"])
        state = [operand.movedim(axis, 0) for operand in operands]
        while (size := state[0].size(0)) > 1:
            even = size // 2 * 2
            combined = self._combine(
                operation, [s[0:even:2] for s in state], [s[1:even:2] for s in state], values
            )
            state = [torch.cat([c, s[even:]]) for c, s in zip(combined, state, strict=True)]
        return [s[0] for s in state]

    def _scan(self, operation: Operation, operands: list[torch.Tensor], values: Values) -> list[torch.Tensor]:
        """Combine each element with those 1, 2, 4, ... before it."""
        axis = int(operation.attributes["axis"])
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
        self, operation: Operation, first: list[torch.Tensor], second: list[torch.Tensor], values: Values
    ) -> list[torch.Tensor]:
        region = operation.regions[0]
        values.update(zip(region.parameters, [*first, *second], strict=True))
        return [
            result.expand(one.size()) for result, one in zip(self.run(region, values), first, strict=True)
        ]

    def _load(self, operation: Operation, operands: list[torch.Tensor]) -> list[torch.Tensor]:
        dtype = dtype_of(pointed_to(operation))
        pointers = operands[0]
        if len(operands) == 1:
            return [self._memory.load(pointers.flatten(), dtype).view(pointers.size())]
        mask = operands[1].expand(pointers.size())
        loaded = host_tensors.zeros(pointers.size(), dtype=dtype)
        if len(operands) > 2:
            loaded = operands[2].to(dtype).expand(pointers.size()).clone()
        loaded[mask] = self._memory.load(pointers[mask], dtype)
        return [loaded]

    def _store(self, operands: list[torch.Tensor]) -> None:
        pointers, written = operands[:2]
        written = written.expand(pointers.size())
        if len(operands) > 2:
            mask = operands[2].expand(pointers.size())
            pointers, written = pointers[mask], written[mask]
        self._memory.store(pointers.flatten(), written.flatten())

    def _atomic(self, operation: Operation, operands: list[torch.Tensor]) -> list[torch.Tensor]:
        """Update one element after the other, as a GPU does in some order."""
        change = _ATOMIC.get(operation.text.partition(",")[0])
        if change is None:
            raise UnsupportedError(operation.text)
        pointers, given = operands[:2]
        given = given.expand(pointers.size())
        mask = operands[2].expand(pointers.size()) if len(operands) > 2 else torch.ones_like(pointers).bool()
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
        before = torch.zeros_like(given)
        before[mask] = found
        return [before] if operation.results else []


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
}
_MEMORY: dict[str, Callable[..., list[torch.Tensor]]] = {
    "tt.load": _Instances._load,
    "tt.atomic_rmw": _Instances._atomic,
}
_PLACES = frozenset({"tt.get_program_id", "tt.get_num_programs"})
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

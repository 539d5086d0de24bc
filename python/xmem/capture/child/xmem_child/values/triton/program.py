"""A kernel of Triton as a program: the text of its TTIR, read into operations.

TTIR is what Triton's front end makes of a kernel before anything is known of the GPU (MLIR's dialects ``tt``,
``arith``, ``math`` and ``scf``; Triton 3.2 to 3.7). Printed, it has one operation a line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field


class UnsupportedError(Exception):
    """The program contains something that is not run on the host."""


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a value.

    Attributes:
        shape: Empty for a scalar.
        element: As TTIR names it (``i32``, ``bf16``), or ``ptr``.
        points_to: The element that a pointer leads to.
    """

    shape: tuple[int, ...]
    element: str
    points_to: str = ""


@dataclass(slots=True)
class Region:
    """Operations inside another one, or of the whole kernel."""

    parameters: list[str] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


@dataclass(slots=True)
class Operation:
    """One operation.

    Attributes:
        name: Name with its dialect.
        results: Names of its results.
        operands: Names of its operands.
        text: The text between its name and its types.
        attributes: Attributes by name.
        operand_type: Type of its first operand.
        result_type: Type of its last result.
        regions: The regions inside it.
        carried: Values that a loop carries: the names inside, and their initial values.
    """

    name: str
    results: list[str]
    operands: list[str]
    text: str
    attributes: dict[str, str]
    operand_type: Type | None = None
    result_type: Type | None = None
    regions: list[Region] = field(default_factory=list)
    carried: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel.

    Attributes:
        parameters: Names and types of its parameters, in the order of a launch.
        body: What it does.
        loaded: Positions of the parameters whose memory it may read.
        written: Positions of those whose memory it may write to.
    """

    parameters: dict[str, Type]
    body: Region
    loaded: frozenset[int]
    written: frozenset[int]


_LOCATION = re.compile(r"\s*loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_FUNCTION = re.compile(r"tt\.func public @[\w.$]+\((.*)\)")
_PARAMETER = re.compile(r"(%[\w.$-]+): ")
_TYPED_PARAMETER = re.compile(r"(%[\w.$-]+): (!tt\.ptr<[^<>]*>|[\w.]+)")
_LINE = re.compile(r'(?:(%[\w.$-]+)(?::(\d+))? = )?"?((?:tt|arith|math|scf|gpu|ttng)\.[\w.]+)"?(.*)')
_VALUE = re.compile(r"%[\w.$-]+(?:#\d+)?")
_ATTRIBUTES = re.compile(r"<?\{([^{}]*)\}>?")
_ATTRIBUTE = re.compile(r"(\w+) = (array<[^>]*>|[^,]+)")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(!tt\.ptr<([^<>]*)>|[\w]+)>")
_POINTER = re.compile(r"!tt\.ptr<([^<>]*)>")
_WRITES = frozenset({"tt.store", "tt.atomic_rmw", "tt.atomic_cas"})
_HANDS_ON = frozenset({"scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return", "tt.return"})
_CARRIED = re.compile(r"(%[\w.$-]+) = (%[\w.$#-]+)")
_LOADS = frozenset({"tt.load", "tt.atomic_rmw", "tt.atomic_cas"})
_PASSES_ON = re.compile(
    r"tt\.(addptr|splat|unsplat|broadcast|expand_dims|reshape|trans|cat|join|split|bitcast)|arith\.select|scf\..*"
)


def read(text: str) -> Program:
    """Read the TTIR of a kernel.

    Raises:
        UnsupportedError: It has several functions, jumps, or something else that is not run on the host.
    """
    lines = [line for line in map(_without_location, text.splitlines()) if line]
    starts = [place for place, line in enumerate(lines) if line.startswith("tt.func")]
    if len(starts) != 1:
        raise UnsupportedError("several functions")
    found = _FUNCTION.match(lines[starts[0]])
    if found is None:
        raise UnsupportedError(lines[starts[0]])
    parameters = {name: read_type(kind) for name, kind in _TYPED_PARAMETER.findall(found[1])}
    body = _ProgramReader(lines[starts[0] + 1 :]).region()
    pointers = {name: place for place, (name, kind) in enumerate(parameters.items()) if kind.element == "ptr"}
    loaded, written = _Roots(pointers, body).found()
    return Program(parameters, body, loaded, written)


def read_type(text: str) -> Type:
    """Read a type as MLIR prints it.

    Raises:
        UnsupportedError: The type is of another kind.
    """
    text = text.strip()
    found = _TENSOR.fullmatch(text)
    if found:
        shape = tuple(int(size) for size in found[1].split("x") if size)
        return Type(shape, "ptr", _pointee(found[3])) if found[3] else Type(shape, found[2])
    if found := _POINTER.fullmatch(text):
        return Type((), "ptr", _pointee(found[1]))
    if re.fullmatch(r"[a-z]\w*", text):
        return Type((), text)
    raise UnsupportedError(text)


def _pointee(text: str) -> str:
    return text.partition(",")[0].strip()


def _without_location(line: str) -> str:
    line = line.strip()
    return "" if line.startswith("#") else _LOCATION.sub("", line).strip()


class _ProgramReader:
    """Reads lines into operations."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._place = 0

    def region(self) -> Region:
        """Read the operations up to the brace that closes them, which is not consumed."""
        region = Region()
        while True:
            if self._place == len(self._lines):
                raise UnsupportedError("no end")
            line = self._lines[self._place]
            if line.startswith("}"):
                return region
            self._place += 1
            if line.startswith("^"):
                if region.operations:
                    raise UnsupportedError("jumps")
                region.parameters = _PARAMETER.findall(line)
            else:
                region.operations.append(self._operation(line))

    def _operation(self, line: str) -> Operation:
        found = _LINE.match(line)
        if found is None:
            raise UnsupportedError(line)
        result, count, name, rest = found.groups()
        results = [] if result is None else [result]
        if count is not None:
            results = [f"{result}#{place}" for place in range(int(count))]
        if not line.endswith("{"):
            return _simple(name, results, rest)
        before, _, after = rest.partition("iter_args")
        operation = Operation(name, results, _VALUE.findall(before), rest, _attributes(rest))
        if name == "scf.for":
            operation.carried = _CARRIED.findall(after)
        elif name == "scf.while":
            operation.carried, operation.operands = _CARRIED.findall(before), []
        while True:
            operation.regions.append(self.region())
            line = self._lines[self._place]
            self._place += 1
            if not line.endswith("{"):
                return operation


def _attributes(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for inside in _ATTRIBUTES.findall(text):
        found.update((name, value.partition(" : ")[0].strip()) for name, value in _ATTRIBUTE.findall(inside))
    return found


def _simple(name: str, results: list[str], rest: str) -> Operation:
    body, colon, types = _ATTRIBUTES.sub("", rest).rpartition(" : ")
    operand_type = result_type = None
    if colon:
        arrow = "->" if "->" in types else " to "
        before, _, after = types.partition(arrow)
        listed = [t for t in re.split(r", (?![^<]*>)", before.strip("() ")) if t]
        operand_type = read_type(listed[0]) if listed else None
        result_type = read_type(after) if after else read_type(listed[-1])
    else:
        body = rest
    operands = _VALUE.findall(body)
    return Operation(name, results, operands, body.strip(), _attributes(rest), operand_type, result_type)


def pointed_to(operation: Operation) -> Type:
    """Return what the pointers in an operation's first operand lead to."""
    kind = operation.operand_type
    if kind is None or kind.element != "ptr":
        raise UnsupportedError(operation.text)
    return Type(kind.shape, kind.points_to)


def hands_on(operation: Operation) -> bool:
    """Return whether it ends its region, and gives its operands to what is outside."""
    return operation.name in _HANDS_ON


class _Roots:
    """The parameters that the pointers of a kernel come from."""

    def __init__(self, pointers: dict[str, int], body: Region) -> None:
        self._of = {name: frozenset({place}) for name, place in pointers.items()}
        self._loaded: set[int] = set()
        self._written: set[int] = set()
        size = -1
        while size != (size := sum(map(len, self._of.values()))):  # loops pass pointers on
            self._follow(body)

    def found(self) -> tuple[frozenset[int], frozenset[int]]:
        """Return the positions of the parameters that are read, and of those that are written to."""
        return frozenset(self._loaded), frozenset(self._written)

    def _follow(self, region: Region) -> None:
        for operation in region.operations:
            name = operation.name
            if name in _LOADS or name in _WRITES:
                pointer = self._roots(operation.operands[:1])
                self._loaded |= pointer if name in _LOADS else set()
                self._written |= pointer if name in _WRITES else set()
            elif not _PASSES_ON.fullmatch(name):
                roots = self._roots(operation.operands)
                self._loaded |= roots
                self._written |= roots
            for inside in operation.regions:
                self._follow(inside)
            self._pass_on(operation)

    def _pass_on(self, operation: Operation) -> None:
        """Pass pointers on: a result may point where any operand does; likewise values carried by a loop."""
        sources, targets = list(operation.operands), list(operation.results)
        for inside in operation.regions:
            sources += [name for last in inside.operations[-1:] if hands_on(last) for name in last.operands]
            targets += inside.parameters
        for name, start in operation.carried:
            targets.append(name)
            sources.append(start)
        roots = self._roots(sources)
        for target in targets if roots else ():
            self._of[target] = self._roots([target]) | roots

    def _roots(self, names: list[str]) -> frozenset[int]:
        return frozenset().union(*(self._of.get(name, frozenset()) for name in names))

"""Which kernels an operator launches on an architecture, from recorded launches of others.

The nearest recorded problem gives the kernels, with their threads, registers and shared memory; the grid is
worked out anew by the kernel's rule. Nearest is: the same operator and architecture, alike in types and
layout, near in size. Among kernels recorded for products of matrices, the one that the library would
find fastest counts.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from xmem.occupancy.grids import Observation, Rule, fit_rule, quantities_of, tile_of
from xmem.occupancy.library_choice import expected_ns
from xmem.occupancy.problems import Problem, Product
from xmem.occupancy.recurrent import is_recurrent, parts_of

_FAR = 100.0

# A kernel recorded for a problem this much further than the nearest one is still considered; and how far
# one may be for being twice as fast.
_CONSIDERED = 6.0
_TWICE_AS_FAST = 2.0

# How much a difference counts, in doublings of a size. Set once by hand, not fitted: see docs/occupancy.md.
_OTHER_ARCHITECTURE = 12.0
_OTHER_DTYPE = 8.0
_OTHER_DENSITY = 6.0
_OTHER_BROADCAST = 6.0
_OTHER_LAYOUT = 4.0
_OTHER_CHOICE = 10.0
_UNKNOWN_CHOICE = 3.0
_VECTOR = 10.0
_PER_ALIGNMENT = 2.0
_FEW_INDICES = 16

_BEFORE_GROUPS = re.compile(r"convolve_common_engine|implicit_convolve_sgemm")
_MOST_PLACES = 2
_PRODUCTS = "product"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled kernel: what a block of it takes.

    Attributes:
        name: As a profiler prints it.
        threads: Per block.
        registers: Per thread.
        shared_bytes: Static and dynamic shared memory per block.
    """

    name: str
    threads: int
    registers: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A kernel and the blocks of its grid.

    Attributes:
        kernel: What is launched.
        blocks: Of the grid.
        share: Of the operator's time; launches that differ in nothing else are alike.
    """

    kernel: Kernel
    blocks: int
    share: float = field(default=1.0, compare=False)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What an operator was seen to launch.

    Attributes:
        problem: The operator with its inputs.
        compute_capability: Of the GPU.
        multiprocessors: Of the GPU.
        launches: In order.
    """

    problem: Problem
    compute_capability: tuple[int, int]
    multiprocessors: int
    launches: tuple[KernelLaunch, ...]


@dataclass(frozen=True, slots=True)
class Predicted:
    """Kernels that an operator is expected to launch.

    Attributes:
        launches: In order.
        distance: Of the nearest recorded problem, in doublings; 0 = the same problem was recorded.
    """

    launches: tuple[KernelLaunch, ...]
    distance: float


class KernelModel:
    """Recorded launches, ready to be asked for problems that were not recorded."""

    def __init__(self, recorded: Iterable[Recorded]) -> None:
        self._by_operator: dict[str, list[Recorded]] = defaultdict(list)
        self._seen: dict[_RuleKey, list[Observation]] = defaultdict(list)
        for record in dict.fromkeys(recorded):
            self._by_operator[_group(record.problem)].append(record)
            for launch, place in zip(record.launches, _places(record.launches), strict=True):
                observation = Observation(record.problem, launch.blocks, record.multiprocessors)
                kernel = launch.kernel
                self._seen[kernel.name, kernel.threads, "", 0].append(observation)
                self._seen[kernel.name, kernel.threads, record.problem.operator, place].append(observation)
        self._rules: dict[_RuleKey, Rule | None] = {}  # fitted when asked for: most never are

    @property
    def operators(self) -> frozenset[str]:
        """Operators of which something was recorded."""
        return frozenset(self._by_operator)

    def rule(self, kernel: Kernel, operator: str = "", place: int = 0) -> Rule | None:
        """Return how the kernel's grid follows from the problem; None where no rule was found.

        Args:
            kernel: Of which the grid is wanted.
            operator: What launches it; empty = anything. A kernel that exchanges dimensions does so for the
                input in one operator and for the result in another.
            place: How many launches of the same kernel come before it in one call of the operator.
        """
        key = kernel.name, kernel.threads, operator, place
        if key not in self._rules:
            seen = self._seen.get(key)
            self._rules[key] = fit_rule(kernel.name, seen) if seen else None
        return self._rules[key]

    def predict(
        self, problem: Problem, compute_capability: tuple[int, int], multiprocessors: int
    ) -> Predicted | None:
        """Return the kernels that an operator launches; None where it was never recorded, on no GPU."""
        if is_recurrent(problem) and not self._has_layer(problem):
            unrolled = self._unrolled(problem, compute_capability, multiprocessors)
            if unrolled is not None:
                return unrolled
        candidates = self._by_operator.get(_group(problem), [])
        return self._nearest(problem, candidates, compute_capability, multiprocessors)

    def _nearest(
        self,
        problem: Problem,
        candidates: Sequence[Recorded],
        compute_capability: tuple[int, int],
        multiprocessors: int,
    ) -> Predicted | None:
        """Return the kernels of a problem, from some of the records of its operator."""
        if not candidates:
            return None
        if ungrouped := _engine_without_groups(problem, candidates):
            one = self._nearest(_one_group(problem), ungrouped, compute_capability, multiprocessors)
            groups = problem.shapes[0][1] // problem.shapes[1][1]
            return one and replace(one, launches=_shared(one.launches, groups) * groups)
        ranked = sorted(
            (
                (distance(problem, item.problem) + _across(compute_capability, item), item)
                for item in candidates
            ),
            key=lambda pair: pair[0],
        )
        how_far, nearest = ranked[0]
        told = bool(problem.choice) and problem.choice == nearest.problem.choice
        if problem.product is not None and how_far > 0 and not told:
            nearest = self._fastest(problem, multiprocessors, ranked)
        launches = tuple(
            KernelLaunch(launch.kernel, blocks, launch.share)
            for launch, blocks in zip(
                nearest.launches, self._grids(nearest, problem, multiprocessors), strict=True
            )
        )
        return Predicted(for_another_size(launches, problem, nearest.problem), how_far)

    def _has_layer(self, problem: Problem) -> bool:
        """Return whether a recurrent network was recorded, with any number of steps."""
        return any(
            distance(problem, item.problem) == 0 for item in self._by_operator.get(_group(problem), ())
        )

    def _unrolled(
        self, problem: Problem, compute_capability: tuple[int, int], multiprocessors: int
    ) -> Predicted | None:
        """Return what a recurrent network launches, product by product; None where that is unknown."""
        launches: list[KernelLaunch] = []
        how_far = 0.0
        # No sums are split: there is no workspace for their parts.
        products = [item for item in self._by_operator.get(_PRODUCTS, ()) if len(item.launches) == 1]
        for part in parts_of(problem):
            if part.work is None:
                kernel = Kernel(part.name, part.threads, part.registers, 0)
                launches += [KernelLaunch(kernel, part.blocks)] * part.times
                continue
            found = self._nearest(part.work, products, compute_capability, multiprocessors)
            if found is None:
                return None
            launches += found.launches * part.times
            how_far = max(how_far, found.distance)
        alike = [replace(launch, share=1 / len(launches)) for launch in launches]
        return Predicted(tuple(alike), how_far) if launches else None

    def _fastest(
        self, problem: Problem, multiprocessors: int, ranked: Sequence[tuple[float, Recorded]]
    ) -> Recorded:
        """Return the record whose kernels the library would choose: near, and not much slower than the best.

        A library takes the kernel that it expects to be fastest. So among the recorded ones the choice
        is by how long each would take, and by how near the problem is that it was recorded for.
        """
        assert problem.product is not None
        nearest: dict[tuple[Kernel, ...], tuple[float, Recorded]] = {}
        for how_far, item in ranked:
            if how_far < ranked[0][0] + _CONSIDERED:
                nearest.setdefault(tuple(launch.kernel for launch in item.launches), (how_far, item))
        costs: list[tuple[float, float | None, Recorded]] = []
        for how_far, item in nearest.values():
            time = 0.0
            for launch, blocks in zip(
                item.launches, self._grids(item, problem, multiprocessors), strict=True
            ):
                time += expected_ns(problem.product, launch.kernel.name, blocks, multiprocessors)
            tiled = any(tile_of(launch.kernel.name) for launch in item.launches)
            costs.append((how_far, max(time, 1.0) if tiled else None, item))
        best = min((time for _, time, _ in costs if time is not None), default=1.0)
        # What was chosen for nearly the same problem is chosen again, whatever it seems to take.
        trust = _TWICE_AS_FAST * min(ranked[0][0], 1.0)

        def cost(how_far: float, time: float | None) -> float:
            # Of kernels without a tile in their name nothing says how long they take.
            return how_far + trust * (1.0 if time is None else math.log2(time / best))

        return min(costs, key=lambda row: cost(row[0], row[1]))[2]

    def _grids(self, source: Recorded, problem: Problem, multiprocessors: int) -> list[int]:
        """Return the blocks of each launch of a record, for another problem."""
        return [
            self._blocks(launch, place, source, problem, multiprocessors)
            for launch, place in zip(source.launches, _places(source.launches), strict=True)
        ]

    def _blocks(
        self, launch: KernelLaunch, place: int, source: Recorded, problem: Problem, multiprocessors: int
    ) -> int:
        if problem == source.problem and multiprocessors == source.multiprocessors:
            return launch.blocks
        if is_recurrent(problem):  # of a step: the states of all sequences, which are its first shape
            first, known = (math.prod(of.shapes[0]) for of in (problem, source.problem))
            return max(1, math.ceil(launch.blocks * first / known))
        rule = self.rule(launch.kernel, problem.operator, place) or self.rule(launch.kernel)
        tile = tile_of(launch.kernel.name)
        wanted, there = quantities_of(problem, tile), quantities_of(source.problem, tile)
        if rule is not None and rule.quantity in wanted and rule.quantity in there:
            blocks = rule.blocks(wanted, multiprocessors)
            # Sums that were split, which no size of the problem says, are split alike.
            usual = rule.blocks(there, source.multiprocessors)
            if "tiles" in rule.quantity and rule.fill == 1.0 and launch.blocks % usual == 0:
                blocks *= launch.blocks // usual
            return blocks
        split = [
            (launch.blocks // there[name], wanted[name])
            for name in there
            if "tiles" in name and name in wanted and launch.blocks % there[name] == 0
        ]
        if split:  # into different numbers of parts, so that no one rule gives most grids
            parts, tiles = min(split)
            return parts * tiles
        key = "elements" if "elements" in wanted and "elements" in there else "largest"
        scaled = math.ceil(launch.blocks * wanted[key] / max(there[key], 1))
        # No rule was found, as of kernels that stay on the GPU and loop: none was seen with other numbers.
        seen = self._seen.get((launch.kernel.name, launch.kernel.threads, "", 0), ())
        numbers = [observation.blocks for observation in seen] or [scaled]
        return max(1, min(max(scaled, min(numbers)), max(numbers)))


def for_another_size(
    launches: tuple[KernelLaunch, ...], problem: Problem, known: Problem
) -> tuple[KernelLaunch, ...]:
    """Return the launches of one problem as many times as another has steps, or groups.

    What a recurrent network launches at each step, or more often, is launched as many times more often; the
    order is not kept. Of convolutions some engines launch a kernel for each group, and nothing else.
    """
    if is_recurrent(problem):
        steps, there = problem.shapes[-1][0], known.shapes[-1][0]
        result: list[KernelLaunch] = []
        for launch, count in Counter(launches).items():
            often = round(count * steps / there) if count >= there else count
            result += [replace(launch, share=launch.share * count / often)] * often
        return tuple(result)
    if problem.product is not None and known.product is not None and len(set(launches)) == 1:
        groups, there = problem.product.batch, known.product.batch
        if len(launches) == there > 1 and problem.choice:
            return _shared(launches[:1], groups) * groups
    return launches


def _shared(launches: tuple[KernelLaunch, ...], times: int) -> tuple[KernelLaunch, ...]:
    """Return launches that take the operator's time together with others alike."""
    total = sum(launch.share for launch in launches)
    shares = [launch.share / total if total else 1 / len(launches) for launch in launches]
    return tuple(replace(launch, share=share / times) for launch, share in zip(launches, shares, strict=True))


def _engine_without_groups(problem: Problem, candidates: Iterable[Recorded]) -> list[Recorded]:
    """Return the records of the engine of a grouped convolution, where it takes one group at a time.

    So do the kernels that cuDNN has had since before there were groups.
    """
    if problem.operator != "aten::cudnn_convolution" or len(problem.shapes) != 3 or not problem.choice:
        return []
    image, filters, _ = problem.shapes
    if image[1] == filters[1]:
        return []
    alike = [
        item
        for item in candidates
        if item.problem.choice == problem.choice and item.problem.dtypes == problem.dtypes
    ]
    plain = all(
        item.problem.product is not None
        and item.problem.product.batch == 1
        and all(_BEFORE_GROUPS.search(launch.kernel.name) for launch in item.launches)
        for item in alike
    )
    return alike if plain else []


def _one_group(problem: Problem) -> Problem:
    """Return the convolution of one of the groups."""
    assert problem.product is not None
    image, filters, result = problem.shapes
    groups = image[1] // filters[1]
    shapes = (
        (image[0], image[1] // groups, *image[2:]),
        (filters[0] // groups, *filters[1:]),
        (result[0], result[1] // groups, *result[2:]),
    )
    return replace(problem, shapes=shapes, product=replace(problem.product, batch=1))


_RuleKey = tuple[str, int, str, int]
"""A kernel's name and threads, the operator, and which of its launches in a call; of all of them "" and 0."""


def _places(launches: Sequence[KernelLaunch]) -> list[int]:
    """Return how many launches of the same kernel come before each; of more than a few, those few."""
    before: dict[Kernel, int] = defaultdict(int)
    places = []
    for launch in launches:
        places.append(min(before[launch.kernel], _MOST_PLACES))
        before[launch.kernel] += 1
    return places


def _group(problem: Problem) -> str:
    if problem.operator in ("aten::addmm", "aten::mm", "aten::linear", "aten::bmm", "aten::baddbmm"):
        return _PRODUCTS
    return problem.operator


def _across(compute_capability: tuple[int, int], item: Recorded) -> float:
    if item.compute_capability == compute_capability:
        return 0.0
    return _OTHER_ARCHITECTURE + abs(item.compute_capability[0] - compute_capability[0])


def distance(wanted: Problem, known: Problem) -> float:
    """Return how unlike two problems of one operator are, in doublings of a size."""
    return _apart(wanted, known) + _other_choice(wanted.choice, known.choice)


def _other_choice(wanted: str, known: str) -> float:
    """Count another kernel of the library's own choosing; few old recordings say what it chose."""
    if wanted == known:
        return 0.0
    return _OTHER_CHOICE if wanted and known else _UNKNOWN_CHOICE


def _apart(wanted: Problem, known: Problem) -> float:
    if wanted.product is not None and known.product is not None:
        return _OTHER_DTYPE * (wanted.dtypes[-1:] != known.dtypes[-1:]) + _between(
            wanted.product, known.product
        )
    if (wanted.product is None) != (known.product is None):
        return _FAR
    apart = _OTHER_DTYPE * (wanted.dtypes != known.dtypes)
    apart += _OTHER_DENSITY * (wanted.dense != known.dense)
    apart += _OTHER_BROADCAST * (_broadcasting(wanted) != _broadcasting(known))
    if len(wanted.shapes) != len(known.shapes):
        here, there = wanted.quantities, known.quantities
        return apart + _OTHER_BROADCAST + abs(math.log2(max(here["result"], 1) / max(there["result"], 1)))
    sizes = [
        abs(math.log2(max(math.prod(here), 1) / max(math.prod(there), 1)))
        for here, there in zip(wanted.shapes, known.shapes, strict=True)
    ]
    if wanted.operator.startswith("aten::index_"):
        # Few indices take another kernel: index_select_out_cuda_impl and its kin in Indexing.cu.
        apart += _VECTOR * ((_last_count(wanted) <= _FEW_INDICES) != (_last_count(known) <= _FEW_INDICES))
    if is_recurrent(wanted):
        sizes.pop()  # more steps only launch the same more often
    columns = abs(math.log2(max(wanted.quantities["columns"], 1) / max(known.quantities["columns"], 1)))
    return apart + math.hypot(*sizes, columns)


def _last_count(problem: Problem) -> int:
    return math.prod(problem.shapes[-1]) if problem.shapes else 1


def _between(wanted: Product, known: Product) -> float:
    pairs = ((wanted.m, known.m), (wanted.n, known.n), (wanted.k, known.k), (wanted.batch, known.batch))
    apart = math.hypot(*(math.log2(a / b) for a, b in pairs))
    apart += _OTHER_LAYOUT * (wanted.layout != known.layout)
    apart += _PER_ALIGNMENT * abs(math.log2(wanted.alignment / known.alignment))
    return apart + _VECTOR * ((min(wanted.m, wanted.n) == 1) != (min(known.m, known.n) == 1))


def _broadcasting(problem: Problem) -> Sequence[bool]:
    largest = max(map(math.prod, problem.shapes), default=1)
    return tuple(math.prod(shape) == largest for shape in problem.shapes)

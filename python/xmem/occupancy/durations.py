"""How long operators take, as weights: a roofline with a floor, its efficiencies found in recorded runs.

An operator computes or moves memory, whichever takes longer, after what a launch takes. Rates are per
multiprocessor and nanosecond, so that they hold for GPUs of other sizes of the same architecture.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from xmem.occupancy.problems import Problem


@dataclass(frozen=True, slots=True)
class Roofline:
    """Rates that operators reach.

    Attributes:
        flops_per_ns: Of one multiprocessor, by type.
        bytes_per_ns: Of one multiprocessor's share of the memory.
        floor_ns: Of an operator, by name: about the shortest that was recorded.
        usual_floor_ns: Of any other.
        factor: Recorded over modelled time, by operator: what the roofline does not say, such as
            repeated passes.
    """

    flops_per_ns: dict[str, float] = field(default_factory=dict)
    bytes_per_ns: float = 15.0
    floor_ns: dict[str, float] = field(default_factory=dict)
    usual_floor_ns: float = 2000.0
    factor: dict[str, float] = field(default_factory=dict)


_USUAL_FLOPS = 1000.0
_USUAL_FLOOR_NS = 2000.0


def _attention_flops(problem: Problem) -> int:
    if "attention" not in problem.operator or not problem.shapes or len(problem.shapes[0]) != 4:
        return 0
    batch, length, heads, width = problem.shapes[0]
    return 4 * batch * heads * length * length * width


def _work(problem: Problem) -> int:
    return problem.product.flops if problem.product else _attention_flops(problem)


def _raw_ns(roofline: Roofline, problem: Problem, multiprocessors: int) -> float:
    dtype = problem.dtypes[-1] if problem.dtypes else ""
    computing = _work(problem) / roofline.flops_per_ns.get(dtype, _USUAL_FLOPS) / multiprocessors
    moving = problem.bytes / roofline.bytes_per_ns / multiprocessors
    floor = roofline.floor_ns.get(problem.operator, roofline.usual_floor_ns)
    return floor + max(computing, moving)


def roofline_ns(roofline: Roofline, problem: Problem, multiprocessors: int) -> float:
    """Return how long an operator takes, nanoseconds."""
    raw = _raw_ns(roofline, problem, multiprocessors)
    floor = roofline.floor_ns.get(problem.operator, roofline.usual_floor_ns)
    return raw * roofline.factor.get(problem.operator, 1.0) if raw > 2 * floor else raw


def fit_roofline(recorded: Iterable[tuple[Problem, int, int]]) -> Roofline:
    """Find the rates in recorded operators.

    Args:
        recorded: Problem, multiprocessors of the GPU, and nanoseconds of all kernels that it launched.
    """
    rows = list(recorded)
    rates: dict[str, list[float]] = defaultdict(list)
    moving, shortest = [], defaultdict(list)
    for problem, multiprocessors, took in rows:
        shortest[problem.operator].append(took)
        if took < 8000:
            continue
        if _work(problem):
            rates[problem.dtypes[-1]].append(_work(problem) / took / multiprocessors)
        else:
            moving.append(problem.bytes / took / multiprocessors)
    # An operator that was recorded on large inputs only has no floor of its own.
    floors = sorted(map(min, shortest.values()))
    usual = float(floors[len(floors) // 4]) if floors else _USUAL_FLOOR_NS
    first = Roofline(
        {dtype: _upper(found) for dtype, found in rates.items()},
        _upper(moving) if moving else 15.0,
        {name: float(min(*times, 3 * usual)) for name, times in shortest.items()},
        usual,
    )
    ratios: dict[str, list[float]] = defaultdict(list)
    for problem, multiprocessors, took in rows:
        raw = _raw_ns(first, problem, multiprocessors)
        if raw > 2 * first.floor_ns.get(problem.operator, first.usual_floor_ns):
            ratios[problem.operator].append(math.log(took / raw))
    factor = {name: math.exp(statistics.median(found)) for name, found in ratios.items()}
    return Roofline(first.flops_per_ns, first.bytes_per_ns, first.floor_ns, first.usual_floor_ns, factor)


def _upper(found: list[float]) -> float:
    """Return what the better half reaches."""
    return statistics.quantiles(found, n=4)[2] if len(found) > 1 else found[0]

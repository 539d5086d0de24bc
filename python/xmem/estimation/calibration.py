"""Intervals around estimates, calibrated on measured runs.

A residual is the truth over the estimate, less 1. For each kind of estimate ``data/calibration.toml`` holds
the residuals of measured runs. A new run of the same kind is as likely as any of them to have the largest, so
the k-th smallest of n bounds the new one with probability k / (n + 1) (split conformal prediction): the bound
for a confidence c is the residual at k = ceil((n + 1) c). Where so many rows are not there (k > n), the m
largest, a fifth of all, are taken for an exponential tail above the next one, u. Its mean is known from a few
excesses of mean e only, and rows of one model err alike: with q models the m excesses count as i = m q / n
independent ones. So a new excess exceeds x with probability (1 + x / (i e)) ** -i, times the share
m / (n + 1) that lies above u at all.

Traces that others recorded are of libraries that share nothing, and one job can have several of them. There,
the residuals are listed by library and job (`LibraryResiduals`). Runs that many projects published are listed
by project and job (`ProjectResiduals`), each project with the same weight, however much it published.

Each bound holds by itself with the confidence: the upper one is exceeded with probability at most 1 - c.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

from xmem.errors import ConfigError
from xmem.estimation.estimate import Bounds, Interval
from xmem.files.documents import parse_toml
from xmem.files.package_data import DATA, read_data
from xmem.records import dataclass

DEFAULT_CONFIDENCE = 0.9
KINDS = ("convolutional", "other")
_FILES = (
    "calibration.toml",
    "calibration_of_foreign_traces.toml",
    "calibration_of_gpu_traces.toml",
    "calibration_of_published_runs.toml",
)
_AUTHORS = "xmem_paper"  # what the runs of calibration.toml are called among projects
_TAIL_SHARE = 5  # the largest fifth
_ROUNDING = 1e-9  # of shares
_LEAST_ROWS = 9  # enough to reach the default confidence without an extrapolated tail
# Both are based on captures on the CPU and may substitute for each other.
_KIN = {"cpu": "fitted", "fitted": "cpu"}
# Held against the phantom GPU, so the phantom's own residuals come on top.
_HELD_AGAINST = {"foreign": "phantom", "foreign_without_shapes": "phantom"}


@dataclass(frozen=True)
class Residuals:
    """Residuals of measured runs for estimates of one kind.

    Attributes:
        values: Truth over estimate, less 1, ascending.
        models: Number of models among the runs; 0 = as many as runs.
    """

    values: tuple[float, ...]
    models: int = 0

    @property
    def independent_share(self) -> float:
        """Share of independent rows."""
        return self.models / len(self.values) if self.models else 1.0

    def upper(self, confidence: float) -> float:
        """Return the bound that a new residual exceeds with probability ``1 - confidence`` at most.

        The bound is never negative.
        """
        return max(_upper(self.values, confidence, self.independent_share), 0.0)

    def lower(self, confidence: float) -> float:
        """Return the bound that a new residual stays below with that probability at most.

        The bound is never positive.
        """
        mirrored = [-value for value in reversed(self.values)]
        return min(-_upper(mirrored, confidence, self.independent_share), 0.0)

    def is_continued(self, confidence: float) -> bool:
        """Return whether there are too few rows, so that the tail is extrapolated."""
        return _share(len(self.values), confidence) > 1

    @property
    def is_enough(self) -> bool:
        """Whether bounds can be made from these rows."""
        return len(self.values) >= _LEAST_ROWS

    @property
    def words(self) -> str:
        """What was measured, for people."""
        return f"{len(self.values)} measured runs"


@dataclass(frozen=True)
class LibraryResiduals:
    """Residuals of traces by library and job.

    Traces of a job err alike, and so do jobs of a library. So a job counts as its worst trace, and a library
    as its worst job, from above and from below separately. A bound is the wider one of what all jobs and what
    the libraries give. As long as there are so few libraries that the rank of the confidence is the last one
    (up to 18 for 0.9), no job and no library that is added makes a bound narrower than the worst of all.

    Attributes:
        libraries: For each library its jobs, and for each job the residuals of its traces: truth over the
            nearer bound of what the estimate leaves open, less 1; 0 between the bounds.
    """

    libraries: Mapping[str, tuple[tuple[float, ...], ...]]

    def upper(self, confidence: float) -> float:
        """Return the bound that a new job exceeds with probability ``1 - confidence`` at most.

        The bound is never negative.
        """
        return self._furthest(confidence, lambda residual: residual)

    def lower(self, confidence: float) -> float:
        """Return the bound that a new job stays below with that probability at most.

        The bound is never positive.
        """
        return 0.0 - self._furthest(confidence, lambda residual: -residual)

    def _furthest(self, confidence: float, outward: Callable[[float], float]) -> float:
        by_library = [
            [max(outward(residual) for residual in job) for job in jobs] for jobs in self.libraries.values()
        ]
        jobs = sorted(worst for worsts in by_library for worst in worsts)
        libraries = sorted(max(worsts) for worsts in by_library)
        return max(
            _upper(jobs, confidence, len(libraries) / len(jobs)), _upper(libraries, confidence, 1.0), 0.0
        )

    def is_continued(self, confidence: float) -> bool:
        """Return whether there are too few libraries, so that the tail is extrapolated."""
        return _share(len(self.libraries), confidence) > 1

    def held_out(self, confidence: float) -> tuple[int, int]:
        """Return how many truths are inside of the bounds that the other libraries give, of how many.

        Each library is left out in turn. With fewer than two there are no bounds, and no truth is inside.
        """
        inside = 0
        for left_out in self.libraries if len(self.libraries) > 1 else ():
            others = LibraryResiduals(
                {name: self.libraries[name] for name in self.libraries if name != left_out}
            )
            low, high = others.lower(confidence), others.upper(confidence)
            inside += sum(low <= residual <= high for job in self.libraries[left_out] for residual in job)
        return inside, sum(len(job) for jobs in self.libraries.values() for job in jobs)

    @property
    def is_enough(self) -> bool:
        """Whether bounds can be made from these rows: those of the others hold for each library left out."""
        inside, traces = self.held_out(DEFAULT_CONFIDENCE)
        return self._jobs >= _LEAST_ROWS and inside >= DEFAULT_CONFIDENCE * traces

    @property
    def words(self) -> str:
        """What was measured, for people."""
        return f"{self._jobs} measured jobs of {len(self.libraries)} libraries"

    @property
    def _jobs(self) -> int:
        return sum(map(len, self.libraries.values()))


@dataclass(frozen=True)
class ProjectResiduals:
    """Residuals of runs that projects published, by project and job.

    Runs of a job err alike, so a job counts as its worst run, from above and from below separately. The next
    run may be of any project, and there of any job: each project weighs the same, and so does each job within
    one. Rows of such weights w bound a new one as n = 1 / sum(w^2) rows of the same weight do (Kish, Survey
    Sampling, 1965, section 11.7). Projects differ more than jobs, and the next run may be like those of the
    least favourable one: no bound is narrower than what a project by itself gives, if it has enough jobs.

    Attributes:
        projects: For each project its jobs, and for each job the residuals of its runs: truth over estimate,
            less 1.
        authors: The runs of the paper's authors, which are one more project; None where they are left out.
    """

    projects: Mapping[str, tuple[tuple[float, ...], ...]]
    authors: Residuals | None = None

    def upper(self, confidence: float) -> float:
        """Return the bound that a new job exceeds with probability ``1 - confidence`` at most.

        The bound is never negative.
        """
        own = 0.0 if self.authors is None else self.authors.upper(confidence)
        return max(self._furthest(confidence, lambda residual: residual), own)

    def lower(self, confidence: float) -> float:
        """Return the bound that a new job stays below with that probability at most.

        The bound is never positive.
        """
        own = 0.0 if self.authors is None else self.authors.lower(confidence)
        return min(0.0 - self._furthest(confidence, lambda residual: -residual), own)

    def _furthest(self, confidence: float, outward: Callable[[float], float]) -> float:
        worst = {
            name: sorted(max(outward(residual) for residual in job) for job in jobs)
            for name, jobs in self._every.items()
        }
        own = [_upper(jobs, confidence, 1.0) for jobs in worst.values() if len(jobs) >= _LEAST_ROWS]
        weighted = sorted((job, 1 / len(jobs) / len(worst)) for jobs in worst.values() for job in jobs)
        values, weights = zip(*weighted, strict=True)
        independent_share = min(len(worst) / _effective_rows(weights), 1.0)
        return max(_upper_of_weighted(values, weights, confidence, independent_share), *own, 0.0)

    def is_continued(self, confidence: float) -> bool:
        """Return whether there are too few jobs, so that the tail is extrapolated."""
        return _share(_effective_rows(self._weights), confidence) > 1

    def held_out(self, confidence: float) -> dict[str, tuple[int, int]]:
        """Return for each project how many of its jobs the bounds of all others hold, and how many it has."""
        found = {}
        for left_out, jobs in self._every.items() if len(self._every) > 1 else ():
            others = ProjectResiduals(
                {name: of for name, of in self.projects.items() if name != left_out},
                None if left_out == _AUTHORS else self.authors,
            )
            low, high = others.lower(confidence), others.upper(confidence)
            found[left_out] = sum(low <= min(job) and max(job) <= high for job in jobs), len(jobs)
        return found

    @property
    def is_enough(self) -> bool:
        """Whether bounds can be made from these rows."""
        return _effective_rows(self._weights) >= _LEAST_ROWS

    @property
    def words(self) -> str:
        """What was measured, for people."""
        return f"{len(self._weights)} measured jobs of {len(self._every)} projects"

    @property
    def _every(self) -> dict[str, tuple[tuple[float, ...], ...]]:
        if self.authors is None:
            return dict(self.projects)
        return {**self.projects, _AUTHORS: tuple((value,) for value in self.authors.values)}

    @property
    def _weights(self) -> tuple[float, ...]:
        every = self._every.values()
        return tuple(1 / len(jobs) / len(every) for jobs in every for _ in range(len(jobs)))


def _effective_rows(weights: Sequence[float]) -> float:
    """Return how many rows of one weight are as much evidence as rows of these, which sum up to 1."""
    return 1 / sum(weight * weight for weight in weights)


def _share(rows: float, confidence: float) -> float:
    """Return the share of the weight that must lie at or below a bound; above 1, rows are too few."""
    return round((rows + 1) / rows * confidence, 9)


def _upper(ascending: Sequence[float], confidence: float, independent_share: float) -> float:
    rows = len(ascending)
    return _upper_of_weighted(ascending, [1 / rows] * rows, confidence, independent_share)


def _upper_of_weighted(
    ascending: Sequence[float], weights: Sequence[float], confidence: float, independent_share: float
) -> float:
    rows = _effective_rows(weights)
    share = _share(rows, confidence)
    below = list(accumulate(weights))
    if share <= 1:
        return ascending[min(bisect_left(below, share - _ROUNDING), len(below) - 1)]
    # Those above: as many as weigh a fifth at most, and at least one.
    first = min(bisect_left(below, 1 - 1 / _TAIL_SHARE - _ROUNDING) + 1, len(ascending) - 1)
    above = sum(weights[first:])
    threshold = ascending[max(first - 1, 0)]
    excesses = zip(ascending[first:], weights[first:], strict=True)
    mean_excess = sum((value - threshold) * weight for value, weight in excesses) / above
    times_rarer = above * rows / ((rows + 1) * (1 - confidence))
    independent = max(above * rows * independent_share, 1.0)
    growth = math.expm1(math.log(times_rarer) / independent)
    continued = threshold + independent * mean_excess * growth
    return max(continued, ascending[-1])


Group = Residuals | LibraryResiduals | ProjectResiduals
Calibration = Mapping[str, Mapping[str, Group]]


@cache
def shipped() -> Calibration:
    """Return the residuals that come with xmem, by way and kind; empty for those never measured."""
    found: dict[str, dict[str, Group]] = {}
    for text in (read_data(name) for name in _FILES if (DATA / name).is_file()):
        for way, kinds in parse(text).items():
            for kind, group in kinds.items():
                known = found.setdefault(way, {}).get(kind)
                if isinstance(known, Residuals) and isinstance(group, ProjectResiduals):
                    group = ProjectResiduals(group.projects, authors=known)
                found[way][kind] = group
    return found


def parse(text: str) -> Calibration:
    """Read a calibration.

    Raises:
        ConfigError: The text is not a calibration.
    """
    try:
        ways = parse_toml(text)
        return {way: {kind: _group(group) for kind, group in kinds.items()} for way, kinds in ways.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"the calibration is invalid ({error})", "list residuals by way and kind"
        ) from error


def _group(group: Mapping[str, Any]) -> Group:
    if "libraries" in group:
        return LibraryResiduals(_jobs_by_name(group["libraries"]))
    if "projects" in group:
        return ProjectResiduals(_jobs_by_name(group["projects"]))
    return Residuals(tuple(sorted(float(value) for value in group["residuals"])), int(group["models"]))


def _jobs_by_name(table: Mapping[str, Any]) -> dict[str, tuple[tuple[float, ...], ...]]:
    found = {
        name: tuple(tuple(float(residual) for residual in job) for job in jobs)
        for name, jobs in table.items()
    }
    if not all(jobs and all(jobs) for jobs in found.values()):
        raise ValueError("a job without residuals")
    return found


def render(calibration: Calibration, source: str) -> str:
    """Format a calibration as text that ``parse`` reads.

    Args:
        calibration: The calibration to write.
        source: Its origin, for the first lines.
    """
    lines = [f"# {line}".rstrip() for line in source.splitlines()]
    for way, kinds in calibration.items():
        for kind, group in kinds.items():
            if isinstance(group, LibraryResiduals):
                lines += ["", f"[{way}.{kind}.libraries]", *_rendered_jobs(group.libraries)]
                continue
            if isinstance(group, ProjectResiduals):
                lines += ["", f"[{way}.{kind}.projects]", *_rendered_jobs(group.projects)]
                continue
            lines += ["", f"[{way}.{kind}]", f"models = {group.models}", "residuals = ["]
            shown = [f"{value:.5f}" for value in group.values]
            for start in range(0, len(shown), 10):
                lines.append("    " + ", ".join(shown[start : start + 10]) + ",")
            lines.append("]")
    return "\n".join(lines) + "\n"


def _rendered_jobs(jobs_by_name: Mapping[str, tuple[tuple[float, ...], ...]]) -> Iterator[str]:
    for name, jobs in jobs_by_name.items():
        yield f"{name} = ["
        yield from (f"    [{', '.join(f'{residual:.5f}' for residual in job)}]," for job in jobs)
        yield "]"


def require_confidence(confidence: float) -> None:
    """Check a confidence.

    Raises:
        ConfigError: The confidence is not between a half and 1.
    """
    if not 0.5 <= confidence < 1:
        raise ConfigError(
            f"confidence {confidence:g} is out of range",
            "use a value of at least 0.5 and less than 1, such as 0.99",
        )


def interval(
    reserved_bytes: int,
    *,
    way: str,
    kind: str,
    confidence: float,
    context_bytes: int = 0,
    least_bytes: int | None = None,
    most_bytes: int | None = None,
    bounds: Bounds | None = None,
    calibration: Calibration | None = None,
) -> Interval:
    """Return the interval of the device peak.

    Args:
        reserved_bytes: The estimated peak of reserved memory.
        way: ``phantom``, ``cpu``, ``fitted``, ``foreign``, ``foreign_without_shapes``, ``recorded``; others
            were never measured.
        kind: One of ``KINDS``: whether the job has convolutions, whose workspaces are more uncertain.
        confidence: Confidence of each bound.
        context_bytes: Context to add to both bounds.
        least_bytes: Least peak that the estimate itself leaves open, such as for blocks of unknown size.
        most_bytes: Largest peak that it leaves open.
        bounds: Bounds of the allocator: the result where too few runs of this kind were measured.
        calibration: Residuals; by default those that come with xmem.

    Raises:
        ConfigError: The confidence is invalid.
    """
    require_confidence(confidence)
    least = reserved_bytes if least_bytes is None else min(least_bytes, reserved_bytes)
    most = reserved_bytes if most_bytes is None else max(most_bytes, reserved_bytes)
    calibration = shipped() if calibration is None else calibration
    known = _residuals(calibration, way, kind)
    if known is None:
        low = least if bounds is None else min(bounds.perfect_reuse_bytes, least)
        high = most if bounds is None else max(bounds.never_reuse_bytes, most)
        basis = f"allocator bounds: too few runs of this kind ({way}, {kind}) were measured"
        return Interval(confidence, context_bytes + low, context_bytes + high, basis)
    name, residuals = known
    of_truth = _residuals(calibration, _HELD_AGAINST[way], kind) if way in _HELD_AGAINST else None
    in_turn = [residuals, *([of_truth[1]] if of_truth else [])]
    low = math.floor(least * math.prod(1 + each.lower(confidence) for each in in_turn))
    high = math.ceil(most * math.prod(1 + each.upper(confidence) for each in in_turn))
    basis = f"{residuals.words} ({name})"
    if residuals.is_continued(confidence):
        basis += ", with an extrapolated tail"
    if most > least:
        basis += ", plus what the estimate itself leaves open"
    return Interval(confidence, context_bytes + low, context_bytes + high, basis)


def is_calibrated(way: str, kind: str) -> bool:
    """Return whether enough runs of just this way and kind were measured for an interval of their own."""
    found = shipped().get(way, {}).get(kind)
    return found is not None and found.is_enough


def _residuals(calibration: Calibration, way: str, kind: str) -> tuple[str, Group] | None:
    """Return residuals of this kind, else of the nearest with enough rows; convolutions are less certain."""
    for near_kind in dict.fromkeys((kind, "convolutional")):
        for near_way in (way, _KIN.get(way, way)):
            found = calibration.get(near_way, {}).get(near_kind)
            if found is not None and found.is_enough:
                return f"{near_way}, {near_kind}", found
    return None

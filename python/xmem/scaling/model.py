"""A script's memory as a function of its dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmem.errors import ConfigError
from xmem.estimation.move import correct, policy_target
from xmem.estimation.need import unreplayed_as_recorded
from xmem.estimation.observation import Observation, Scaled
from xmem.estimation.question import AS_RECORDED
from xmem.estimation.verdict import Unreplayed, most_unreplayed
from xmem.records import dataclass
from xmem.scaling.alignment import align_blocks, changed_lifetimes
from xmem.scaling.dimensions import Point, label, require_dimensions, volume
from xmem.scaling.polynomials import Certainty, Polynomials, fit_polynomials
from xmem.scaling.shapes import Shapes, fit_shapes


@dataclass(frozen=True)
class Sample:
    """One run: its point, and the observation from its trace."""

    point: Point
    observed: Observation


@dataclass(frozen=True)
class Difference:
    """Blocks that the runs do not have in common, by origin.

    Attributes:
        kind: ``unfitted`` no polynomial passes through their sizes; ``missing`` not in every run; ``extra``
            only in runs other than the base; ``lifetime`` freed at another place of the run.
        operator: Innermost operator, empty = none.
        module: Module path, empty = none.
        blocks: Number of blocks.
        bytes: Sum of their sizes in the run that has them, preferably the base.
    """

    kind: str
    operator: str
    module: str
    blocks: int
    bytes: int


@dataclass(frozen=True)
class ScalingModel:
    """The blocks of the largest run, each with a polynomial for its size.

    Attributes:
        dimensions: Names of the dimensions.
        samples: The runs that it was fitted from.
        base: Index of the sample whose order of requests is kept.
        polynomials: One per row of the base's workload.
        observed_bytes: int64 [rows, 2], least and most of the sizes seen, for rows without a polynomial.
        differences: Blocks that the runs do not have in common, most bytes first.
        extra_bytes: Bytes of blocks that only runs other than the base hold.
        shapes: Inputs of operators.
        unreplayed: Most memory that the cards of the runs held beside what their replays show.
    """

    dimensions: tuple[str, ...]
    samples: tuple[Sample, ...]
    base: int
    polynomials: Polynomials
    observed_bytes: NDArray[np.int64]
    differences: tuple[Difference, ...]
    extra_bytes: int
    shapes: Shapes
    unreplayed: Unreplayed

    @property
    def base_sample(self) -> Sample:
        """The run whose order of requests is kept."""
        return self.samples[self.base]

    def at(self, point: Point | None = None, /, **dimensions: int) -> Observation:
        """Return the run at a point, as a trace of it would show it; pass it to ``xmem.estimate``.

        Blocks without a polynomial take the most that they could: the largest size seen, times the growth
        of the product of all dimensions; ``Estimate.scaling`` has the effect on the peak.

        Raises:
            ConfigError: A dimension is missing, unknown or not positive.
        """
        point = {**(point or {}), **dimensions}
        require_dimensions(point, self.dimensions)
        ordered = {name: point[name] for name in self.dimensions}
        sizes, holds = self.polynomials.at(ordered)
        growth = max(1.0, volume(ordered) / volume(self.base_sample.point))
        most = np.ceil(self.observed_bytes[:, 1] * growth).astype(np.int64)
        base = self.base_sample.observed
        return replace(
            base,
            recorded=base.recorded.with_inputs(self.shapes.at(ordered)),
            workload=base.workload.with_columns(size_bytes=np.where(holds, sizes, most)),
            scaled=Scaled(
                at=ordered,
                fitted_from=tuple(dict(sample.point) for sample in self.samples),
                unverified=_by_block(base, self.polynomials.certainty == Certainty.DETERMINED),
                uncertain=_by_block(base, ~holds),
                least_bytes=_by_block(base, self.observed_bytes[:, 0]),
                extra_bytes=int(self.extra_bytes * growth),
                unreplayed=self.unreplayed,
            ),
        )

    def summary(self) -> dict[str, int]:
        """Summarize how well the sizes are known, for the blocks that corrections for a GPU leave."""
        rows = survivors(self.base_sample.observed)
        certainty = self.polynomials.certainty[rows]
        return {
            "blocks": int(rows.sum()),
            "blocks_verified": int((certainty == Certainty.VERIFIED).sum()),
            "blocks_unverified": int((certainty == Certainty.DETERMINED).sum()),
            "blocks_uncertain": int((certainty == Certainty.UNFITTED).sum()),
        }


def fit(samples: Sequence[Sample]) -> ScalingModel:
    """Fit a model from runs of one script at different points.

    Args:
        samples: At least two; each dimension that is to vary needs at least two values.

    Raises:
        ConfigError: There are too few points, dimensions that do not vary, repeated points or traces of
            different kinds, or the runs differ too much to be from one script.
    """
    dimensions = _checked_dimensions(samples)
    base = max(range(len(samples)), key=lambda index: volume(samples[index].point))
    base_observed = samples[base].observed
    others = [index for index in range(len(samples)) if index != base]
    counterparts = dict(
        zip(others, align_blocks(base_observed, [samples[i].observed for i in others]), strict=True)
    )
    counterparts[base] = np.arange(len(base_observed.workload), dtype=np.int32)

    aligned = np.stack([counterparts[index] for index in range(len(samples))], axis=1)
    sizes = np.stack(
        [
            np.where(rows >= 0, sample.observed.workload.size_bytes[rows], -1)
            for rows, sample in zip(aligned.T, samples, strict=True)
        ],
        axis=1,
    )
    complete = (aligned >= 0).all(axis=1)
    polynomials = fit_polynomials(dimensions, [sample.point for sample in samples], sizes)
    polynomials.certainty[~complete] = Certainty.UNFITTED
    unfitted = polynomials.certainty == Certainty.UNFITTED

    moved = np.zeros(len(aligned), np.bool_)
    for index in others:
        moved |= changed_lifetimes(base_observed, samples[index].observed, counterparts[index])
    matters = survivors(base_observed)
    differences = [
        *_differences("unfitted", base_observed, matters & complete & unfitted),
        *_differences("missing", base_observed, matters & ~complete),
        *_differences("lifetime", base_observed, matters & moved),
    ]
    extra_bytes = 0
    for index in others:
        observed = samples[index].observed
        extra = survivors(observed)
        extra[counterparts[index][counterparts[index] >= 0]] = False
        differences += _differences("extra", observed, extra)
        extra_bytes = max(extra_bytes, int(observed.workload.size_bytes[extra].sum()))
    return ScalingModel(
        dimensions=dimensions,
        samples=tuple(samples),
        base=base,
        polynomials=polynomials,
        observed_bytes=np.stack([np.where(complete, sizes.min(axis=1), 0), sizes.max(axis=1)], axis=1),
        differences=tuple(sorted(differences, key=lambda found: -found.bytes)),
        extra_bytes=extra_bytes,
        shapes=fit_shapes(
            dimensions,
            [sample.point for sample in samples],
            [sample.observed.recorded for sample in samples],
            base,
        ),
        unreplayed=most_unreplayed([unreplayed_as_recorded(sample.observed) for sample in samples]),
    )


def _by_block(observed: Observation, column: NDArray[Any]) -> NDArray[Any]:
    """Map a column of the workload to the trace's blocks; zeros for blocks that it does not hold."""
    rows = observed.workload.block
    spread = np.zeros(len(observed.recorded.blocks), column.dtype)
    spread[rows[rows >= 0]] = column[rows >= 0]
    return spread


def _checked_dimensions(samples: Sequence[Sample]) -> tuple[str, ...]:
    if len(samples) < 2:
        raise ConfigError(
            f"too few runs to fit a model ({len(samples)})", "pass at least two, at different points"
        )
    dimensions = tuple(samples[0].point)
    for sample in samples:
        require_dimensions(sample.point, dimensions)
    points = [tuple(sample.point[name] for name in dimensions) for sample in samples]
    for name, values in zip(dimensions, zip(*points, strict=True), strict=True):
        if len(set(values)) < 2:
            raise ConfigError(
                f"{name} is {values[0]} in every run", f"pass runs with at least two values of {name}"
            )
    if len(set(points)) < len(points):
        repeated = next(point for point in points if points.count(point) > 1)
        raise ConfigError(
            f"two runs are at {label(dict(zip(dimensions, repeated, strict=True)))}",
            "pass one run for each point",
        )
    if len({sample.observed.device_type for sample in samples}) > 1:
        raise ConfigError(
            "some traces are of CPU runs and others of GPU runs", "capture all of them in the same way"
        )
    return dimensions


def survivors(observed: Observation) -> NDArray[np.bool_]:
    """Return the rows of the workload that all corrections keep: the sizes of the others do not matter."""
    corrected, _ = correct(observed, policy_target(observed, AS_RECORDED))
    left: NDArray[np.bool_] = np.isin(observed.workload.block, corrected.block)
    return left


def _differences(kind: str, observed: Observation, rows: NDArray[np.bool_]) -> list[Difference]:
    """Return the blocks of these rows, summed by origin."""
    recorded, workload = observed.recorded, observed.workload
    events, names, modules = recorded.trace.events, recorded.trace.names, recorded.attribution.modules
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for row in np.flatnonzero(rows):
        operator, module = int(workload.operator[row]), int(workload.module[row])
        origin = (
            names[int(events.name[operator])] if operator >= 0 else "",
            modules[module] if module >= 0 else "",
        )
        blocks, size = sums.get(origin, (0, 0))
        sums[origin] = (blocks + 1, size + int(workload.size_bytes[row]))
    return [Difference(kind, *origin, blocks, size) for origin, (blocks, size) in sums.items()]

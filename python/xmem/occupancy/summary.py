"""The occupancy of a run: its means, and who they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmem.errors import TraceError
from xmem.occupancy.averages import Averages, averages
from xmem.occupancy.calculator import Filling, Limiter, Residency, filling, residency
from xmem.occupancy.kernel_data import card
from xmem.occupancy.launches import NONE, Known, Launches
from xmem.occupancy.library_kernels import with_library_kernels
from xmem.occupancy.limits import limits_of
from xmem.records import dataclass

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Row:
    """Launches of one kernel, operator or module.

    Attributes:
        name: Name; empty = launched outside of any.
        launches: Their number.
        theoretical: Mean theoretical occupancy, 0 to 1, of those that are known.
        launch_mean: Mean over all multiprocessors, likewise.
        limiter: What limits most of them.
        known: How the least known of them is known.
        registers: Per thread, the most.
        shared_bytes: Per block, the most.
        duration_ns: Total, -1 = unknown.
    """

    name: str
    launches: int
    theoretical: float
    launch_mean: float
    limiter: str
    known: str
    registers: int
    shared_bytes: int
    duration_ns: int


@dataclass(frozen=True)
class Occupancy:
    """What a run's launches make of a GPU.

    Attributes:
        gpu: Name of the GPU.
        compute_capability: Major and minor.
        multiprocessors: Of the GPU.
        launches: Number of kernels and of library calls whose kernels are unknown.
        counts: The same by ``Known``, as text.
        means: Over the launches that are known.
        kernels: By kernel, most launches first.
        operators: By operator.
        modules: By module.
    """

    gpu: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    launches: int
    counts: Mapping[str, int]
    means: Averages
    kernels: tuple[Row, ...]
    operators: tuple[Row, ...]
    modules: tuple[Row, ...]

    def document(self) -> dict[str, Any]:
        """Return the JSON contract of ``xmem-fast occupancy --json``."""
        means = asdict(self.means)
        return {
            "schema_version": SCHEMA_VERSION,
            "gpu": self.gpu,
            "compute_capability": list(self.compute_capability),
            "multiprocessors": self.multiprocessors,
            "launches": self.launches,
            "known": dict(self.counts),
            **means,
            "kernels": [asdict(row) for row in self.kernels],
            "operators": [asdict(row) for row in self.operators],
            "modules": [asdict(row) for row in self.modules],
        }


def occupancy_of(
    launches: Launches, gpu: str, compute_capability: tuple[int, int], multiprocessors: int
) -> Occupancy:
    """Return the occupancy of launches on a GPU; library calls get the kernels that a model expects.

    Args:
        launches: A row per launch, with the registers of this compute capability.
        gpu: Its name.
        compute_capability: Major and minor.
        multiprocessors: Of the GPU.

    Raises:
        ConfigError: The limits of the compute capability are not known.
        TraceError: Nothing is known of any launch.
    """
    limits = limits_of(compute_capability)
    launches = with_library_kernels(launches, compute_capability, multiprocessors)
    is_known = launches.known != Known.UNKNOWN
    if not is_known.any():
        raise TraceError("nothing was launched of which the occupancy is known; record more of the script")
    known = launches.rows(is_known)
    held = residency(
        limits, known.threads, known.registers, known.shared_bytes, known.cluster, multiprocessors
    )
    filled = filling(limits, multiprocessors, held, known.blocks)
    timed = known.duration_ns if len(known) and (known.duration_ns >= 0).all() else None
    wall_ns = -1
    if timed is not None:
        wall_ns = int((known.begin_ns + known.duration_ns).max() - known.begin_ns.min())
    modelled = float((known.known == Known.MODELLED).mean())
    # Of whole models that were left out: what is asked about need not be like what was recorded.
    error = card()["measured"]["launch_mean_errors"]["model"]["all known"]["mean"]
    texts = _Grouping(launches, is_known, held, filled)
    return Occupancy(
        gpu=gpu,
        compute_capability=compute_capability,
        multiprocessors=multiprocessors,
        launches=len(launches),
        counts={kind.name.lower(): int((launches.known == kind).sum()) for kind in Known},
        means=averages(filled, timed, wall_ns, error=float(error) if modelled > 0 else 0.0),
        kernels=texts.rows(launches.name),
        operators=texts.rows(launches.operator),
        modules=texts.rows(launches.module),
    )


@dataclass(frozen=True)
class _Grouping:
    launches: Launches
    is_known: NDArray[np.bool_]
    held: Residency
    filled: Filling

    def rows(self, of: NDArray[np.int32]) -> tuple[Row, ...]:
        """Return a row per text of a column, most launches first."""
        values, inverse, counts = np.unique(of, return_inverse=True, return_counts=True)
        group = inverse[self.is_known]
        size = np.bincount(group, minlength=len(values))
        limiters = np.zeros((len(values), len(Limiter)), np.int64)
        np.add.at(limiters, (group, self.held.limiter), 1)
        least_known = np.zeros(len(values), np.uint8)
        np.maximum.at(least_known, inverse, self.launches.known)
        registers, shared = (self._most(inverse, column, len(values)) for column in self._needs())
        timed = self.launches.duration_ns
        durations = np.bincount(inverse, np.maximum(timed, 0), len(values)).astype(np.int64)
        untimed = np.bincount(inverse, timed < 0, len(values)) > 0
        theoretical = self._mean(group, self.held.theoretical, size)
        steady = self._mean(group, self.filled.steady, size)
        order = np.lexsort((values, -counts))
        return tuple(
            Row(
                name=self.launches.text(int(values[row])),
                launches=int(counts[row]),
                theoretical=float(theoretical[row]),
                launch_mean=float(steady[row]),
                limiter=Limiter(int(limiters[row].argmax())).name.lower() if size[row] else "unknown",
                known=Known(int(least_known[row])).name.lower(),
                registers=int(registers[row]),
                shared_bytes=int(shared[row]),
                duration_ns=NONE if untimed[row] else int(durations[row]),
            )
            for row in order
        )

    def _needs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        unknown = self.launches.known == Known.UNKNOWN
        return (
            self.launches.registers.astype(np.int64),
            np.where(unknown, NONE, self.launches.shared_bytes),
        )

    @staticmethod
    def _most(group: NDArray[np.intp], column: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        most = np.full(count, NONE, np.int64)
        np.maximum.at(most, group, column)
        return most

    @staticmethod
    def _mean(
        group: NDArray[np.intp], column: NDArray[np.float64], size: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        total = np.bincount(group, column, len(size))
        mean: NDArray[np.float64] = total / np.maximum(size, 1)
        return mean

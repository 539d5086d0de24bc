"""Estimates whose peaks are easy to reckon with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from estimate_samples import FITS, MIB
from xmem.estimation.estimate import Estimate, Measured, PathBytes, RankPeak, Verdict

GPT2 = FITS
"""3,514 MiB on the device: 146 of context and 3,368 reserved, 3,200 of them allocated."""

NO_GPU = replace(GPT2, verdict=None, target=replace(GPT2.target, gpu=None), context_bytes=0,
                 device_peak_bytes=GPT2.peak_reserved_bytes)  # fmt: skip

TOO_LARGE = replace(GPT2, verdict=Verdict("RTX 3060 12 GB", 3000 * MIB, fits=False, margin_bytes=-514 * MIB))


def grown(estimate: Estimate, mib: int, *, module: str, line: str, category: str = "activation") -> Estimate:
    """The same job with more of one thing at the peak."""
    parts = estimate.breakdown

    def more(rows: dict[str, int], name: str) -> dict[str, int]:
        return dict(sorted({**rows, name: rows.get(name, 0) + mib * MIB}.items(), key=lambda row: -row[1]))

    return replace(
        estimate,
        peak_reserved_bytes=estimate.peak_reserved_bytes + mib * MIB,
        peak_allocated_bytes=estimate.peak_allocated_bytes + mib * MIB,
        device_peak_bytes=estimate.device_peak_bytes + mib * MIB,
        breakdown=replace(
            parts,
            category=more(dict(parts.category), category),
            module=more(dict(parts.module), module),
            source_line=more(dict(parts.source_line), line),
            paths=(
                PathBytes(category, "forward", False, module, "aten::mm", line, mib * MIB, 0, 1),
                *parts.paths,
            ),
        ),
    )


def shifted(estimate: Estimate, by: int) -> Estimate:
    """The same job after lines were put in at the top of its scripts."""

    def moved(line: str | None) -> str | None:
        path, _, number = (line or "").rpartition(":")
        return f"{path}:{int(number) + by}" if path else line

    parts = estimate.breakdown
    return replace(
        estimate,
        breakdown=replace(
            parts,
            source_line={moved(line): size for line, size in parts.source_line.items()},
            paths=tuple(replace(path, source_line=moved(path.source_line)) for path in parts.paths),
        ),
    )


def on_ranks(estimate: Estimate, *reserved_mib: int) -> Estimate:
    """The same job with several processes, the captured one first."""
    ranks = tuple(RankPeak(rank, 0, size * MIB, (size - 100) * MIB) for rank, size in enumerate(reserved_mib))
    own = ranks[0]
    return replace(
        estimate, measured=Measured(own.peak_reserved_bytes, own.peak_allocated_bytes, True, ranks)
    )


def write(path: Path, estimate: Estimate) -> Path:
    """As ``estimate -o`` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(estimate.to_json(), indent=2))
    return path

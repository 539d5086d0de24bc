"""Fitted models in a terminal: the result of a fit, and the largest size that fits."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from xmem.devices.gpus import Device
from xmem.scaling import Largest, ScalingModel, Verification, label
from xmem.scaling.largest import CurvePoint
from xmem.text.units import format_bytes

_SHOWN = 10
_BAR_WIDTH = 40

_MEANING = {
    "unfitted": "no polynomial fits their size",
    "missing": "not in every run",
    "extra": "in a smaller run, but not in the largest",
    "lifetime": "freed at a different place in another run",
}


def render_fit(
    model: ScalingModel, verifications: Sequence[Verification], path: str, console: Console
) -> None:
    """Write what was fitted, what was not, and how held-out runs compare."""
    found = model.summary()
    points = "; ".join(label(sample.point) for sample in model.samples)
    console.print(Text.assemble((path, "bold"), f": fitted from {points}"), soft_wrap=True)
    console.print(
        f"{found['blocks']:,} blocks: {found['blocks_verified']:,} sizes checked by the runs, "
        f"{found['blocks_unverified']:,} determined by them, {found['blocks_uncertain']:,} uncertain",
        soft_wrap=True,
    )
    for difference in model.differences[:_SHOWN]:
        who = " in ".join(part for part in (difference.operator, difference.module) if part) or "unknown"
        console.print(
            Text.assemble(
                ("  ! ", "yellow"),
                f"{difference.blocks:,} blocks of {who}, {format_bytes(difference.bytes)}: "
                f"{_MEANING[difference.kind]}",
            ),
            soft_wrap=True,
        )
    if len(model.differences) > _SHOWN:
        console.print(f"  and {len(model.differences) - _SHOWN} more (--json)", soft_wrap=True)
    for verification in verifications:
        predicted = format_bytes(verification.peak_reserved_bytes)
        captured = format_bytes(verification.captured_peak_reserved_bytes)
        console.print(
            f"checked at {label(verification.at)}: {predicted} against {captured} captured "
            f"({verification.relative_error:+.2%}); {verification.blocks_equal:,} of "
            f"{verification.blocks:,} blocks equal",
            soft_wrap=True,
        )


def render_largest(
    found: Sequence[tuple[Device, Largest]], curve: Sequence[CurvePoint], console: Console
) -> None:
    """Write the largest value for each GPU, and the curve of the peak."""
    dimension = found[0][1].dimension
    rows = [(dimension, "device peak", "memory", "retries", "GPU")]
    for device, largest in found:
        need = largest.need
        rows.append(
            (
                f"{largest.value:,}" if need else "none",
                format_bytes(need.device_peak_bytes) if need else "-",
                format_bytes(device.total_memory_bytes),
                f"{need.retries:,}" if need else "-",
                device.name + _remark(largest),
            )
        )
    _print_table(rows, console)
    if curve:
        console.print()
        _print_curve(dimension, curve, console)


def _remark(largest: Largest) -> str:
    if not largest.smaller_misfits:
        return ""
    misfits = ", ".join(f"{value:,}" for value in largest.smaller_misfits[:5])
    return f" (but not {misfits}: cached memory fits worse there)"


def _print_curve(dimension: str, curve: Sequence[CurvePoint], console: Console) -> None:
    highest = max(point.peak_reserved_bytes for point in curve)
    rows = [(dimension, "reserved", "allocated", "")]
    for before, point in zip([None, *curve[:-1]], curve, strict=True):
        bar = "█" * round(_BAR_WIDTH * point.peak_reserved_bytes / highest)
        falls = before is not None and point.peak_reserved_bytes < before.peak_reserved_bytes
        rows.append(
            (
                f"{point.value:,}",
                format_bytes(point.peak_reserved_bytes),
                format_bytes(point.peak_allocated_bytes),
                bar + (" less than the line above" if falls else ""),
            )
        )
    _print_table(rows, console)


def _print_table(rows: Sequence[tuple[str, ...]], console: Console) -> None:
    """Print figures to the right, the last column to the left; the first row is the header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for number, (*figures, last) in enumerate(rows):
        aligned = "  ".join(text.rjust(width) for text, width in zip(figures, widths, strict=True))
        console.print(Text(f"{aligned}  {last}".rstrip(), "bold" if number == 0 else ""), soft_wrap=True)

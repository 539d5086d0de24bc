"""Texts and small tables of the page: the verdict, the facts beside it, the number on the card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from xmem.text.units import format_bytes
from xmem.text.words import spaced

if TYPE_CHECKING:
    from xmem.estimation.estimate import Estimate


class CardStep(NamedTuple):
    """A part of the figure in nvidia-smi, as a waterfall step; ``begin`` and ``share`` are relative to it."""

    name: str
    bytes: int
    words: str
    begin: float
    share: float
    total: bool = False


def facts_of(estimate: Estimate) -> dict[str, Any]:
    """Return the texts around the figures, by their names in the template."""
    return {
        "estimate": estimate,
        "verdict": estimate.verdict,
        "title": _title(estimate),
        "command": " ".join(estimate.trace.command) or estimate.trace.path,
        "headline": _headline(estimate),
        "lead": _lead(estimate),
        "facts": list(_facts(estimate)),
        "peak_text": (
            f"{format_bytes(estimate.peak_allocated_bytes)} allocated "
            f"{_place(estimate.peak.iteration, estimate.peak.phase)}{_by(estimate)}."
        ),
        "slack_text": _slack_text(estimate),
        "interval_text": _interval_text(estimate),
        "changed_policies": [
            policy for policy in estimate.policies if policy.blocks_changed or not policy.applied
        ],
        "idle_policies": [
            policy.name for policy in estimate.policies if policy.applied and not policy.blocks_changed
        ],
        "run": list(_run(estimate)),
    }


def card_of(estimate: Estimate) -> list[CardStep]:
    """Return the parts of the number on the card, each beginning where the last one ends, and their sum."""
    whole = max(estimate.device_peak_bytes, 1)
    steps, begin = [], 0
    for part in estimate.card:
        steps.append(CardStep(part.name, part.bytes, part.words, begin / whole, part.bytes / whole))
        begin += part.bytes
    return [
        *steps,
        CardStep(
            "device_peak", begin, "what nvidia-smi shows of the process", 0.0, begin / whole, total=True
        ),
    ]


def _title(estimate: Estimate) -> str:
    command = estimate.trace.command
    scripts = [word for word in command if word.endswith(".py")]
    return (scripts[0] if scripts else estimate.trace.path or "trace").rsplit("/", 1)[-1]


def _headline(estimate: Estimate) -> str:
    verdict = estimate.verdict
    if verdict is None:
        return f"Needs {format_bytes(estimate.device_peak_bytes)}"
    return f"{str(estimate.fits_in_words).capitalize()} on {verdict.gpu}"


def _lead(estimate: Estimate) -> str:
    verdict, oom = estimate.verdict, estimate.simulation.oom
    peak = format_bytes(estimate.device_peak_bytes)
    if verdict is None:
        return "No GPU was named: this is what the job takes with unlimited memory, without a CUDA context."
    if verdict.fits:
        share = estimate.device_peak_bytes / verdict.capacity_bytes
        return (
            f"The job takes {peak} of {format_bytes(verdict.capacity_bytes)} ({share:.0%}); "
            f"{format_bytes(verdict.margin_bytes)} stay free."
        )
    text = f"The job takes {peak} with unlimited memory; the GPU has {format_bytes(verdict.capacity_bytes)}."
    if oom is None:
        return text
    where = " at ".join(filter(None, (oom.operator, oom.source_line)))
    return (
        f"{text} It runs out of memory {_place(oom.iteration, oom.phase)}{f', {where},' if where else ''} "
        f"asking for {format_bytes(oom.requested_bytes)}."
    )


def _facts(estimate: Estimate) -> Iterator[tuple[str, str, str]]:
    yield "device peak", format_bytes(estimate.device_peak_bytes), _between(estimate)
    yield (
        "reserved by PyTorch",
        format_bytes(estimate.peak_reserved_bytes),
        f"{estimate.simulation.segments:,} segments",
    )
    persistent = estimate.breakdown.persistent_bytes
    yield (
        "allocated at the peak",
        format_bytes(estimate.peak_allocated_bytes),
        "" if persistent is None else f"{format_bytes(persistent)} of it outlives its iteration",
    )
    yield (
        "peak",
        _place(estimate.peak.iteration, estimate.peak.phase),
        " at ".join(filter(None, (estimate.peak.operator, estimate.peak.source_line))),
    )
    free = sum(part.bytes for part in estimate.card if part.name in ("fragmentation", "cached"))
    yield "reserved but free", format_bytes(free), "when most is reserved"
    largest = next(iter(estimate.breakdown.category.items()), None)
    if largest is not None:
        share = largest[1] / max(estimate.peak_allocated_bytes, 1)
        yield (
            "most of it",
            spaced(largest[0]),
            f"{format_bytes(largest[1])}, {share:.0%} of the peak",
        )


def _between(estimate: Estimate) -> str:
    interval = estimate.interval
    if interval is None:
        return ""
    return f"{format_bytes(interval.low_bytes)} to {format_bytes(interval.high_bytes)}"


def _slack_text(estimate: Estimate) -> str | None:
    slack = estimate.breakdown.category.get("allocator_slack", 0)
    if not slack:
        return None
    return (
        f"Sizes are those of whole blocks. {format_bytes(slack)} at the peak is slack in blocks that the "
        "allocator did not split; the estimate counts it as a category of its own."
    )


def _interval_text(estimate: Estimate) -> str:
    interval = estimate.interval
    if interval is None:
        return ""
    low, high = format_bytes(interval.low_bytes), format_bytes(interval.high_bytes)
    return (
        f"The device peak lies between {low} and {high}, each bound with a confidence of "
        f"{interval.confidence:.1%}: {interval.basis}."
    )


def _run(estimate: Estimate) -> Iterator[tuple[str, str]]:
    trace, target = estimate.trace, estimate.target
    if trace.command:
        yield "command", " ".join(trace.command)
    if trace.path:
        yield "trace", f"{trace.path}, {sum(trace.events.values()):,} events, {trace.iterations} iterations"
    yield "PyTorch", target.torch_version
    if target.alloc_conf:
        yield "PYTORCH_CUDA_ALLOC_CONF", target.alloc_conf


def _by(estimate: Estimate) -> str:
    by = " at ".join(filter(None, (estimate.peak.operator, estimate.peak.source_line)))
    return f", {by}" if by else ""


def _place(iteration: int, phase: str) -> str:
    named = "" if phase == "other" else spaced(phase)
    if iteration < 0:
        return f"in {named}" if named else "outside of all iterations"
    return f"in {named} of iteration {iteration}" if named else f"in iteration {iteration}"

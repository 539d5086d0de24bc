"""The answer in a terminal: verdict first, then the evidence, in 80 columns and in plain text when piped."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xmem.estimation.estimate import Estimate, OutOfMemoryRecord, PolicyRecord, Verdict
from xmem.estimation.holders import NO_LINE, OUTSIDE_OF_MODULES
from xmem.reports.terminal.sparkline import sparkline
from xmem.text.units import format_bytes, format_change
from xmem.text.words import at_instant, instant, point, spaced

_TOP = 5
_MOST_RANKS = 8
_MAX_WIDTH = 100
_LABEL_WIDTH = 14
_SIZE_WIDTH = 12
_SHARE_WIDTH = 8
_BAR_WIDTH = 12
_CARD_WIDTH = 22
_PLACE_WIDTH = 36
_WATERFALL_WIDTH = 32
_MIN_WIDTH_FOR_BARS = 72
_MIN_WIDTH_FOR_PASSES = 80
_MIN_WIDTH_FOR_PASSES_AND_BARS = 98


def render(estimate: Estimate, console: Console, *, explain: bool = False) -> None:
    """Write the report of an estimate to a console, which decides whether to show colours.

    Args:
        estimate: The answer.
        console: Console to write to.
        explain: Show what each policy changed at the peak, in place of the short list of corrections.
    """
    _print_hanging(Text(), _headline(estimate), console)
    if estimate.doubt:
        _print_hanging(Text(), Text(estimate.doubt, "yellow"), console)
    console.print()
    _print_peak(estimate, console)
    _print_ranks(estimate, console)
    _print_card(estimate, console)
    categories = {spaced(name): size for name, size in estimate.breakdown.category.items()}
    _print_shares("At the peak, by category", categories, console, top=len(categories))
    _print_shares(
        "Top modules",
        estimate.breakdown.module,
        console,
        top=_TOP,
        passes=_passes(estimate, "module", OUTSIDE_OF_MODULES),
    )
    _print_shares(
        "Top source lines",
        estimate.breakdown.source_line,
        console,
        top=_TOP,
        passes=_passes(estimate, "source_line", NO_LINE),
    )
    _print_largest_blocks(estimate, console)
    if estimate.verdict is not None:
        _print_field("Margin", _margin(estimate.verdict), console)
        console.print()
    if explain:
        _print_policies(estimate, console)
    else:
        _print_list("Corrected for CUDA", _corrections(estimate), console)
    _print_list("What if", list(estimate.what_if), console)
    _print_list("Assumed", list(estimate.assumptions), console)
    _print_list("Problems in the trace", _problems(estimate), console)
    timings = ", ".join(f"{stage} {_duration(seconds)}" for stage, seconds in estimate.timings_s.items())
    _print_field("Timings", timings, console)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def _headline(estimate: Estimate) -> Text:
    need = format_bytes(estimate.device_peak_bytes)
    verdict = estimate.verdict
    if verdict is None:
        return Text.assemble((f"Needs {need} of GPU memory", "bold"), "; name a GPU with --gpu for a verdict")
    of_capacity = f"needs {need} of {format_bytes(verdict.capacity_bytes)}"
    if verdict.fits:
        spare = format_bytes(verdict.margin_bytes)
        words = str(estimate.fits_in_words).capitalize()
        style = "bold green" if estimate.doubt is None else "bold yellow"
        return Text.assemble((f"{words} on {verdict.gpu}", style), f": {of_capacity}, {spare} to spare")
    short = f"short by {format_bytes(-verdict.margin_bytes)}"
    oom = estimate.simulation.oom
    failure = "" if oom is None else f", fails {_place(oom)}"
    return Text.assemble((f"Does not fit on {verdict.gpu}", "bold red"), f": {of_capacity}, {short}{failure}")


def _place(oom: OutOfMemoryRecord) -> str:
    line = f", at {oom.source_line}" if oom.source_line else ""
    operator = f" ({oom.operator})" if oom.operator else ""
    return f"{at_instant(oom.iteration, oom.phase)}{line}{operator}"


def _print_peak(estimate: Estimate, console: Console) -> None:
    reserved, context = format_bytes(estimate.peak_reserved_bytes), format_bytes(estimate.context_bytes)
    allocated, requested = (
        format_bytes(estimate.peak_allocated_bytes),
        format_bytes(estimate.peak_requested_bytes),
    )
    peak, bounds = estimate.peak, estimate.simulation.bounds
    least, most = format_bytes(bounds.perfect_reuse_bytes), format_bytes(bounds.never_reuse_bytes)
    fields = {
        "At": _scaling(estimate),
        "Measured": _measured(estimate),
        "Peak": f"{reserved} reserved + {context} CUDA context{_outside(estimate)}",
        "  in blocks": f"{allocated} allocated"
        + (f", {requested} requested by tensors" if requested != allocated else ""),
        "  persistent": _persistent(estimate),
        "  bounds": f"{least} with perfect reuse, {most} without any",
        "Interval": _interval(estimate),
        "Where": instant(peak.iteration, peak.phase),
        "  module": peak.module,
        "  operator": peak.operator,
        "  source line": peak.source_line,
    }
    for label, value in fields.items():
        if value:
            _print_field(label, value, console)
    _print_curve(estimate, console)
    console.print()


def _outside(estimate: Estimate) -> str:
    """Describe what the card holds beside reserved memory and the context, as the rest of a sum."""
    return f" + {format_bytes(estimate.outside_bytes)} outside of PyTorch" if estimate.outside_bytes else ""


def _persistent(estimate: Estimate) -> str | None:
    """Describe the memory that an iteration leaves to the next, and the rest."""
    persistent = estimate.breakdown.persistent_bytes
    if persistent is None:
        return None
    transient = format_bytes(estimate.peak_allocated_bytes - persistent)
    return f"{format_bytes(persistent)} outlives its iteration, {transient} does not"


def _interval(estimate: Estimate) -> str | None:
    """Describe the interval of the device peak, context included."""
    interval = estimate.interval
    if interval is None:
        return None
    low, high = format_bytes(interval.low_bytes), format_bytes(interval.high_bytes)
    return f"{low} to {high}, each with {interval.confidence:.6g} confidence; {interval.basis}"


def _scaling(estimate: Estimate) -> str | None:
    """Describe the point of a fitted model, and what the fit leaves open."""
    scaling = estimate.scaling
    if scaling is None:
        return None
    text = f"{point(scaling.at)}, fitted from {'; '.join(map(point, scaling.fitted_from))}"
    least, most = scaling.peak_reserved_least_bytes, scaling.peak_reserved_most_bytes
    if least < most:
        text += (
            f"; {format_bytes(least)} to {format_bytes(most)} reserved, since "
            f"{scaling.blocks_uncertain:,} blocks follow no polynomial or are not in every run"
        )
    return text


def _measured(estimate: Estimate) -> str | None:
    """Describe what the real allocator reported, and the ranks of the job if there are several."""
    measured = estimate.measured
    if measured is None:
        return None
    text = f"{format_bytes(measured.peak_reserved_bytes)} reserved by PyTorch's own allocator"
    if measured.replay_agrees is not None:
        text += ", which the replay " + ("equals" if measured.replay_agrees else "does not match exactly")
    return text


def _print_ranks(estimate: Estimate, console: Console) -> None:
    """Print what each process of the job held of each GPU, the traced one first; of many, the fullest."""
    ranks = estimate.measured.ranks if estimate.measured else ()
    if len(ranks) < 2:
        return
    table = _table()
    widths = {"Ranks": _PLACE_WIDTH, "GPU": 3, "allocated": _SIZE_WIDTH, "reserved": _SIZE_WIDTH}
    for title, width in {**widths, "on the card": _SIZE_WIDTH}.items():
        table.add_column(
            Text(title, "bold not dim"), justify="left" if title == "Ranks" else "right", width=width
        )
    fullest = sorted(ranks[1:], key=lambda peak: (-peak.card_peak_bytes, -peak.peak_reserved_bytes))
    for peak in (ranks[0], *fullest[: _MOST_RANKS - 1]):
        table.add_row(
            f"  rank {peak.rank}"
            + (", traced" if peak is ranks[0] else "")
            + "".join(f"\n    {line}" for line in wrap(peak.place, _PLACE_WIDTH - 4)),
            str(peak.device),
            format_bytes(peak.peak_allocated_bytes),
            format_bytes(peak.peak_reserved_bytes),
            format_bytes(peak.card_peak_bytes) if peak.card_peak_bytes >= 0 else "-",
        )
    console.print(table)
    if len(ranks) > _MOST_RANKS:
        console.print(f"  {len(ranks) - _MOST_RANKS} more ranks held no more than these")
    console.print()


def _print_curve(estimate: Estimate, console: Console) -> None:
    curve = estimate.curve
    if curve is None or not curve.time_ns:
        return
    most = max(curve.reserved_bytes)
    for label, values in (("Allocated", curve.allocated_bytes), ("Reserved", curve.reserved_bytes)):
        line = sparkline(values, most, _width(console) - _LABEL_WIDTH, plain=not _has_unicode(console))
        console.print(Text.assemble((f"{label:<{_LABEL_WIDTH}}", "bold"), (line, "cyan")))


def _print_card(estimate: Estimate, console: Console) -> None:
    """Print the device peak as parts, each bar beginning where the last one ended."""
    parts = [part for part in estimate.card if part.bytes]
    if not parts:
        return
    bars = _width(console) >= _MIN_WIDTH_FOR_BARS
    table = _table()
    table.add_column(Text("The number on the card", "bold not dim"), width=_CARD_WIDTH)
    table.add_column(justify="right", width=_SIZE_WIDTH)
    if bars:
        table.add_column(width=2 + _WATERFALL_WIDTH)
    block, so_far = _bar_character(console), 0
    # More than the peak only in an estimate that somebody has edited.
    scale = _WATERFALL_WIDTH / max(estimate.device_peak_bytes, sum(part.bytes for part in parts))
    for part in parts:
        begin, end = round(so_far * scale), round((so_far + part.bytes) * scale)
        so_far += part.bytes
        bar = Text(" " * (2 + begin) + block * (end - begin), "cyan")
        table.add_row(f"  {spaced(part.name)}", format_bytes(part.bytes), *([bar] if bars else []))
    total = Text("  " + block * _WATERFALL_WIDTH, "bold cyan")
    table.add_row("  device peak", format_bytes(estimate.device_peak_bytes), *([total] if bars else []))
    console.print(table)
    console.print()


def _print_largest_blocks(estimate: Estimate, console: Console) -> None:
    if not estimate.largest_blocks:
        return
    console.print(Text("Largest blocks", "bold"))
    for block in estimate.largest_blocks[:_TOP]:
        label = Text(f"  {format_bytes(block.bytes):>{_SIZE_WIDTH - 2}}  ")
        _print_hanging(label, Text(block.words), console)
    console.print()


def _passes(
    estimate: Estimate, key: Literal["module", "source_line"], missing: str
) -> Mapping[str, tuple[int, int]]:
    """Return the bytes at the peak that the forward and backward of each module or source line allocated."""
    found: dict[str, tuple[int, int]] = {}
    for path in estimate.breakdown.paths:
        name = getattr(path, key) or missing
        forward, backward = found.get(name, (0, 0))
        size = path.bytes + path.slack_bytes
        found[name] = (
            forward + (size if path.phase == "forward" else 0),
            backward + (size if path.phase == "backward" else 0),
        )
    return found


def _print_shares(
    title: str,
    shares: Mapping[str, int],
    console: Console,
    *,
    top: int,
    passes: Mapping[str, tuple[int, int]] | None = None,
) -> None:
    rows = sorted(((name, size) for name, size in shares.items() if size), key=lambda row: (-row[1], row[0]))
    if not rows:
        return
    total = sum(size for _, size in rows)
    width = _width(console)
    with_passes = bool(passes) and width >= _MIN_WIDTH_FOR_PASSES
    with_bars = width >= (_MIN_WIDTH_FOR_PASSES_AND_BARS if with_passes else _MIN_WIDTH_FOR_BARS)
    table = _table()
    name_width = width - _SIZE_WIDTH - _SHARE_WIDTH
    name_width -= (2 * _SIZE_WIDTH if with_passes else 0) + (_BAR_WIDTH + 2 if with_bars else 0)
    name_width = max(name_width, _LABEL_WIDTH)
    table.add_column(Text(title, "bold not dim"), width=name_width)
    table.add_column(justify="right", width=_SIZE_WIDTH)
    table.add_column(justify="right", width=_SHARE_WIDTH)
    if with_passes:
        table.add_column("forward", justify="right", width=_SIZE_WIDTH)
        table.add_column("backward", justify="right", width=_SIZE_WIDTH)
    if with_bars:
        table.add_column(width=_BAR_WIDTH + 2)
    for name, size in rows[:top]:
        share = size / total
        cells = [f"  {_shorten(name, name_width - 2, console)}", format_bytes(size), f"{share:.1%}"]
        if with_passes and passes is not None:
            cells += [format_bytes(part) if part else "" for part in passes.get(name, (0, 0))]
        row = [Text(cell) for cell in cells]  # text in square brackets is not markup
        if with_bars:
            row.append(Text("  " + _bar_character(console) * round(share * _BAR_WIDTH), "cyan"))
        table.add_row(*row)
    console.print(table)
    if len(rows) > top:
        rest = format_bytes(sum(size for _, size in rows[top:]))
        console.print(Text(f"  and {len(rows) - top} more with {rest} together", "dim"))
    console.print()


def _table() -> Table:
    """Return a table without lines, whose columns hold their own space."""
    return Table(box=None, padding=0, pad_edge=False, header_style="dim")


def _margin(verdict: Verdict) -> str:
    share = abs(verdict.margin_bytes) / verdict.capacity_bytes
    size = format_bytes(abs(verdict.margin_bytes))
    return f"{size} {'free' if verdict.margin_bytes >= 0 else 'missing'}, {share:.0%} of the GPU"


def _corrections(estimate: Estimate) -> list[str]:
    return [f"{policy.name}: {_correction(policy)}" for policy in estimate.policies if policy.blocks_changed]


def _correction(policy: PolicyRecord) -> str:
    return f"{format_change(policy.bytes_changed)} in {_count(policy.blocks_changed, 'block')}"


def _print_policies(estimate: Estimate, console: Console) -> None:
    """Print what was recorded at the instant of the peak, the effect of each policy, and the result."""
    console.print(Text("Bytes at the peak, by policy", "bold"))
    policies, final = estimate.policies, estimate.peak.requested_bytes
    known = final >= 0 and all(policy.bytes_at_peak is not None for policy in policies)
    if known:
        recorded = final - sum(policy.bytes_at_peak or 0 for policy in policies)
        _print_policy("as recorded", format_bytes(recorded), "", console)
    for policy in policies:
        if policy.blocks_changed:
            at_peak = "not known" if policy.bytes_at_peak is None else format_change(policy.bytes_at_peak)
            _print_policy(_policy_name(policy), at_peak, f"{_correction(policy)} of the run", console)
    if known:
        _print_policy("as estimated", format_bytes(final), "requested by tensors", console)
    console.print()
    off = [policy.name for policy in policies if not policy.applied]
    idle = [policy.name for policy in policies if policy.applied and not policy.blocks_changed]
    _print_list("Switched off", off, console)
    _print_list("Nothing to correct", [", ".join(idle)] if idle else [], console)


def _print_policy(name: str, size: str, rest: str, console: Console) -> None:
    width = max(_width(console) // 2 - _SIZE_WIDTH, _LABEL_WIDTH)
    label = f"  {_shorten(name, width, console):<{width}}{size:>{_SIZE_WIDTH}}"
    _print_hanging(Text(f"{label}  " if rest else label), Text(rest, "dim"), console)


def _policy_name(policy: PolicyRecord) -> str:
    return policy.name if policy.package is None else f"{policy.name} ({policy.package})"


def _problems(estimate: Estimate) -> list[str]:
    def place(first_byte_offset: int) -> str:
        return f", first at byte {first_byte_offset:,}" if first_byte_offset >= 0 else ""

    return [
        f"{spaced(problem.kind)} ({spaced(problem.severity)}), {problem.count:,} x"
        f"{place(problem.first_byte_offset)}: {problem.message}"
        for problem in estimate.diagnostics
    ]


def _print_field(label: str, value: str, console: Console) -> None:
    style = "dim" if label.startswith(" ") else "bold"
    _print_hanging(Text(f"{label:<{_LABEL_WIDTH}}", style), Text(value), console)


def _print_list(title: str, items: list[str], console: Console) -> None:
    if not items:
        return
    console.print(Text(title, "bold"))
    for item in items:
        _print_hanging(Text("  - "), Text(item), console)
    console.print()


def _print_hanging(label: Text, value: Text, console: Console) -> None:
    """Print a label and a value, whose further lines start below its first."""
    width = max(_width(console) - len(label), 1)
    for number, line in enumerate(value.wrap(console, width)):
        line.rstrip()
        console.print(Text.assemble(label if number == 0 else " " * len(label), line))


def _shorten(name: str, width: int, console: Console) -> str:
    """Cut out the middle, since both ends tell a module path or file name apart."""
    if len(name) <= width:
        return name
    dots = "…" if _has_unicode(console) else "..."
    head = (width - len(dots)) // 2
    return name[:head] + dots + name[head + len(dots) - width :]


def _width(console: Console) -> int:
    return min(console.width, _MAX_WIDTH)


def _bar_character(console: Console) -> str:
    return "█" if _has_unicode(console) else "#"


def _has_unicode(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

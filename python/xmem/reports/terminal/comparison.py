"""A comparison of simulator and recording in a terminal: the answer first, then each device."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from xmem.snapshot.comparison import Comparison, DeviceComparison, Rules
from xmem.snapshot.snapshot import Event, RecordedAction
from xmem.text.units import format_bytes

_TIES = {
    "address": "lowest address first",
    "object_age": "oldest block object first",
    "segment_age": "oldest segment first",
}


def render(comparison: Comparison, console: Console) -> None:
    """Write where simulator and recording diverge to a console, which decides whether to show colours."""
    events = sum(device.events for device in comparison.devices)
    if comparison.agrees:
        console.print(
            Text.assemble(("Agree", "bold green"), f": all {events:,} recorded events, to the byte")
        )
    else:
        console.print(Text.assemble(("Differ", "bold red"), f": {events:,} recorded events, see below"))
    console.print(Text(f"Rules     {_rules(comparison)}"), soft_wrap=True)
    settings = "not named" if comparison.alloc_conf is None else comparison.alloc_conf or "none"
    console.print(Text(f"Settings  {settings}"), soft_wrap=True)
    for device in comparison.devices:
        console.print()
        _print_device(device, console)


def _rules(comparison: Comparison) -> str:
    rules = comparison.rules
    text = f"of torch {rules.torch_version}: among free blocks of one size, {_TIES[rules.tie_break]}"
    if rules.given:
        return text
    which = "the first that agree" if comparison.agrees else "none agrees; these agree longest"
    others = ", ".join(_label(other) for other in comparison.rejected)
    return f"{text}; {which}" + (f" (also tried: {others})" if others else "")


def _label(rules: Rules) -> str:
    return f"torch {rules.torch_version}, {rules.tie_break.replace('_', ' ')}"


def _print_device(device: DeviceComparison, console: Console) -> None:
    console.print(Text(f"Device {device.device}", "bold"))
    agree = "all agree" if device.difference is None else f"{device.agreed_events:,} agree"
    console.print(Text(f"  events         {device.events:,}, {agree}"))
    start = device.start_reserved_bytes
    warm = f", {format_bytes(start)} before the first event" if start else ", from an empty start"
    console.print(Text(f"  peak reserved  {format_bytes(device.peak_reserved_bytes)}{warm}"))
    if device.difference is None:
        return
    at = device.difference.event
    console.print(Text(f"  differ from event {at:,}"))
    console.print(Text(f"    recorded     {_event(device.difference.recorded, 'the end of the trace')}"))
    console.print(Text(f"    simulated    {_event(device.difference.simulated, 'no matching event')}"))
    console.print(Text("  recorded events around it"))
    for index, event in device.around.items():
        mark = ">" if index == at else " "
        console.print(Text(f"  {mark} {index:>9,}  {_event(event, '')}", "bold" if index == at else ""))


def _event(event: Event | None, otherwise: str) -> str:
    if event is None:
        return otherwise
    name = event.action.name.lower()
    if event.action is RecordedAction.OTHER:
        return "an event that does not concern memory"
    if event.action is RecordedAction.OOM:
        return f"{name:<14} {event.size_bytes:,} bytes, {event.address:,} free, stream {event.stream}"
    return f"{name:<14} {event.size_bytes:,} bytes at {event.address:#x}, stream {event.stream}"

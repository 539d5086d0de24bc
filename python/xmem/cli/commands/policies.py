"""``xmem-fast policies``: the corrections on the way from a trace to a GPU, and the evidence for each."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xmem.cli import options, output
from xmem.cli.text_table import format_table
from xmem.records import dataclass

if TYPE_CHECKING:
    from xmem.orchestration.policy import Policy

Name = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="Explain what this policy does and how it is known."),
]


@dataclass(frozen=True)
class _Listed:
    """A policy as it is displayed."""

    name: str
    traces: str
    package: str
    description: str
    documentation: str


def policies(name: Name = None, as_json: options.Json = False) -> None:
    """List the policies that --without-policy knows, in their order, or explain one."""
    from xmem.orchestration.plan import require_policies

    if name is not None:
        require_policies([name])
    listed = [policy for policy in _listed() if name in (None, policy.name)]
    if as_json:
        output.print_json({"schema_version": 1, "policies": [asdict(policy) for policy in listed]})
    elif name is not None:
        for policy in listed:
            typer.echo(f"{policy.name} ({policy.package}, {policy.traces} traces): {policy.description}")
            typer.echo(f"\n{policy.documentation}")
    else:
        shown = ("name", "traces", "package", "description")
        typer.echo(format_table([{key: getattr(policy, key) for key in shown} for policy in listed]))


def _listed() -> Iterator[_Listed]:
    from xmem.orchestration.plan import plan_for

    plans = {"CPU": plan_for(gpu_trace=False), "GPU": plan_for(gpu_trace=True)}
    by_name: dict[str, Policy[Any]] = {policy.name: policy for plan in plans.values() for policy in plan}
    for name, policy in by_name.items():
        kinds = [kind for kind, plan in plans.items() if any(name == other.name for other in plan)]
        yield _Listed(
            name=name,
            traces=" and ".join(kinds),
            package=getattr(policy, "package", "xmem"),
            description=policy.description,
            documentation=inspect.getdoc(type(getattr(policy, "policy", policy))) or "",
        )

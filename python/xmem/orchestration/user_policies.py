"""Policies of other packages, found through the entry point group ``xmem.policies``."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from xmem.errors import ConfigError, XmemError
from xmem.files.entry_points import any_declares
from xmem.orchestration.policy import Policy
from xmem.run.recorded import Context
from xmem.run.workload import COLUMNS, Workload

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "xmem.policies"
"""The group of entry points: the name is the policy's, the value its class or a ready policy."""


class UserPolicy:
    """A policy of another package, whose faults are reported as that package's.

    Attributes:
        name: Name of the entry point and of the policy.
        description: The policy's.
        package: Name and version of the distribution.
        gpu_traces: Whether it also corrects traces that were recorded on a GPU, real or phantom.
        policy: The object behind the entry point.
    """

    def __init__(self, name: str, package: str, policy: Policy[Context]) -> None:
        self.name = name
        self.description = policy.description
        self.package = package
        self.gpu_traces = bool(getattr(policy, "gpu_traces", False))
        self.policy = policy

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Apply it, and check what it made.

        Raises:
            ConfigError: It raises, or does not return a workload.
        """
        where = f"policy {self.name} of {self.package}"
        otherwise = f"fix it, or pass --without-policy {self.name}"
        try:
            made = self.policy(workload, context)
        except XmemError:
            raise
        except Exception as error:
            raise ConfigError(f"{where} failed ({type(error).__name__}: {error})", otherwise) from error
        if problem := _problem_of(made):
            raise ConfigError(f"{where} returned {problem}", otherwise)
        return made


def user_policies(*, gpu_trace: bool, unloaded: Collection[str]) -> tuple[UserPolicy, ...]:
    """Return the policies of installed packages for one kind of trace, by name.

    Args:
        gpu_trace: Whether the trace was recorded on a GPU, real or phantom.
        unloaded: Names that are not even imported.

    Raises:
        ConfigError: One of them cannot be loaded; names package and entry point.
    """
    loaded = [_loaded(point) for point in _entry_points() if point.name not in unloaded]
    return tuple(policy for policy in loaded if policy.gpu_traces or not gpu_trace)


def user_policy_names(built_in: Collection[str]) -> list[str]:
    """Return the names of the policies of installed packages, without loading any.

    Raises:
        ConfigError: Two policies have one name.
    """
    owners = dict.fromkeys(built_in, "xmem")
    for point in _entry_points():
        if point.name in owners:
            raise ConfigError(
                f"entry point {point.name} of {_package(point)} has a name in group {GROUP} "
                f"that {owners[point.name]} already has",
                "uninstall one of the two",
            )
        owners[point.name] = _package(point)
    return [point.name for point in _entry_points()]


@cache
def _entry_points() -> tuple[EntryPoint, ...]:
    if not any_declares(GROUP):
        return ()
    from importlib.metadata import entry_points

    return tuple(sorted(entry_points(group=GROUP), key=lambda point: point.name))


@cache
def _loaded(point: EntryPoint) -> UserPolicy:
    where = f"entry point {point.name} = {point.value} of {_package(point)}"
    otherwise = f"write it as docs/policies.md describes, or pass --without-policy {point.name}"
    try:
        found = point.load()
        policy = found() if isinstance(found, type) else found
    except Exception as error:
        raise ConfigError(f"{where} cannot be loaded ({type(error).__name__}: {error})", otherwise) from error
    for attribute in ("name", "description"):
        if not isinstance(getattr(policy, attribute, None), str):
            raise ConfigError(f"{where} has no string attribute {attribute!r}", otherwise)
    if not callable(policy):
        raise ConfigError(f"{where} cannot be called", otherwise)
    if policy.name != point.name:
        raise ConfigError(
            f"{where} calls itself {policy.name}",
            f"give both the same name, or pass --without-policy {point.name}",
        )
    return UserPolicy(point.name, _package(point), policy)


def _package(point: EntryPoint) -> str:
    return "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def _problem_of(made: object) -> str | None:
    """Return what is wrong with the result of a policy, None if nothing is."""
    if not isinstance(made, Workload):
        return f"{type(made).__name__} instead of a Workload"
    lengths = {name: len(getattr(made, name)) for name in COLUMNS}
    if len(set(lengths.values())) > 1:
        return f"columns of different lengths: {lengths}"
    if (np.diff(made.alloc_ns) < 0).any():
        return "blocks that are not in order of allocation"
    if (made.size_bytes < 0).any() or (made.free_ns < made.alloc_ns).any():
        return "blocks of negative size, or freed before they are allocated"
    return None

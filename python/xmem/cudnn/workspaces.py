"""Workspaces of convolutions on one GPU under one release of PyTorch, by the best source there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from xmem.cudnn.libraries import FIRST_EXACT, CudnnLibrary, bundled_with, find_libraries
from xmem.cudnn.planner import Planner, PlannerError, Settings, sizes_tried
from xmem.cudnn.problems import Problem
from xmem.cudnn.shares import typical_sizes
from xmem.device_description import Device
from xmem.devices import UNKNOWN_IS_LIKE, find_device


@dataclass(frozen=True)
class Answer:
    """What was found out about some convolutions.

    Attributes:
        tried: Workspaces in bytes of each, in the order in which PyTorch tries its plans; empty where cuDNN
            has none. Of a typical one: itself, the most and the least.
        source: Who says so, in words.
        version: Of the library that was asked, empty where none was.
        exact: Whether that is the version that the job's PyTorch brings.
    """

    tried: Mapping[Problem, tuple[int, ...]]
    source: str
    version: str
    exact: bool


@dataclass(frozen=True)
class Workspaces:
    """Who says what workspaces cuDNN takes; equal ones say the same.

    Attributes:
        device: The GPU.
        torch_version: (major, minor) of the PyTorch that runs there.
        libraries: Asked in this order, until one plans.
    """

    device: Device
    torch_version: tuple[int, int]
    libraries: tuple[CudnnLibrary, ...]

    def ask(self, problems: tuple[Problem, ...], settings: Settings) -> Answer:
        """The workspaces of these convolutions."""
        return _ask(self, problems, settings)


def workspaces_for(device: Device | None, torch_version: tuple[int, int]) -> Workspaces | None:
    """Who knows the workspaces on a GPU; None for one without CUDA.

    Raises:
        ConfigError: The library that was named is none.
    """
    device = device or find_device(UNKNOWN_IS_LIKE)
    if not device.attributes:
        return None
    return Workspaces(device, torch_version, find_libraries(torch_version))


@lru_cache(maxsize=64)
def _ask(workspaces: Workspaces, problems: tuple[Problem, ...], settings: Settings) -> Answer:
    bundled = ".".join(map(str, bundled_with(workspaces.torch_version).version))
    if not workspaces.libraries:
        return _typical(
            workspaces, problems, settings, f"no cuDNN is installed to ask for the job's {bundled}"
        )
    failures = []
    for library in workspaces.libraries:
        planner = Planner.for_device(library, workspaces.device)
        try:
            plans, version = planner.plans(problems), planner.version()
            break
        except PlannerError as error:
            failures.append(str(error))
    else:
        return _typical(workspaces, problems, settings, "; ".join(failures))
    capability = workspaces.device.compute_capability or (8, 0)
    tried = {
        problem: sizes_tried(plans[problem], problem.dtype, settings)
        if problem in plans
        else typical_sizes(problem, capability, settings)
        for problem in problems
    }
    own = version == bundled and len(plans) == len(problems)
    exact = own and tuple(map(int, version.split("."))) >= FIRST_EXACT
    whose = "the job's own" if own else f"for the job's {bundled}"
    source = "; ".join([f"cuDNN {version} planned the convolutions, {whose}", *failures])
    return Answer(tried, source, version, exact)


def _typical(
    workspaces: Workspaces, problems: tuple[Problem, ...], settings: Settings, reason: str
) -> Answer:
    capability = workspaces.device.compute_capability or (8, 0)
    tried = {problem: typical_sizes(problem, capability, settings) for problem in problems}
    return Answer(
        tried, f"{reason}: workspaces of convolutions are typical ones of the architecture", "", False
    )

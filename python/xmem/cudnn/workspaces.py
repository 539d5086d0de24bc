"""Workspaces of convolutions on one GPU under one release of PyTorch, from the best available source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from xmem.cudnn.libraries import FIRST_EXACT, CudnnLibrary, bundled_with, find_libraries
from xmem.cudnn.planner_settings import PlannerSettings
from xmem.cudnn.problems import ConvolutionProblem
from xmem.cudnn.shares import typical_sizes
from xmem.devices.description import Device
from xmem.devices.gpus import UNKNOWN_IS_LIKE, find_device
from xmem.records import dataclass


@dataclass(frozen=True)
class Answer:
    """The workspaces that were found for some convolutions.

    Attributes:
        tried: Workspaces of each in bytes, in the order in which PyTorch tries its plans; empty where cuDNN
            has none. For a typical workspace: itself, the most and the least.
        source: The source, in words.
        version: Version of the library that was asked, empty if none was.
        exact: Whether that is the version that the job's PyTorch ships.
    """

    tried: Mapping[ConvolutionProblem, tuple[int, ...]]
    source: str
    version: str
    exact: bool


@dataclass(frozen=True)
class Workspaces:
    """A source of cuDNN's workspaces; equal ones give the same answers.

    Attributes:
        device: The GPU.
        torch_version: (major, minor) of the PyTorch that runs there.
        libraries: Libraries that are asked in this order, until one plans.
    """

    device: Device
    torch_version: tuple[int, int]
    libraries: tuple[CudnnLibrary, ...]

    def ask(self, problems: tuple[ConvolutionProblem, ...], settings: PlannerSettings) -> Answer:
        """Return the workspaces of these convolutions."""
        return _ask(self, problems, settings)


def workspaces_for(device: Device | None, torch_version: tuple[int, int]) -> Workspaces | None:
    """Return the source of workspaces on a GPU; None for one without CUDA.

    Raises:
        ConfigError: The library that was named is not one.
    """
    device = device or find_device(UNKNOWN_IS_LIKE)
    if not device.attributes:
        return None
    return Workspaces(device, torch_version, find_libraries(torch_version))


@lru_cache(maxsize=64)
def _ask(
    workspaces: Workspaces, problems: tuple[ConvolutionProblem, ...], settings: PlannerSettings
) -> Answer:
    bundled = ".".join(map(str, bundled_with(workspaces.torch_version).version))
    if not workspaces.libraries:
        return _typical(
            workspaces, problems, settings, f"no cuDNN is installed to replace the job's {bundled}"
        )
    # It brings sqlite3, which most estimates do not need.
    from xmem.cudnn.planner import Planner, PlannerError, sizes_tried

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
    whose = "the job's own" if own else f"in place of the job's {bundled}"
    source = "; ".join([f"cuDNN {version} planned the convolutions, {whose}", *failures])
    return Answer(tried, source, version, exact)


def _typical(
    workspaces: Workspaces, problems: tuple[ConvolutionProblem, ...], settings: PlannerSettings, reason: str
) -> Answer:
    capability = workspaces.device.compute_capability or (8, 0)
    tried = {problem: typical_sizes(problem, capability, settings) for problem in problems}
    return Answer(
        tried, f"{reason}: convolution workspaces are typical values for the architecture", "", False
    )

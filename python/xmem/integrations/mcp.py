"""A server of the Model Context Protocol: estimates, what-ifs, largest batches and advice for agents.

It talks over standard input and output alone, as the process of who started it. Its tools run the training
commands that they are given, which the agent's user could run anyway. Nothing else is run, nothing is sent.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from xmem.advice import advise as search_advice
from xmem.batch_size.find import find_batch_size
from xmem.batch_size.samples import capture_trace
from xmem.errors import ConfigError, XmemError
from xmem.estimation.observation import observe
from xmem.estimation.pipeline import answer
from xmem.estimation.question import Question, ask

if TYPE_CHECKING:
    from mcp.server import MCPServer

_MOST_LINES = 10

Tool = TypeVar("Tool", bound=Callable[..., Any])

_INSTRUCTIONS = (
    "How much GPU memory a PyTorch training command needs, without a GPU. `estimate` runs the command that "
    "it is given, with the rights of this process, for a few iterations on a phantom GPU or on the CPU, and "
    "returns a trace. The other tools answer questions about that trace in seconds and run nothing, except "
    "`max_batch`, which runs its command twice."
)


@dataclass
class MemoryNeed:
    """What a job needs of a GPU, in bytes.

    Attributes:
        trace: The recorded run, for the other tools.
        gpu: The GPU, None if none was named.
        fits: Whether the job fits, None if no GPU was named.
        doubt: Why a job that fits by the estimate may not; None for others.
        device_peak_bytes: Memory that the card must have, with the CUDA context.
        peak_reserved_bytes: Most memory that PyTorch's allocator holds.
        peak_allocated_bytes: Most memory in tensors.
        capacity_bytes: Memory of the GPU, None if none was named.
        bytes_by_category: Who holds the bytes at the peak: parameters, gradients, activations.
        bytes_by_line: The source lines that hold most at the peak.
        assumptions: What the answer rests on.
    """

    trace: str
    gpu: str | None
    fits: bool | None
    doubt: str | None
    device_peak_bytes: int
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    capacity_bytes: int | None
    bytes_by_category: dict[str, int]
    bytes_by_line: dict[str, int]
    assumptions: list[str]


@dataclass
class LargestBatch:
    """The batch that fits, and the gradient accumulation that keeps the effective batch; sizes in bytes.

    The upper bound holds with 0.9 confidence; where it is above the capacity, or None, the batch may not fit.
    """

    batch_size: int
    accumulation: int
    largest_batch: int
    device_peak_bytes: int
    upper_bound_bytes: int | None
    capacity_bytes: int


@dataclass
class Remedy:
    """A change of the script or of the allocator's settings, and what it saved when replayed, in bytes.

    Attributes:
        what_if: For ``what_if``; None for a setting of the allocator.
        alloc_conf: For ``PYTORCH_CUDA_ALLOC_CONF``; None for a change of the script.
        saved_bytes: Saving at the peak of reserved memory.
        fits: Whether the job then fits; None if no GPU was named.
        where: ``FILE:LINE`` or module to change, None if there is none.
        change: The change to make there.
        cost: Its cost.
    """

    what_if: str | None
    alloc_conf: str | None
    saved_bytes: int
    fits: bool | None
    where: str | None
    change: str
    cost: str


def server(folder: Path) -> MCPServer:
    """Return the server; traces of what it runs go to the folder.

    Raises:
        ConfigError: The package ``mcp`` is not installed.
    """
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise ConfigError("the package mcp is not installed", "pip install 'xmem-fast[mcp]'") from None
    made = MCPServer("xmem-fast", instructions=_INSTRUCTIONS)

    def tool(function: Tool) -> Tool:
        """Register a tool, whose errors reach the agent with what to do."""

        @functools.wraps(function)
        def answered(*arguments: Any, **named: Any) -> Any:
            try:
                return function(*arguments, **named)
            except XmemError as error:
                raise ToolError(str(error)) from error

        made.tool()(answered)
        return function

    @tool
    def estimate(
        command: list[str], gpu: str | None = None, capacity: str | None = None, iterations: int = 3
    ) -> MemoryNeed:
        """Run a training command without a GPU for a few iterations, and tell how much GPU memory it needs.

        It runs as a process of the user. gpu: a name such as rtx-4090; capacity: a size such as 11.5GiB.
        """
        question = ask(gpu=gpu, capacity=capacity)
        number = len(list(folder.iterdir()))
        trace = folder / f"run{number}.json"
        capture_trace(command, trace, os.environ, question.described_device, iterations=iterations)
        return _need(trace, question)

    @tool
    def what_if(
        trace: str, changes: list[str], gpu: str | None = None, capacity: str | None = None
    ) -> MemoryNeed:
        """Tell what a recorded run would need with changes of its script, without running it.

        changes, applied in order: optimizer=adamw:fused, accumulate=4, precision=bf16-autocast,
        checkpoint=MODULE.PATTERN.*, chunk_loss=8, set_to_none=false, release=FILE:LINE.
        """
        return _need(Path(trace), ask(gpu=gpu, capacity=capacity), changes)

    @tool
    def max_batch(
        command: list[str],
        gpu: str | None = None,
        capacity: str | None = None,
        effective_batch: int | None = None,
    ) -> LargestBatch:
        """Find the largest batch that fits, from two runs of a command at small sizes, without a GPU.

        The command holds {batch}, such as: python train.py --batch-size {batch}; and {accumulation} if it
        has an option for that. With effective_batch, the accumulation keeps it.
        """
        found = find_batch_size(command, gpu=gpu, capacity=capacity, effective_batch=effective_batch)
        return LargestBatch(
            batch_size=found.size,
            accumulation=found.accumulation,
            largest_batch=found.largest,
            device_peak_bytes=found.device_peak_bytes,
            upper_bound_bytes=found.high_bytes,
            capacity_bytes=found.capacity_bytes,
        )

    @tool
    def advise(trace: str, gpu: str | None = None, capacity: str | None = None) -> list[Remedy]:
        """Suggest changes that make a recorded run need less memory, each one replayed, best first."""
        advised = search_advice(answer(observe(trace), ask(gpu=gpu, capacity=capacity)))
        return [
            Remedy(
                each.what_if, each.alloc_conf, each.saved_bytes, each.fits, each.where, each.change, each.cost
            )
            for each in advised.advice
        ]

    return made


def serve() -> None:
    """Serve until standard input ends.

    Raises:
        ConfigError: The package ``mcp`` is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="xmem-mcp-") as folder:
        # While it runs, the package keeps file descriptors 0 and 1 to itself: commands read nothing there.
        server(Path(folder)).run("stdio")


def _need(trace: Path, question: Question, changes: list[str] | None = None) -> MemoryNeed:
    estimate = answer(observe(trace).what_if(*changes or ()), question).estimate
    lines = sorted(estimate.breakdown.source_line.items(), key=lambda held: -held[1])
    verdict = estimate.verdict
    return MemoryNeed(
        trace=str(trace),
        gpu=None if verdict is None else verdict.gpu,
        fits=estimate.fits,
        doubt=estimate.doubt,
        device_peak_bytes=estimate.device_peak_bytes,
        peak_reserved_bytes=estimate.peak_reserved_bytes,
        peak_allocated_bytes=estimate.peak_allocated_bytes,
        capacity_bytes=None if verdict is None else verdict.capacity_bytes,
        bytes_by_category=dict(estimate.breakdown.category),
        bytes_by_line=dict(lines[:_MOST_LINES]),
        assumptions=list(estimate.assumptions),
    )

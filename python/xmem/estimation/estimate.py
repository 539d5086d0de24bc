"""The estimate and the evidence for it; these frozen values are also the JSON contract.

The order of the fields is the order of the JSON keys. All sizes are bytes, times nanoseconds on the
trace's clock; a number that does not apply is -1, a text that does not apply is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from xmem.errors import TraceError
from xmem.files.decoding import decode, encode
from xmem.records import dataclass
from xmem.text.units import format_bytes

SCHEMA_VERSION = 1
_SINCE_ADDED: Mapping[str, Any] = {"interval": None, "what_if": ()}  # fields that early estimates lack

Severity = Literal["info", "data_loss", "error"]


@dataclass(frozen=True)
class Verdict:
    """Whether the job fits on the GPU.

    Attributes:
        gpu: Name for people, such as ``RTX 3060 12 GB``.
        capacity_bytes: All memory of the GPU, including the context's share.
        fits: Whether the replay on this GPU ends without running out of memory.
        margin_bytes: Capacity minus the device peak; negative if memory is missing.
    """

    gpu: str
    capacity_bytes: int
    fits: bool
    margin_bytes: int


@dataclass(frozen=True)
class Interval:
    """Interval of the device peak; each bound holds by itself with the confidence.

    Attributes:
        confidence: Confidence of each bound, at least 0.5 and less than 1.
        low_bytes: Lower bound of the device peak.
        high_bytes: Upper bound of the device peak: the number to request from a scheduler.
        basis: Basis of the bounds, for people.
    """

    confidence: float
    low_bytes: int
    high_bytes: int
    basis: str


@dataclass(frozen=True)
class AllocatedPeak:
    """The instant of the peak of allocated memory, and what the job was doing.

    Attributes:
        request_index: The request of the replayed sequence that raised it.
        requested_bytes: Bytes requested for the blocks alive at that instant, before rounding; -1 in
            estimates of earlier versions.
    """

    iteration: int
    phase: str
    operator: str | None
    module: str | None
    source_line: str | None
    time_ns: int
    request_index: int
    requested_bytes: int = -1


SLACK = "allocator_slack"
"""Name used as the category of the bytes of blocks beyond the rounding to 512 bytes."""

SMALLER_PATHS = "(smaller)"
"""Name used as the phase and module of paths that a breakdown has merged."""


@dataclass(frozen=True)
class PathBytes:
    """Bytes at the peak that have the same holder in every respect.

    Attributes:
        category: Category of the blocks' contents.
        phase: Phase of the training step in which they were allocated: ``forward``, ``backward``, ...
        persistent: Whether they outlive the iteration that made them.
        module: Module that owns the tensors, else the one that ran when they were allocated.
        operator: The outermost operator that allocated them.
        source_line: The user's line, ``PATH:LINE``; for backward, that of the forward.
        bytes: Requests rounded to 512 bytes.
        slack_bytes: Bytes of their blocks beyond these.
        blocks: Number of blocks.
    """

    category: str
    phase: str
    persistent: bool
    module: str | None
    operator: str | None
    source_line: str | None
    bytes: int
    slack_bytes: int
    blocks: int


@dataclass(frozen=True)
class Breakdown:
    """Holders of the bytes allocated at the peak, four times over: each mapping sums to all of them.

    Attributes:
        category: Bytes by category, including ``allocator_slack``, the bytes of blocks beyond the rounding to
            512 bytes.
        category_peaks: Most bytes that each category held at any one time, which need not be at the peak.
        paths: The same bytes by all of these at once, most first; ``bytes`` and ``slack_bytes`` of all sum to
            them. Beyond 1,000 paths the smallest are merged by category (``SMALLER_PATHS``), persistent ones
            separately. Empty in estimates of earlier versions.
    """

    category: Mapping[str, int]
    category_peaks: Mapping[str, int]
    module: Mapping[str, int]
    operator: Mapping[str, int]
    source_line: Mapping[str, int]
    paths: tuple[PathBytes, ...] = ()

    @property
    def persistent_bytes(self) -> int | None:
        """Bytes that outlive their iteration, including slack; None in estimates of earlier versions."""
        if not self.paths:
            return None
        return sum(path.bytes + path.slack_bytes for path in self.paths if path.persistent)


@dataclass(frozen=True)
class Curve:
    """Memory over the run at a few instants, in order: the highest allocation of each stretch.

    Attributes:
        time_ns: Times on the trace's clock.
        allocated_bytes: Bytes in blocks in use after a request.
        reserved_bytes: Bytes reserved from the device after the same request.
    """

    time_ns: tuple[int, ...]
    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...]


@dataclass(frozen=True)
class LargeBlock:
    """One of the largest blocks at the peak.

    Attributes:
        bytes: Size of the block, including rounding and slack.
        free_ns: Time of the free, -1 for a block that is never freed.
        words: Purpose, origin and lifetime of the block, such as ``saved for backward by GPT.head from
            model.py:41 until its backward``.
    """

    bytes: int
    category: str
    module: str | None
    operator: str | None
    source_line: str | None
    alloc_ns: int
    free_ns: int
    words: str


@dataclass(frozen=True)
class CardPart:
    """A part of the device peak: of the number that ``nvidia-smi`` shows of the process at its highest.

    Attributes:
        name: ``context``, ``tensors``, ``cublas_workspaces``, ``cudnn_workspaces``, ``other_workspaces``,
            ``rounding``, ``fragmentation``, ``cached``, and of runs on phantom GPUs where there is any:
            ``nccl``, ``libraries``, ``other_processes``, ``other``, ``managed``, ``not_replayed``,
            ``other_card``; in this order.
        words: Description for people.
    """

    name: str
    bytes: int
    words: str


@dataclass(frozen=True)
class TargetRecord:
    """Target of the estimate.

    Attributes:
        gpu: Slug of the GPU, None when none was named.
        capacity_bytes: All memory of the GPU, -1 when no GPU and no capacity was given.
        compute_capability: Compute capability such as ``8.6``.
        alloc_conf: ``PYTORCH_CUDA_ALLOC_CONF`` as given.
    """

    gpu: str | None
    capacity_bytes: int
    compute_capability: str | None
    context_bytes: int
    torch_version: str
    alloc_conf: str


@dataclass(frozen=True)
class PolicyRecord:
    """Effect of one policy on the block table.

    Attributes:
        bytes_changed: Sum over the blocks of new size minus old size, plus the bytes of blocks added.
        bytes_at_peak: Bytes requested for the blocks alive at the instant of the peak, after minus before the
            policy: the recorded bytes of that instant plus these are ``AllocatedPeak.requested_bytes``. None
            where the instant is not one of the recorded run: a what-if raised the peak.
        package: The package that provides the policy, None for a built-in one.
        applied: False for a policy that was switched off.
    """

    name: str
    blocks_changed: int
    bytes_changed: int
    description: str
    bytes_at_peak: int | None = None
    package: str | None = None
    applied: bool = True


@dataclass(frozen=True)
class OutOfMemoryRecord:
    """The request that failed in both levels of the allocator."""

    request_index: int
    requested_bytes: int
    device_free_bytes: int
    operator: str | None
    module: str | None
    source_line: str | None
    iteration: int
    phase: str


@dataclass(frozen=True)
class Bounds:
    """Bounds of the peak of reserved memory, whatever the allocator does with the same requests.

    Attributes:
        perfect_reuse_bytes: Most bytes alive at once, each block rounded as PyTorch rounds it.
        never_reuse_bytes: Bytes with a segment for each request, and none released.
    """

    perfect_reuse_bytes: int
    never_reuse_bytes: int


@dataclass(frozen=True)
class SimulationSummary:
    """Activity of the allocator, in the terms of ``torch.cuda.memory_stats``.

    Attributes:
        segments: Segments at the peak of reserved memory.
        fragmentation_bytes: Reserved minus allocated bytes at that instant.
        bounds: Bounds of the peak of reserved memory.
        oom: The first request that failed, None when none did.
    """

    segments: int
    num_alloc_retries: int
    num_ooms: int
    fragmentation_bytes: int
    bounds: Bounds
    oom: OutOfMemoryRecord | None


@dataclass(frozen=True)
class RankPeak:
    """Memory that one process of the job held on one GPU, by its allocator's own count.

    Attributes:
        device: Index of the GPU in the process.
        card_peak_bytes: Most memory that all processes held on this GPU at once, including contexts and all
            memory outside of PyTorch's allocator; -1 where that is unknown.
        place: Place of the rank in the groups of the job, such as ``pp 0/16, tp 3/8``; empty if unknown.
    """

    rank: int
    device: int
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    card_peak_bytes: int = -1
    place: str = ""


@dataclass(frozen=True)
class Measured:
    """Memory that PyTorch's own allocator held on the phantom GPU.

    Attributes:
        peak_reserved_bytes: Peak of the captured rank, on the GPU that the estimate is about.
        peak_allocated_bytes: The same for blocks in use.
        replay_agrees: Whether xMem's replay of the same requests reached both figures exactly; None when the
            estimate is for other settings or another version than the run's.
        ranks: Every process and GPU of the job, the captured rank first.
        card_peak_bytes: Most memory held on that GPU at once, including contexts and all memory outside of
            PyTorch's allocator; -1 where that is unknown.
    """

    peak_reserved_bytes: int
    peak_allocated_bytes: int
    replay_agrees: bool | None
    ranks: tuple[RankPeak, ...]
    card_peak_bytes: int = -1


@dataclass(frozen=True)
class ConvolutionWorkspaces:
    """Source of the convolution workspaces that a run on the CPU does not have.

    Attributes:
        source: Source of their sizes, in words.
        cudnn_version: Version of the library that was used, such as ``9.20.0``; empty where none was.
        exact: Whether it is the version that the job's PyTorch includes.
        blocks: Number of workspaces in the run.
        largest_bytes: The largest of them.
        peak_reserved_least_bytes: Peak of a run without limit in which every convolution takes the plan with
            the smallest workspace; the estimate's own where it is exact.
        peak_reserved_most_bytes: Likewise, the largest workspace of the plans that PyTorch would try.
    """

    source: str
    cudnn_version: str
    exact: bool
    blocks: int
    largest_bytes: int
    peak_reserved_least_bytes: int
    peak_reserved_most_bytes: int


@dataclass(frozen=True)
class Scaling:
    """Relation of an estimate at a point of a fitted model to the runs that the model was fitted from.

    Attributes:
        at: Value of each dimension.
        fitted_from: Points of the runs.
        blocks: Number of blocks of the job on the device.
        blocks_unverified: Blocks whose size was determined by these runs and checked by none.
        blocks_uncertain: Blocks without a polynomial for their size; the estimate uses their largest possible
            size.
        peak_reserved_least_bytes: The peak with the least possible sizes of those blocks.
        peak_reserved_most_bytes: The peak with their largest sizes, and with blocks that only other runs
            held.
    """

    at: Mapping[str, int]
    fitted_from: tuple[Mapping[str, int], ...]
    blocks: int
    blocks_unverified: int
    blocks_uncertain: int
    peak_reserved_least_bytes: int
    peak_reserved_most_bytes: int


@dataclass(frozen=True)
class Diagnostic:
    """Something wrong with the input, counted.

    Attributes:
        first_byte_offset: Offset of its first occurrence in the uncompressed text, -1 when it has no place.
    """

    kind: str
    severity: Severity
    count: int
    first_byte_offset: int
    message: str


@dataclass(frozen=True)
class OccupancyMean:
    """A mean occupancy, 0 to 1, and the interval that the errors of the models allow."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class OccupancyRecord:
    """How full the kernels of the last iteration keep the multiprocessors: warps over the most possible.

    Attributes:
        gpu: The GPU of the capture, as CUDA names it.
        launches: Number of launches.
        unknown: Those of which nothing is known, which are in no mean.
        launch_mean: Mean over launches, all multiprocessors.
        launch_mean_active: Mean over launches, multiprocessors that have a block.
    """

    gpu: str
    launches: int
    unknown: int
    launch_mean: OccupancyMean
    launch_mean_active: OccupancyMean


@dataclass(frozen=True)
class TraceSummary:
    """The trace that the estimate rests on.

    Attributes:
        path: Path of the trace, empty when it was not kept.
        bytes: Size of the uncompressed text.
        events: Number of events by kind.
        source: ``capture`` when our own capture wrote it, ``foreign`` otherwise.
        command: The command that was captured, empty when unknown.
    """

    path: str
    bytes: int
    events: Mapping[str, int]
    iterations: int
    source: Literal["capture", "foreign"]
    command: tuple[str, ...]


@dataclass(frozen=True)
class Estimate:
    """Estimate of the GPU memory that the job needs.

    Attributes:
        peak_reserved_bytes: Most memory that the allocator held on the device.
        peak_allocated_bytes: Most memory in blocks in use.
        peak_requested_bytes: Most memory that tensors requested, before rounding.
        context_bytes: CUDA context and loaded kernels, outside the allocator.
        device_peak_bytes: Memory that the device must have: context, peak reserved, and what else the card
            holds; for a job on several GPUs, on the fullest one.
        interval: Interval of the device peak; None in estimates written before there were intervals.
        verdict: Whether the job fits, None when no GPU was named.
        measured: Figures of PyTorch's allocator, None unless the job ran on the phantom GPU.
        convolution_workspaces: Source of the workspaces, None where the run has no convolution, or was
            recorded on a GPU.
        scaling: None unless the estimate is one at a point of a fitted model.
        what_if: Changes of the script that the estimate assumes, in the order in which they were applied.
        timings_s: Seconds by stage, in the order of the stages.
        curve: The memory over the run; None in estimates of earlier versions.
        card: The parts that the device peak consists of; empty in estimates of earlier versions.
        largest_blocks: Blocks alive at the peak, the largest first; empty in estimates of earlier versions.
        occupancy: How busy the GPU will be; None unless the run was captured with its launches.
    """

    peak_reserved_bytes: int
    peak_allocated_bytes: int
    peak_requested_bytes: int
    context_bytes: int
    device_peak_bytes: int
    interval: Interval | None
    verdict: Verdict | None
    peak: AllocatedPeak
    breakdown: Breakdown = field(repr=False)
    target: TargetRecord
    policies: tuple[PolicyRecord, ...] = field(repr=False)
    assumptions: tuple[str, ...]
    simulation: SimulationSummary
    measured: Measured | None
    scaling: Scaling | None
    what_if: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]
    trace: TraceSummary
    timings_s: Mapping[str, float]
    convolution_workspaces: ConvolutionWorkspaces | None = None
    curve: Curve | None = field(default=None, repr=False)
    card: tuple[CardPart, ...] = field(default=(), repr=False)
    largest_blocks: tuple[LargeBlock, ...] = field(default=(), repr=False)
    occupancy: OccupancyRecord | None = None

    @property
    def fits(self) -> bool | None:
        """Whether the job fits on the named GPU; None when no GPU was named."""
        return None if self.verdict is None else self.verdict.fits

    @property
    def fits_in_words(self) -> str | None:
        """ "fits", "probably fits" where `doubt` says why it may not, or "does not fit"; None when no GPU was
        named."""
        if self.verdict is None:
            return None
        if not self.verdict.fits:
            return "does not fit"
        return "fits" if self.doubt is None else "probably fits"

    @property
    def doubt(self) -> str | None:
        """Sentence for a job that may need more than the answer says by what is open; None for others."""
        if self.fits is False:
            return None
        if self.interval is None and self.trace.source == "foreign":
            worse = "not fit" if self.fits else "need more"
            return f"It may {worse}: the trace shows only a part of the run"
        if self.verdict is None or self.interval is None:
            return None
        if self.interval.high_bytes <= self.verdict.capacity_bytes:
            return None
        return f"It may not fit: the interval reaches {format_bytes(self.interval.high_bytes)}"

    @property
    def outside_bytes(self) -> int:
        """Memory that the card holds beside the context and the reserved memory of PyTorch's allocator."""
        return max(self.device_peak_bytes - self.context_bytes - self.peak_reserved_bytes, 0)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON contract as plain Python objects, for ``json.dumps``."""
        return {"schema_version": SCHEMA_VERSION, **encode(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Estimate:
        """Read back what ``to_json`` wrote.

        Raises:
            TraceError: The object is not an estimate, or has another schema version.
        """
        if data.get("schema_version") != SCHEMA_VERSION:
            raise TraceError(
                f"this is not an estimate of schema version {SCHEMA_VERSION}; "
                "write it with `xmem-fast estimate TRACE --json`"
            )
        plain = {name: value for name, value in data.items() if name != "schema_version"}
        try:
            estimate: Estimate = decode(cls, {**_SINCE_ADDED, **plain})
        except ValueError as error:
            raise TraceError(
                f"this estimate is damaged ({error}); write it again with `xmem-fast estimate TRACE --json`"
            ) from error
        return estimate

    def _repr_html_(self) -> str:
        import html  # notebooks alone need it

        rows = [
            ("Device peak", format_bytes(self.device_peak_bytes)),
            ("Peak reserved", format_bytes(self.peak_reserved_bytes)),
            ("Peak allocated", format_bytes(self.peak_allocated_bytes)),
            ("Peak in", f"iteration {self.peak.iteration}, {self.peak.phase}"),
        ]
        if self.verdict is not None:
            margin = format_bytes(self.verdict.margin_bytes)
            rows.insert(0, (self.verdict.gpu, f"{self.fits_in_words}, margin {margin}"))
        if self.doubt is not None:
            rows.insert(1, ("", self.doubt))
        cells = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows
        )
        return f"<table>{cells}</table>"

"""What each command prints with ``--json``: names, types and versions of the keys, stated once.

The schemas that ``xmem-fast schema`` prints are made from these types. Where a type is a dataclass, its
values are written by ``dataclasses.asdict``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from xmem.advice.remedies import SCHEMA_VERSION as ADVICE_VERSION
from xmem.advice.remedies import Advice, Combination
from xmem.advice.tuning import SettingsOutcome
from xmem.devices.description import Basis
from xmem.difference.comparison import SCHEMA_VERSION as DIFFERENCE_VERSION
from xmem.difference.comparison import Difference
from xmem.estimation.estimate import SCHEMA_VERSION as ESTIMATE_VERSION
from xmem.estimation.estimate import Estimate, Interval
from xmem.estimation.need import Need
from xmem.files.json_schema import schema_of
from xmem.gate.judge import Rule
from xmem.gate.limits import Metric
from xmem.occupancy.averages import Average
from xmem.occupancy.summary import SCHEMA_VERSION as OCCUPANCY_VERSION
from xmem.occupancy.summary import Row
from xmem.records import dataclass
from xmem.scaling.largest import CurvePoint
from xmem.scaling.model import Difference as DifferentBlocks
from xmem.snapshot.comparison import Rules
from xmem.validation.aggregate import Sampling, Variance
from xmem.validation.metrics import Summary
from xmem.validation.scorecard import SCHEMA_VERSION as SCORECARD_VERSION
from xmem.validation.scorecard import Coverage

Plain = dict[str, Any]


class Capture(TypedDict):
    """A recorded run.

    Attributes:
        path: The trace.
        wall_s: Seconds that the command ran.
        exit_status: That of the command.
        metadata: What the capture noted, as it stands in the trace.
    """

    schema_version: Literal[1]
    path: str
    iterations: int
    wall_s: float
    exit_status: int
    metadata: Mapping[str, Any]


class Finding(TypedDict):
    """A limit that was broken.

    Attributes:
        source_line: The line to look at first, None where none is known.
        bytes_by: Who holds the bytes, or what grew, by category, module or line.
    """

    rule: Rule
    message: str
    source_line: str | None
    bytes_by: Mapping[str, Mapping[str, int]]


class CheckedJob(TypedDict):
    """A job that was held to its limits; -1 stands for a figure that does not apply.

    Attributes:
        source: The file that was judged, or the command that was captured.
        metric: The figure that is judged.
        upper_bound: Whether the upper bound of the interval is judged.
        bytes: What was compared with budget and GPU.
        estimated_bytes: What is compared with the baseline.
        doubt: Why a job may need more than the estimate says.
    """

    name: str
    source: str
    passed: bool
    metric: Metric
    upper_bound: bool
    bytes: int
    estimated_bytes: int
    budget_bytes: int
    gpu: str | None
    capacity_bytes: int
    fits: bool | None
    doubt: str | None
    baseline: str | None
    baseline_bytes: int
    allowed_growth_bytes: int
    findings: list[Finding]


class Check(TypedDict):
    """The answer of the gate."""

    schema_version: Literal[1]
    passed: bool
    checks: list[CheckedJob]


class CheckedPoint(TypedDict):
    """A run that a fitted model was held against.

    Attributes:
        at: Value of each dimension.
        peak_reserved_bytes: Peak according to the model.
        captured_peak_reserved_bytes: Peak according to the run.
        blocks_equal: Blocks of the same size in the model.
        bytes_off: Sum of the differences of sizes.
        relative_error: Of the peak; positive where the model predicts more.
    """

    at: Mapping[str, int]
    peak_reserved_bytes: int
    captured_peak_reserved_bytes: int
    blocks: int
    blocks_equal: int
    bytes_off: int
    relative_error: float


class Fit(TypedDict):
    """A fitted model.

    Attributes:
        samples: Points of the runs that it was fitted from.
        blocks_verified: Blocks whose size more runs confirm than it needs.
        blocks_unverified: Blocks whose size was determined by these runs and checked by none.
        blocks_uncertain: Blocks without a polynomial for their size.
    """

    schema_version: Literal[1]
    path: str
    dimensions: list[str]
    samples: list[Mapping[str, int]]
    blocks: int
    blocks_verified: int
    blocks_unverified: int
    blocks_uncertain: int
    differences: list[Annotated[Plain, DifferentBlocks]]
    checks: list[CheckedPoint]


class LargestOnGpu(TypedDict):
    """The largest value of a dimension on one GPU.

    Attributes:
        value: 0 when nothing fits.
        at: Values of the other dimensions.
        bound: No value above this can fit.
        replayed: Number of values that were replayed.
        smaller_misfits: Smaller values, of those tried, that do not fit.
    """

    gpu: str | None
    name: str
    capacity_bytes: int
    dimension: str
    value: int
    at: Mapping[str, int]
    need: Annotated[Plain, Need] | None
    bound: int
    replayed: int
    smaller_misfits: list[int]


class MaxBatch(TypedDict):
    """The largest value of a dimension that fits on each GPU, and the need at smaller ones."""

    schema_version: Literal[1]
    path: str
    gpus: list[LargestOnGpu]
    curve: list[Annotated[Plain, CurvePoint]]


class Attribute(TypedDict):
    """One of CUDA's device attributes, and how it is known."""

    value: int
    basis: Basis


class Gpu(TypedDict):
    """A GPU.

    Attributes:
        usable_bytes: Memory without the CUDA context.
        attributes: CUDA's device attributes; of one GPU that is asked for by its name.
    """

    slug: str
    name: str
    full_name: str
    aliases: list[str]
    architecture: str
    compute_capability: list[int] | None
    multiprocessors: int
    total_memory_bytes: int
    total_memory_basis: Basis
    total_memory_source: str
    context_bytes: int
    loaded_kernels_bytes: int
    context_basis: Basis
    nvml_total_memory_bytes: int
    processing_clusters: list[int]
    vendor: str
    attributes_source: str
    usable_bytes: int
    attributes: NotRequired[Mapping[str, Attribute]]


class Gpus(TypedDict):
    """All GPUs, or one that is asked for by its name."""

    schema_version: Literal[1]
    gpus: NotRequired[list[Gpu]]
    gpu: NotRequired[Gpu]


class ListedPolicy(TypedDict):
    """A correction from CPU to GPU.

    Attributes:
        traces: Kinds of traces that it is for: CPU, GPU or both.
        package: The package that provides it.
    """

    name: str
    traces: str
    package: str
    description: str
    documentation: str


class Policies(TypedDict):
    """The corrections from CPU to GPU, in their order."""

    schema_version: Literal[1]
    policies: list[ListedPolicy]


class Inspect(TypedDict):
    """The first rows of a table, whose columns are the keys of each row."""

    schema_version: Literal[1]
    table: Literal["events", "operators", "blocks", "sequence", "segments"]
    rows_total: int
    rows: list[Mapping[str, Any]]


class AllocatorEvent(TypedDict):
    """An event of a memory snapshot."""

    action: str
    address: int
    size_bytes: int
    stream: int


class NumberedEvent(AllocatorEvent):
    """An event with its place in the recording."""

    event: int


class FirstDifference(TypedDict):
    """The first event in which recording and replay differ."""

    event: int
    recorded: AllocatorEvent | None
    simulated: AllocatorEvent | None
    around: list[NumberedEvent]


class ReplayedDevice(TypedDict):
    """How far the replay agrees with the recording of one device."""

    device: int
    agrees: bool
    events: int
    agreed_events: int
    start_reserved_bytes: int
    peak_reserved_bytes: int
    final_reserved_bytes: int
    difference: FirstDifference | None


class Replay(TypedDict):
    """A recorded snapshot against its replay."""

    schema_version: Literal[1]
    path: str
    agrees: bool
    alloc_conf: str
    rules: Annotated[Plain, Rules]
    rejected_rules: list[Annotated[Plain, Rules]]
    devices: list[ReplayedDevice]


class PossibleTuning(TypedDict):
    """Likewise with the other bound of what a trace of a GPU began with."""

    defaults: Annotated[Plain, SettingsOutcome]
    best: Annotated[Plain, SettingsOutcome] | None
    saved_peak_bytes: int


class Tune(TypedDict):
    """The best allocator settings.

    Attributes:
        candidates: Number of settings that were replayed.
        fitting: Number of them that fit.
        environment_line: What to paste into a shell; None where no setting is worth it.
    """

    schema_version: Literal[1]
    path: str
    gpu: str | None
    capacity_bytes: int
    context_bytes: int
    torch_version: str
    candidates: int
    fitting: int
    environment_line: str | None
    saved_peak_bytes: int
    saved_capacity_bytes: int
    defaults: Annotated[Plain, SettingsOutcome]
    best: Annotated[Plain, SettingsOutcome] | None
    ranked: list[Annotated[Plain, SettingsOutcome]]
    possible: PossibleTuning | None


class Refused(TypedDict):
    """A remedy that cannot be applied to the run."""

    remedy: str
    reason: str


class Advise(TypedDict):
    """Changes that save memory.

    Attributes:
        tried: Number of remedies replayed.
        left_out: Remedies not replayed because the time was up.
    """

    schema_version: Literal[1]
    path: str
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    device_peak_bytes: int
    fits: bool | None
    advice: list[Annotated[Plain, Advice]]
    combination: Annotated[Plain, Combination] | None
    tried: int
    refused: list[Refused]
    left_out: list[str]


class Sweep(TypedDict):
    """A finished sweep; its rows are in the file ``results``.

    Attributes:
        reused: Rows that an earlier run had finished.
        errors: Rows without an answer.
        best: Of several layouts, the rows that fit each GPU.
    """

    schema_version: Literal[1]
    executor: str
    results: str
    state: str
    configurations: int
    reused: int
    fitting: int
    misfits: int
    errors: int
    captures_made: int
    captures_reused: int
    seconds: float
    best: list[Mapping[str, Any]]


class Report(TypedDict):
    """A file that was written, and its size in what it consists of."""

    schema_version: Literal[1]
    path: str
    format: str
    bytes: NotRequired[int]
    events: NotRequired[int]
    rows: NotRequired[int]
    peak_reserved_bytes: int
    fits: bool | None
    torch_version: str


class Occupancy(TypedDict):
    """How full the kernels of a run keep a GPU.

    Attributes:
        launches: Number of kernels and of library calls whose kernels are unknown.
        known: The same by how their resources are known.
        time_mean: None where durations are not known.
        wall_mean: None where durations, or the gaps between kernels, are not known.
        kernels: By kernel, most launches first; likewise by operator and by module.
    """

    schema_version: Literal[1]
    gpu: str
    compute_capability: list[int]
    multiprocessors: int
    launches: int
    known: Mapping[str, int]
    launch_mean: Annotated[Plain, Average]
    launch_mean_active: Annotated[Plain, Average]
    time_mean: Annotated[Plain, Average] | None
    wall_mean: Annotated[Plain, Average] | None
    kernels: list[Annotated[Plain, Row]]
    operators: list[Annotated[Plain, Row]]
    modules: list[Annotated[Plain, Row]]


class OccupancySweep(TypedDict):
    """The occupancy of several runs.

    Attributes:
        sweep: What differs between the runs, which is also a key of each.
        runs: What each run prints alone, and its value.
    """

    schema_version: Literal[1]
    sweep: str
    runs: list[Mapping[str, Any]]


class PhantomEnv(TypedDict):
    """The Python of the environment that was made."""

    schema_version: Literal[1]
    python: str


class Measurement(TypedDict):
    """A measurement of a real GPU."""

    key: str
    part: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    outcome: str
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    least_bytes: int | None
    where: str


class ValidateList(TypedDict):
    """The available measurements."""

    schema_version: Literal[1]
    measurements: list[Measurement]


class Run(TypedDict):
    """A measured run, by what tells it from others."""

    set: str
    model: str
    family: str
    optimizer: str
    batch_size: int
    gpu: str
    zero_grad_mode: int | None


class JudgedRun(Run):
    """An estimate beside the truth."""

    way: str
    estimate_bytes: int
    truth_bytes: int
    relative_error: float | None
    signed_error: float | None
    estimated_oom: bool
    real_oom: bool
    second_round: str
    second_round_basis: str
    limit_bytes: int
    failed: bool
    conserved_bytes: float
    seconds: float | None
    interval: Annotated[Plain, Interval]
    policies: Mapping[str, Any]
    note: str
    others: Mapping[str, int]


class UnansweredRun(Run):
    """A run without an estimate."""

    note: str
    others: Mapping[str, int]


class Experiment(TypedDict):
    """The rows of one of the published experiments."""

    rows: int
    variance: Mapping[str, Annotated[Plain, Variance]]
    sampling: Annotated[Plain, Sampling] | None


# By inheritance from the dataclass of the metrics, the keys of a summary stand beside these.
@dataclass(frozen=True)
class Validate(Summary):
    """Estimates judged by measured runs.

    Attributes:
        interval: Upper bounds as calibrated.
        interval_held_out: Upper bounds calibrated on other models' rows.
        methods: The metrics of each way and of other methods.
        by: The metrics of the rows with each value of a factor.
    """

    interval: Coverage
    interval_held_out: Coverage
    methods: Mapping[str, Summary]
    by: Mapping[str, Mapping[str, Summary]]
    experiments: Mapping[str, Experiment]
    rows: tuple[JudgedRun, ...]
    rows_without_estimate: tuple[UnansweredRun, ...]


# By command; what `validate --list` and `occupancy --sweep` print has a name of its own.
_OUTPUTS: Mapping[str, Any] = {
    "run": Estimate, "estimate": Estimate, "capture": Capture, "check": Check, "diff": Difference, "fit": Fit,
    "max-batch": MaxBatch, "gpus": Gpus, "policies": Policies, "inspect": Inspect, "replay": Replay,
    "tune": Tune, "advise": Advise, "sweep": Sweep, "occupancy": Occupancy, "occupancy-sweep": OccupancySweep,
    "report": Report, "validate": Validate, "validate-list": ValidateList, "phantom-env": PhantomEnv,
}  # fmt: skip
_VERSIONS = {
    Estimate: ESTIMATE_VERSION,
    Difference: DIFFERENCE_VERSION,
    Validate: SCORECARD_VERSION,
    Advise: ADVICE_VERSION,
    Occupancy: OCCUPANCY_VERSION,
    OccupancySweep: OCCUPANCY_VERSION,
}


def names() -> tuple[str, ...]:
    """Return the names of the schemas: commands, ``validate-list`` and ``occupancy-sweep``."""
    return tuple(_OUTPUTS)


def version_of(name: str) -> int:
    """Return the version of what a command prints.

    Raises:
        KeyError: There is no such schema.
    """
    return _VERSIONS.get(_OUTPUTS[name], 1)


def output_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of what a command prints.

    Raises:
        KeyError: There is no such schema.
    """
    kind = _OUTPUTS[name]
    schema = schema_of(kind, computed=frozenset({"change_bytes"} if kind is Difference else ()))
    version = {"schema_version": {"const": version_of(name), "description": "Version of this schema."}}
    properties = {**version, **{key: of for key, of in schema["properties"].items() if key not in version}}
    required = ["schema_version", *(key for key in schema["required"] if key not in version)]
    identity = {"$schema": schema.pop("$schema"), "$id": f"urn:xmem-fast:{name}:{version_of(name)}"}
    return {**identity, **schema, "properties": properties, "required": required}

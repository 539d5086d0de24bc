"""Measurements: a frozen dataclass for each part of the kit. Sizes are bytes, times seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from xmem.errors import TraceError
from xmem.records import dataclass
from xmem.snapshot.snapshot import MemoryTrace, RecordedAction
from xmem.validation.columns import Int64, unpack

Outcome = Literal["done", "out_of_memory", "failed", "timeout"]

_ACTIONS = {action.name.lower(): int(action) for action in RecordedAction}


@dataclass(frozen=True)
class DeviceMemory:
    """Memory in use of the device according to the driver, while one process had it to itself.

    Attributes:
        source: ``nvml``.
        before_bytes: Bytes in use before the process touched the device.
        context_bytes: Additional bytes once the process had a context, and nothing else.
        end_bytes: Additional bytes when its work was done and its tensors alive, -1 if not read.
        peak_bytes: Most bytes beyond ``before_bytes``.
        samples: Number of readings.
        seconds: Duration of the readings.
    """

    source: str
    before_bytes: int
    context_bytes: int
    end_bytes: int
    peak_bytes: int
    samples: int
    seconds: float


@dataclass(frozen=True)
class Measurement:
    """A run of the kit.

    Attributes:
        where: File and line.
        key: Name of the run; the same in every visit with the same versions on the same GPU.
        part: Part of the kit.
        config: Configuration of the run, as ``bench/gpu/SCHEMA.md`` defines it for each part.
        environment: ``gpu``, ``torch``, ``cuda``, ``cudnn``, ``torchvision``, ``transformers``.
        driver: Version of the driver; empty without NVML.
        started: ISO 8601, UTC.
        seconds: Duration of the run.
        outcome: Outcome of the run; ``failed`` and ``timeout`` say nothing about the job.
        error: Error message, empty when it is done.
        device_memory: Memory of the device, None where it was not sampled.
    """

    where: str
    key: str
    part: str
    config: Mapping[str, Any]
    environment: Mapping[str, str]
    driver: str
    started: str
    seconds: float
    outcome: Outcome
    error: str
    device_memory: DeviceMemory | None

    @property
    def title(self) -> str:
        """Title of the run, for people."""
        named = ("program", "model", "optimizer", "batch", "dtype", "sides", "share")
        return " ".join(str(self.config[name]) for name in named if name in self.config)

    def _unpacked(self, packed: Mapping[str, Any]) -> dict[str, Int64]:
        try:
            return unpack(packed)
        except (KeyError, ValueError, TypeError) as error:
            raise TraceError(f"{self.where}: {error}; get the file again, or remove the line") from None


@dataclass(frozen=True)
class DeviceFacts(Measurement):
    """The device as its libraries see it.

    Attributes:
        properties: Properties from ``torch.cuda.get_device_properties``.
        attributes: ``cudaDeviceGetAttribute`` by the names of ``data/cuda_attributes.toml``.
        versions: Versions as CUDA, cuDNN and cuBLAS number themselves.
        cudnn_device: cuDNN's own description, None where cuDNN is too old.
    """

    properties: Mapping[str, Any]
    attributes: Mapping[str, int]
    versions: Mapping[str, int]
    cudnn_device: Mapping[str, Any] | None


@dataclass(frozen=True)
class IterationUsage:
    """Memory that the allocator held, one row for each iteration; read when the device had finished it.

    Attributes:
        seconds: float64.
        max_allocated_bytes: int64, since the row before.
        max_reserved_bytes: int64, since the row before.
        allocated_bytes: int64, at the end.
        reserved_bytes: int64, at the end.
    """

    seconds: NDArray[np.float64]
    max_allocated_bytes: Int64
    max_reserved_bytes: Int64
    allocated_bytes: Int64
    reserved_bytes: Int64


@dataclass(frozen=True)
class Recorded(Measurement):
    """A run with everything that its allocator did; for one that ran out of memory, until then.

    Attributes:
        peak_allocated_bytes: ``max_memory_allocated`` of the run.
        peak_reserved_bytes: ``max_memory_reserved`` of the run.
        packed_history: History as in the file; see ``history``.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    packed_history: Mapping[str, Any]

    @property
    def history_is_complete(self) -> bool:
        """Whether the history begins with an empty allocator and lacks nothing."""
        return bool(self.packed_history["complete"])

    def history(self) -> MemoryTrace:
        """Return everything that the allocator did, decoded anew with each call.

        Raises:
            TraceError: The columns are damaged; names file and line.
        """
        events = self._unpacked(self.packed_history["events"])
        subjects = self._unpacked(self.packed_history["subjects"])
        back = events["back"]
        rows = np.arange(len(back))
        # Events that end something refer to the event that began it.
        own = np.cumsum(back == 0)[rows - back] - 1
        other = int(RecordedAction.OTHER)
        codes = [_ACTIONS.get(name, other) for name in self.packed_history["actions"]]
        return MemoryTrace(
            action=np.array(codes, np.uint8)[events["action"]],
            address=subjects["address"][own],
            size_bytes=subjects["size"][own],
            stream=subjects["stream"][own],
            mempool=np.zeros(len(rows), np.int32),  # the kit does not note private pools
            time_us=events["time_us"],
        )


@dataclass(frozen=True)
class TrainingPeak(Recorded):
    """Memory that a training job needed.

    Attributes:
        iterations: One row for each; a run that ran out of memory has one more, for the rest.
        parameters: Number of elements of the model's parameters.
    """

    iterations: IterationUsage
    parameters: int


@dataclass(frozen=True)
class ProgramPeak(Recorded):
    """Memory that a program of ``bench/workloads/programs.py`` needed.

    Attributes:
        allocated_bytes: Allocated bytes at its end, when its own tensors are gone.
        reserved_bytes: Reserved bytes at its end.
    """

    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class LeastMemory(Measurement):
    """The least memory for the caching allocator under which a job of five iterations finished.

    Attributes:
        peak_reserved_bytes: Peak of the job without a cap.
        least_bytes: The smallest cap that was enough; 0 if none was.
        too_little_bytes: The largest cap below it that was not enough, at most 1% or 2 MiB away.
        trial_cap_bytes: int64, ascending.
        trial_finished: bool, for each cap.
    """

    peak_reserved_bytes: int
    least_bytes: int
    too_little_bytes: int
    trial_cap_bytes: Int64
    trial_finished: NDArray[np.bool_]


@dataclass(frozen=True)
class OperatorRequests:
    """Requests of an operator to the allocator with some inputs.

    Attributes:
        name: Name such as ``aten::convolution_backward``.
        inputs: In order, tensors as ``shape``, ``dtype`` and ``layout``; numbers; None for lists of numbers.
        requests: int64, in order: sizes of blocks in bytes, as rounded; ``-k`` frees the k-th of them.
        calls: Number of calls with exactly these requests.
    """

    name: str
    inputs: tuple[Any, ...]
    requests: Int64
    calls: int


@dataclass(frozen=True)
class OperatorTable(Measurement):
    """The operators of a training job.

    Attributes:
        flags: Settings of the process: TF32, cuDNN's benchmark mode, determinism.
        operators: Operators in order of their first call.
    """

    flags: Mapping[str, bool]
    operators: tuple[OperatorRequests, ...]


@dataclass(frozen=True)
class Convolution:
    """A convolution run alone.

    Attributes:
        shape: ``input`` (NCHW), ``filter`` (KCRS), ``stride``, ``padding``, ``dilation``, ``groups``,
            ``bias``.
        forward: int64, its requests as in ``OperatorRequests``, in requested bytes; None if it ran out of
            memory.
        data_gradient: The same for the gradient of the data.
        filter_gradient: The same for the gradient of the filter.
    """

    shape: Mapping[str, Any]
    forward: Int64 | None
    data_gradient: Int64 | None
    filter_gradient: Int64 | None


@dataclass(frozen=True)
class MeasuredWorkspaces(Measurement):
    """The convolutions of a network, each alone.

    Attributes:
        flags: Settings as in ``OperatorTable``.
        convolutions: Convolutions in order of their first call, without repeats.
    """

    flags: Mapping[str, bool]
    convolutions: tuple[Convolution, ...]


@dataclass(frozen=True)
class Sample:
    """A call of an operator with one of the samples that PyTorch tests it with.

    Attributes:
        operator: Name in ``op_db``, with its variant.
        number: Number of the sample, from 0, in PyTorch's order.
        inputs: The sample in PyTorch's words, cut after 300 characters.
        forward: int64, its requests as in ``OperatorRequests``, in requested bytes; the error message if it
            failed.
        backward: The same for the gradient of its first result; None if it has none.
    """

    operator: str
    number: int
    inputs: str
    forward: Int64 | str
    backward: Int64 | str | None


@dataclass(frozen=True)
class SampleTable(Measurement):
    """A share of PyTorch's operators, each with its own samples.

    Attributes:
        flags: Settings as in ``OperatorTable``.
        samples: Samples in order.
    """

    flags: Mapping[str, bool]
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class LibraryAnswers(Measurement):
    """What cuFFT, cuSOLVER or cuSPARSE asks for.

    Attributes:
        packed_calls: The calls of each function, such as ``cusolverDnXgetrf_bufferSize``, as in the file; see
            ``calls``.
    """

    packed_calls: Mapping[str, Mapping[str, Any]]

    def calls(self, function: str) -> dict[str, Int64]:
        """Return a row for each call, in order: the numbers that it was asked with, then its answers.

        Answers are bytes, or elements where the column says so; a refused call has its negative status.

        Raises:
            TraceError: The columns are damaged.
        """
        return self._unpacked(self.packed_calls[function])


@dataclass(frozen=True)
class Network:
    """A recurrent network, forward and backward.

    Attributes:
        settings: Arguments of ``torch.nn``'s layer, ``steps`` and ``batch``.
        forward: int64, its requests as in ``OperatorRequests``, in requested bytes.
        backward: The same for the backward pass.
    """

    settings: Mapping[str, Any]
    forward: Int64
    backward: Int64


@dataclass(frozen=True)
class RecurrentNetworks(Measurement):
    """Recurrent networks of one cell and precision.

    Attributes:
        flags: Settings as in ``OperatorTable``.
        networks: Networks in order.
    """

    flags: Mapping[str, bool]
    networks: tuple[Network, ...]


@dataclass(frozen=True)
class Launches(Measurement):
    """The kernels of a forward pass, a training step or a program.

    Attributes:
        kernels: Names of the kernels.
        operators: ``name``, ``shapes``, ``dtypes``; None for kernels that no operator launched. Empty for
            Nsight Compute, which does not know them.
        packed_launches: Launches as in the file; see ``launches``.
    """

    kernels: tuple[str, ...]
    operators: tuple[Mapping[str, Any] | None, ...]
    packed_launches: Mapping[str, Any]

    def launches(self) -> dict[str, Int64]:
        """Return a row for each launch, in order; -1 where the profiler gives no value.

        For part ``occupancy``: ``kernel`` and ``operator`` (rows of the tables above), ``duration_ns``,
        ``occupancy_percent`` (Kineto's estimate), ``registers`` (a thread), ``shared_bytes``, ``stream``, and
        ``grid_x`` to ``block_z``. For part ``nsight``: ``kernel``, ``duration_ns``, ``active_ppm`` and
        ``elapsed_ppm`` (warps resident, of the most possible, in cycles with any and in all cycles),
        ``grid``, ``block``, ``registers``, ``shared_static_bytes``, ``shared_dynamic_bytes``, and
        ``limit_blocks``, ``limit_registers``, ``limit_shared``, ``limit_warps`` (blocks that fit).

        Raises:
            TraceError: The columns are damaged; names file and line.
        """
        return self._unpacked(self.packed_launches)

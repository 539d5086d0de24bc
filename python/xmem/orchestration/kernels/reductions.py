"""Sums over few outputs and many inputs: CUDA spreads one output over blocks that meet in global memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from xmem.devices.description import Device
from xmem.devices.gpus import UNKNOWN_IS_LIKE, find_device
from xmem.orchestration.kernels.fused_norms import fused_norms
from xmem.orchestration.transients import AddedBlocks, first_blocks
from xmem.records import dataclass
from xmem.run.inputs import Inputs
from xmem.run.operators import HOST, covered
from xmem.run.recorded import Context
from xmem.run.workload import Workload

# Where their axes stand among the arguments. All of them run the same kernel, on float32.
_AXES_AT = {"aten::sum": 1, "aten::mean": 1, "aten::linalg_vector_norm": 2}
_MOST_THREADS = 512
_WARP = 32
_VECTOR = 4
_FEWEST_VALUES_PER_THREAD = 16
_MOST_VALUES_PER_THREAD = 256
_SUMMED = frozenset({"float", "c10::Half", "c10::BFloat16"})
_SUMMED_DTYPES = frozenset({"float32", "float16", "bfloat16"})
_SUM_BYTES = 4  # halves are summed in float32


@dataclass(frozen=True)
class Reduction:
    """What decides how a sum is spread over a GPU.

    Attributes:
        outputs: Number of sums.
        inputs: Numbers in each sum.
        along_fastest: Whether the numbers of one sum lie closer together than the sums do.
        one_run: Whether all that is summed is one contiguous run, and the result one number.
        output_row: Number of sums that lie next to each other, 0 where they do not.
    """

    outputs: int
    inputs: int
    along_fastest: bool
    one_run: bool
    output_row: int


def staging_bytes(sum_: Reduction, multiprocessors: int, threads: int) -> tuple[int, int]:
    """Return the bytes of partial sums in global memory and of the semaphores of the blocks that add them;
    zeros if there are none.

    As `setReduceConfig` decides (`aten/src/ATen/native/cuda/Reduce.cuh`, 2.4 to 2.12).

    Args:
        sum_: The shape of the sum.
        multiprocessors: Multiprocessors of the GPU.
        threads: The most threads that one of them holds.
    """
    width, height = (sum_.inputs, sum_.outputs) if sum_.along_fastest else (sum_.outputs, sum_.inputs)
    vector = 1
    if sum_.along_fastest:
        if sum_.one_run and width > 128:
            width //= _VECTOR
    elif sum_.output_row:
        vector = math.gcd(sum_.output_row, _VECTOR)
        width //= vector
    most = _MOST_THREADS // vector
    width, height = _last_power(width, most), _last_power(height, most)
    block_x = min(width, _WARP)
    block_y = min(height, most // block_x)
    block_x = min(width, most // block_y)

    step_input, step_output = (block_x, 1) if sum_.along_fastest else (1, block_x)
    values = -(-sum_.inputs // step_input)
    if values < min(block_y * _FEWEST_VALUES_PER_THREAD, _MOST_VALUES_PER_THREAD):
        return 0, 0
    step_input *= block_y
    values = -(-sum_.inputs // step_input)
    grid = -(-(sum_.outputs // vector) // step_output)
    wanted = multiprocessors * (threads // (block_x * block_y))
    if values < _MOST_VALUES_PER_THREAD or grid > wanted:
        return 0, 0
    blocks = max(
        min(-(-wanted // grid), -(-values // _FEWEST_VALUES_PER_THREAD)),
        -(-values // _MOST_VALUES_PER_THREAD),
    )
    if blocks <= 1:
        return 0, 0
    size_bytes = _SUM_BYTES * sum_.outputs * blocks
    return size_bytes if sum_.along_fastest else size_bytes * block_x * vector, 4 * grid


class AddReductionBuffers:
    """A sum that a whole GPU works on keeps partial sums of every block in global memory, while it runs.

    Above all the gradients of biases: summing 16,384 rows of 768 takes 21 MiB on an RTX 3060 and 96 MiB on an
    A100, after the result (seen with 2.6.0 and 2.12.0; `staging_bytes` gives the same). So do means and norms
    of vectors, such as Adafactor takes of its gradients. Variances and extremes are left out.
    """

    name = "add_reduction_buffers"
    inputs_of = frozenset(_AXES_AT)
    description = "sums over few outputs keep partial sums of all blocks of the GPU while they run"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Add the buffers after the result of each sum of floating-point numbers."""
        operators, events = context.operators, context.trace.events
        rows = np.flatnonzero(operators.rows_named(self.inputs_of) & (events.inputs >= 0)).astype(np.int32)
        hosts = np.flatnonzero(events.kind == HOST)
        rows = rows[~covered(events.begin_ns[rows], events.begin_ns[hosts], events.end_ns[hosts])]
        forward = operators.forward_of(rows)
        in_one_kernel = operators.rows_owned_by(forward, fused_norms(context)) >= 0
        rows, forward = rows[~in_one_kernel], forward[~in_one_kernel]
        if len(rows) == 0:
            return workload
        multiprocessors, threads = _size_of(context.target.device)
        blocks = AddedBlocks(workload)
        results = first_blocks(workload, operators, rows)
        types = operators.first_input_type(rows)
        for row, result, item in zip(rows, results, types, strict=True):
            inputs = operators.inputs(int(row))
            if result < 0 or inputs is None or item not in _SUMMED:
                continue
            reduction = reduction_of(inputs, _AXES_AT[context.trace.names[events.name[row]]])
            if reduction is None:
                continue
            partial, semaphores = staging_bytes(reduction, multiprocessors, threads)
            if partial:
                steps = [("partial", partial), ("semaphores", semaphores), ("semaphores", 0), ("partial", 0)]
                blocks.add_in_order(result, int(workload.alloc_ns[result]) + 1, steps)
        return blocks.added()


def staging_on(
    device: Device | None, shape: Sequence[int], axes: Sequence[int], dtype: str
) -> tuple[int, int]:
    """Return what ``staging_bytes`` gives for a sum of a contiguous tensor.

    Args:
        device: The GPU, None for one that nothing is known of.
        shape: Elements in each dimension of what is summed.
        axes: What it is summed over, from the end if negative; all axes if there are none.
        dtype: Of what is summed, such as ``bfloat16``; types other than float32 and halves count as zeros.
    """
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    reduction = _reduction(shape, strides, axes) if dtype in _SUMMED_DTYPES else None
    return staging_bytes(reduction, *_size_of(device)) if reduction else (0, 0)


def reduction_of(inputs: Inputs, axes_at: int = 1) -> Reduction | None:
    """Return what a call sums, with its axes at a place of the arguments; None if the trace does not say, or
    there is nothing to sum.
    """
    shape, strides = inputs.shape(0), inputs.stride(0)
    return _reduction(shape, strides, inputs.integers(axes_at) or ()) if strides else None


def _reduction(shape: Sequence[int], strides: Sequence[int], summed_axes: Sequence[int]) -> Reduction | None:
    """Return how a tensor is summed over axes, all if none are given; None if there is nothing to sum."""
    if not shape:
        return None
    summed = {axis % len(shape) for axis in summed_axes or range(len(shape))}
    axes = [(strides[axis], shape[axis], axis in summed) for axis in range(len(shape)) if shape[axis] != 1]
    inner = sorted(axis for axis in axes if axis[2])
    outer = sorted(axis for axis in axes if not axis[2])
    if not inner or 0 in shape:
        return None
    return Reduction(
        outputs=math.prod(size for _, size, _ in outer),
        inputs=math.prod(size for _, size, _ in inner),
        along_fastest=not outer or inner[0][0] < outer[0][0],
        one_run=not outer and _is_run(inner),
        output_row=_run_length(outer) if outer and outer[0][0] == 1 else 0,
    )


def _is_run(axes: list[tuple[int, int, bool]]) -> bool:
    return axes[0][0] == 1 and _run_length(axes) == math.prod(size for _, size, _ in axes)


def _run_length(axes: list[tuple[int, int, bool]]) -> int:
    """Count the elements of the axes, in order of their strides, up to the first that does not continue the
    others."""
    stride, length = axes[0][0], 1
    for step, size, _ in axes:
        if step != stride * length:
            break
        length *= size
    return length


def _last_power(number: int, most: int) -> int:
    """Return the largest power of two that is not above ``number``, at most ``most``."""
    return most if number >= most else 1 << max(number.bit_length() - 1, 0)


def _size_of(device: Device | None) -> tuple[int, int]:
    """Return the multiprocessors and the most threads of one; those of an A100 if nothing is known."""
    if device is None or device.multiprocessors < 0:
        device = find_device(UNKNOWN_IS_LIKE)
    return device.multiprocessors, device.attributes.get("MaxThreadsPerMultiProcessor", 2048)

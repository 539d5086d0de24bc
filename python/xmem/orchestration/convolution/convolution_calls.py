"""The convolutions of a trace: what each call computes, and whether cuDNN runs it on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from xmem.cudnn.planner_settings import PlannerSettings
from xmem.cudnn.problems import ConvolutionProblem, Operation
from xmem.dtypes import FLOATS, ITEM_BYTES, OF_PROFILER
from xmem.records import dataclass
from xmem.run.inputs import Inputs
from xmem.text.units import MOST_BYTES

FORWARD, BACKWARD = "aten::_convolution", "aten::convolution_backward"

_GRADIENTS = (Operation.DATA_GRADIENT, Operation.FILTER_GRADIENT)


@dataclass(frozen=True)
class Tensor:
    """An input; one with a single dimension of space has the two that cuDNN is given."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def is_channels_last(self) -> bool:
        """Whether PyTorch takes its layout for channels-last (`is_channels_last_strides_2d`): in doubt,
        where sizes are 1, it does not.
        """
        if len(self.sizes) not in (4, 5) or self.strides[1] == 0:
            return False
        least = 0
        for dimension in (1, *range(len(self.sizes) - 1, 1, -1), 0):
            size, stride = self.sizes[dimension], self.strides[dimension]
            if size == 0 or stride < least or (dimension == 0 and least == self.strides[1]):
                return False
            least = stride * max(size, 1)
        return True

    def is_contiguous(self, channels_last: bool) -> bool:
        """Return whether it lies without gaps in this order, so that no copy is made."""
        order = (0, *range(2, len(self.sizes)), 1) if channels_last else range(len(self.sizes))
        step = 1
        for dimension in reversed(tuple(order)):
            if self.sizes[dimension] != 1 and self.strides[dimension] != step:
                return False
            step *= self.sizes[dimension]
        return True


@dataclass(frozen=True)
class Call:
    """A convolution, or the gradients of one, as CUDA runs it.

    Attributes:
        results: Bytes of its results, in the order of allocation: the output; or the gradients of input,
            filter and bias, None for those that are not requested. The kernels of a depthwise convolution
            allocate the gradient of the filter first.
        problems: cuDNN's problems, one per result in the same order; None where a result needs no plan.
        copies: Bytes of contiguous copies of its inputs, alive while it runs.
    """

    results: tuple[int | None, ...]
    problems: tuple[ConvolutionProblem | None, ...]
    copies: tuple[int, ...]


def settings_of(inputs: Iterable[Inputs | None]) -> PlannerSettings:
    """Return the job's settings in ``torch.backends.cudnn``, from its first convolution that has them."""
    for given in inputs:
        if given is not None and len(given.values) > 12:
            benchmark, deterministic, _, allow_tf32 = (given.flag(position) for position in range(9, 13))
            return PlannerSettings(allow_tf32=allow_tf32, deterministic=deterministic, benchmark=benchmark)
    return PlannerSettings()


def read_call(inputs: Inputs | None, dtype: str, *, backward: bool) -> Call | None:
    """Read what a call computes; None if that is not known.

    Args:
        inputs: Inputs of the call.
        dtype: Dtype of the first input, as the profiler writes it.
        backward: Whether it is ``aten::convolution_backward``.
    """
    if inputs is None:
        return None
    try:
        return _read(dtype, inputs, backward=backward)
    except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError):
        return None


def _read(dtype: str, inputs: Inputs, *, backward: bool) -> Call:
    if dtype not in FLOATS:
        raise ValueError(f"not a convolution dtype: {dtype}")
    tensors = [_tensor(inputs.shape(i), inputs.stride(i)) for i in range(3 if backward else 2)]
    first = 4 if backward else 3
    stride, padding, dilation = (_space(inputs, first + i, fill) for i, fill in enumerate((1, 0, 1)))
    transposed = inputs.flag(first + 3)
    output_padding = _space(inputs, first + 4, 0)
    groups = inputs.integer(first + 5)
    if not groups or groups < 0:
        raise ValueError(f"not a number of groups: {inputs.value(first + 5)}")
    x, w = tensors[-2:]
    shape = _Shape(OF_PROFILER[dtype], x, w, stride, padding, dilation, transposed, output_padding, groups)
    if backward:
        wanted = [text.strip() == "True" for text in inputs.value(first + 6).strip("[]").split(",")]
        return shape.backward(tensors[0], wanted)
    return shape.forward(enabled=inputs.flag(11) or not inputs.value(11))


@dataclass(frozen=True)
class _Shape:
    dtype: str
    x: Tensor
    w: Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    def forward(self, *, enabled: bool) -> Call:
        y = self._output()
        problem = self._problem(Operation.FORWARD, y) if enabled and self._is_cudnn else None
        return Call((self._bytes(y),), (problem,), self._copies(self.x, self.w))

    def backward(self, gradient: Tensor, mask: Sequence[bool]) -> Call:
        wanted = [*mask, False, False, False][:3]
        sizes = (self.x.sizes, self.w.sizes, (gradient.sizes[1],))
        is_cudnn = self._is_cudnn
        results = [self._bytes(size) if want else None for size, want in zip(sizes, wanted, strict=True)]
        problems = [
            self._problem(operation, gradient.sizes) if want and is_cudnn else None
            for operation, want in zip(_GRADIENTS, wanted[:2], strict=True)
        ]
        if not is_cudnn:
            results[:2] = reversed(results[:2])
        return Call(tuple(results), (*problems, None), self._copies(gradient, self.x, self.w))

    @property
    def channels_last(self) -> bool:
        """The result of `cudnn_conv_suggest_memory_format`."""
        return self.dtype != "float64" and (self.x.is_channels_last or self.w.is_channels_last)

    @property
    def _is_cudnn(self) -> bool:
        """`_select_conv_backend` of `Convolution.cpp`: a depthwise convolution has kernels of its own."""
        depthwise = (
            not self.transposed
            and self.groups > 1
            and self.x.sizes[1] == self.groups
            and self.w.sizes[0] % self.groups == 0
        )
        return not depthwise or self.channels_last or self._is_fast_depthwise

    @property
    def _is_fast_depthwise(self) -> bool:
        """Half precision that cuDNN is known to be faster for (`use_cudnn_depthwise`)."""
        batch, channels, *space = self.x.sizes
        if (
            self.dtype != "float16"
            or len(space) != 2
            or set(self.dilation) != {1}
            or channels < 32
            or (self.stride[0] != self.stride[1] and space[0] != 1)
        ):
            return False
        kernel, width, step = self.w.sizes[2:], space[1], self.stride[1]
        if space[0] == 1 and step == 1:
            return True
        if kernel[0] != kernel[1] or kernel[1] not in (1, 3, 5) or width < 7 or step not in (1, 2):
            return False
        if step == 1:
            return True
        if kernel[1] == 1:
            return width <= 28 if batch == 1 else batch <= 16 and channels >= 128 and width <= 7
        return batch == 1 or channels >= 512 or (channels >= 256 and width >= 28)

    def _output(self) -> tuple[int, ...]:
        batch, _, *space = self.x.sizes
        kernels = self.w.sizes[2:]
        steps = zip(
            space, kernels, self.stride, self.padding, self.dilation, self.output_padding, strict=True
        )
        if self.transposed:
            outputs = self.w.sizes[1] * self.groups
            return batch, outputs, *((n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, d, o in steps)
        return batch, self.w.sizes[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in steps)

    def _problem(self, operation: Operation, y: tuple[int, ...]) -> ConvolutionProblem:
        x = self.x.sizes
        if self.transposed:  # the roles of input and output change
            swapped = {Operation.FORWARD: Operation.DATA_GRADIENT, Operation.DATA_GRADIENT: Operation.FORWARD}
            operation, x, y = swapped.get(operation, operation), y, x
        return ConvolutionProblem(
            operation,
            self.dtype,
            x,
            self.w.sizes,
            y,
            self.stride,
            self.padding,
            self.dilation,
            self.channels_last,
        )

    def _copies(self, *tensors: Tensor) -> tuple[int, ...]:
        return tuple(
            self._bytes(tensor.sizes) for tensor in tensors if not tensor.is_contiguous(self.channels_last)
        )

    def _bytes(self, sizes: Sequence[int]) -> int:
        size_bytes = prod(sizes) * ITEM_BYTES[self.dtype]
        if not (all(size > 0 for size in sizes) and size_bytes <= MOST_BYTES):
            raise ValueError(f"not the shape of a tensor on a device: {sizes}")
        return size_bytes


def _tensor(sizes: tuple[int, ...], strides: Sequence[int]) -> Tensor:
    if len(sizes) not in (3, 4, 5) or 0 in sizes:
        raise ValueError(f"not the shape of a convolution tensor: {sizes}")
    if len(sizes) == 3:  # PyTorch gives a convolution along one dimension a second one, and copies
        sizes, strides = (*sizes[:2], 1, sizes[2]), ()
    return Tensor(sizes, tuple(strides) or tuple(prod(sizes[i + 1 :]) for i in range(len(sizes))))


def _space(inputs: Inputs, position: int, fill: int) -> tuple[int, ...]:
    numbers = inputs.integers(position)
    if numbers is None:
        raise ValueError(f"not numbers along dimensions: {inputs.value(position)}")
    return (fill, *numbers) if len(numbers) == 1 else numbers

"""The allocations of `torch.optim` in a step, optimizer by optimizer, in order.

Written after the functions `_init_group`, `_single_tensor_*` (for-loop), `_multi_tensor_*` (foreach) and
`_fused_*` of torch 2.13; variables have the same names as there, because temporaries end when these are bound
again. Operators that work in place allocate nothing and are not mentioned. Scalars that the for-loop and
foreach keep on the host (``step``) are not either; fused optimizers keep them on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

from xmem.devices.description import Device
from xmem.dtypes import ITEM_BYTES
from xmem.errors import TraceError
from xmem.orchestration.kernels.reductions import staging_on
from xmem.orchestration.tape import Tape
from xmem.records import dataclass

LOOP, FOREACH, FUSED = "for-loop", "foreach", "fused"

_SCALAR_BYTES = 4


@dataclass(frozen=True)
class Parameter:
    """A parameter with a gradient at a step of the optimizer.

    Attributes:
        name: As the capture names it.
        shape: Elements in each dimension, None if its size differs from the recorded run.
        size_bytes: Size of its gradient, and so of its state.
        dtype: Dtype in the recorded run, such as ``float32``.
        group: Index of the optimizer's parameter group.
        gradient: Its gradient, a row of the workload.
    """

    name: str
    shape: tuple[int, ...] | None
    size_bytes: int
    dtype: str
    group: int
    gradient: int


@dataclass(frozen=True)
class Step:
    """One step for one parameter group.

    Attributes:
        parameters: Parameters of the group that have gradients, in order.
        fresh: Names of those that have no state yet.
        implementation: ``LOOP``, ``FOREACH`` or ``FUSED``.
        options: Options of the optimizer, such as ``momentum``.
        device: The GPU, whose size decides what sums take while they run; None: not known.
    """

    parameters: Sequence[Parameter]
    fresh: frozenset[str]
    implementation: str
    options: frozenset[str]
    device: Device | None = None

    def lists(self) -> list[list[Parameter]]:
        """The lists that foreach makes: parameters of one dtype, in order of first appearance."""
        by_dtype: dict[str, list[Parameter]] = {}
        for parameter in self.parameters:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
        return list(by_dtype.values())


@dataclass(frozen=True)
class Algorithm:
    """An optimizer of `torch.optim`.

    Attributes:
        step: Writes what a step allocates to a tape.
        implementations: Its implementations, the default on CUDA first.
        options: Options that change what it allocates.
        state_at_construction: Whether state is made by the constructor, not by the first step.
    """

    step: Callable[[Tape, Step], None]
    implementations: tuple[str, ...]
    options: tuple[str, ...] = ()
    state_at_construction: bool = False


def construct_state(tape: Tape, parameters: Iterable[Parameter], implementation: str) -> None:
    """Write what the constructor of Adagrad allocates."""
    for parameter in parameters:
        _keep_step(tape, implementation)
        tape.keep(parameter.size_bytes)


def _sgd(tape: Tape, step: Step) -> None:
    momentum, decays = "momentum" in step.options, "weight_decay" in step.options
    nesterov = momentum and "nesterov" in step.options
    if step.implementation == FUSED:
        if momentum:
            for parameter in _without_state(step):
                tape.keep(parameter.size_bytes)
        return
    if step.implementation == LOOP:
        with tape.frame("grad") as frame:
            for parameter in step.parameters:
                # grad = grads[i] lets go of the last one's before anything is allocated
                frame.drop("grad")
                if decays:
                    frame.let("grad", tape.new(parameter.size_bytes))
                if momentum and parameter.name in step.fresh:
                    tape.keep(parameter.size_bytes)
                if nesterov:
                    frame.let("grad", tape.new(parameter.size_bytes))
                elif momentum:
                    frame.drop("grad")
        return
    with tape.frame("device_grads") as frame:
        for parameters in step.lists():
            frame.drop("device_grads")
            if decays:
                frame.let("device_grads", *_like(tape, parameters))
            if momentum:
                for parameter in parameters:
                    if parameter.name in step.fresh:
                        tape.keep(parameter.size_bytes)
                if not nesterov:
                    frame.drop("device_grads")


def _adam(tape: Tape, step: Step) -> None:
    moments = 3 if "amsgrad" in step.options else 2
    decays = "weight_decay" in step.options
    for parameter in _without_state(step):
        _keep_step(tape, step.implementation)
        for _ in range(moments):
            tape.keep(parameter.size_bytes)
    if step.implementation == LOOP:
        with tape.frame("grad", "denom") as frame:
            for parameter in step.parameters:
                frame.drop("grad")
                if decays:
                    frame.let("grad", tape.new(parameter.size_bytes))
                root = tape.hold(tape.new(parameter.size_bytes))
                quotient = tape.new(parameter.size_bytes)
                tape.release([root])
                frame.let("denom", quotient)
    elif step.implementation == FOREACH:
        with tape.frame("device_grads", "exp_avg_sq_sqrt") as frame:
            for parameters in step.lists():
                if decays:
                    frame.let("device_grads", *_like(tape, parameters))
                    frame.drop("device_grads")
                frame.let("exp_avg_sq_sqrt", *_like(tape, parameters))


def _adamw(tape: Tape, step: Step) -> None:
    # weight decay is decoupled: it multiplies the parameters in place
    _adam(tape, Step(step.parameters, step.fresh, step.implementation, step.options - {"weight_decay"}))


def _rmsprop(tape: Tape, step: Step) -> None:
    averages = 1 + ("momentum" in step.options) + ("centered" in step.options)
    decays = "weight_decay" in step.options
    for parameter in _without_state(step):
        for _ in range(averages):
            tape.keep(parameter.size_bytes)
    if step.implementation == LOOP:
        with tape.frame("grad", "avg") as frame:
            for parameter in step.parameters:
                frame.drop("grad")
                if decays:
                    frame.let("grad", tape.new(parameter.size_bytes))
                frame.let("avg", tape.new(parameter.size_bytes))
        return
    with tape.frame("grouped_grads", "avg") as frame:
        for parameters in step.lists():
            frame.drop("grouped_grads")
            if decays:
                frame.let("grouped_grads", *_like(tape, parameters))
            frame.let("avg", *_like(tape, parameters))


def _adagrad(tape: Tape, step: Step) -> None:
    decays = "weight_decay" in step.options
    if step.implementation == LOOP:
        with tape.frame("grad", "std") as frame:
            for parameter in step.parameters:
                frame.drop("grad")
                if decays:
                    frame.let("grad", tape.new(parameter.size_bytes))
                frame.let("std", tape.new(parameter.size_bytes))
    elif step.implementation == FOREACH:
        with tape.frame("device_grads", "std", "numerator") as frame:
            for parameters in step.lists():
                frame.drop("device_grads")
                if decays:
                    device_grads = frame.let("device_grads", *_like(tape, parameters))
                frame.let("std", *_like(tape, parameters))
                frame.let("numerator", *(device_grads if decays else _like(tape, parameters)))


def _adafactor(tape: Tape, step: Step) -> None:
    for parameter in _without_state(step):
        if _is_matrix(parameter):
            tape.keep(_row_bytes(parameter))
            tape.keep(_column_bytes(parameter))
        else:
            tape.keep(parameter.size_bytes)
    if step.implementation == LOOP:
        with tape.frame("row_mean", "col_mean", "var_estimate", "grad_squared", "update") as frame:
            for parameter in step.parameters:
                _read_norm(tape, step, parameter)
                if _is_matrix(parameter):
                    frame.let("row_mean", _summed(tape, step, parameter, _shape(parameter), -1))
                    frame.let("col_mean", _summed(tape, step, parameter, _shape(parameter), -2))
                    estimate = frame.let("var_estimate", tape.new(parameter.size_bytes))
                    tape.release([tape.hold(_mean_of_rows(tape, step, parameter))])
                else:
                    frame.let("grad_squared", tape.new(parameter.size_bytes))
                    estimate = frame.let("var_estimate", tape.new(parameter.size_bytes))
                frame.let("update", *estimate)
                _read_norm(tape, step, parameter)
        return
    with tape.frame(
        "row_means", "col_means", "var_estimates", "updates", "row_var_means", "squares"
    ) as frame:
        for dtype_list in step.lists():
            for parameters in _by_rank(dtype_list):
                for parameter in parameters:
                    _read_norm(tape, step, parameter)
                if _is_matrix(parameters[0]):
                    for name, axis in (("row_means", -1), ("col_means", -2)):
                        frame.let(
                            name, *[_summed(tape, step, each, _shape(each), axis) for each in parameters]
                        )
                        frame.drop(name)
                    estimates = frame.let("var_estimates", *_like(tape, parameters))
                    frame.let("row_var_means", *[_mean_of_rows(tape, step, each) for each in parameters])
                    frame.drop("row_var_means")
                else:
                    frame.let("squares", *_like(tape, parameters))
                    frame.drop("squares")
                    estimates = frame.let("var_estimates", *_like(tape, parameters))
                frame.let("updates", *estimates)
                for parameter in parameters:
                    _read_norm(tape, step, parameter)


def _adadelta(tape: Tape, step: Step) -> None:
    decays = "weight_decay" in step.options
    _keep_moments(tape, step, 2)
    if step.implementation == LOOP:
        with tape.frame("grad", "std", "delta") as frame:
            for parameter in step.parameters:
                frame.drop("grad")
                if decays:
                    frame.let("grad", tape.new(parameter.size_bytes))
                frame.let("std", tape.new(parameter.size_bytes))
                frame.let("delta", tape.new(parameter.size_bytes))
        return
    with tape.frame("device_grads", "std", "deltas") as frame:
        for parameters in step.lists():
            frame.drop("device_grads")
            if decays:
                frame.let("device_grads", *_like(tape, parameters))
            frame.let("std", *_like(tape, parameters))
            frame.let("deltas", *_like(tape, parameters))


def _adamax(tape: Tape, step: Step) -> None:
    decays = "weight_decay" in step.options
    _keep_moments(tape, step, 2)
    if step.implementation == LOOP:
        with tape.frame("grad") as frame:
            for parameter in step.parameters:
                frame.drop("grad")
                if decays:
                    frame.let("grad", tape.new(parameter.size_bytes))
                tape.flash(parameter.size_bytes)  # grad.abs()
        return
    with tape.frame("grouped_grads") as frame:
        for parameters in step.lists():
            # with weight decay, of the decayed gradients themselves
            frame.drop("grouped_grads")
            frame.let("grouped_grads", *_like(tape, parameters))


def _nadam(tape: Tape, step: Step) -> None:
    decays = "weight_decay" in step.options
    _keep_moments(tape, step, 2)
    if step.implementation == LOOP:
        with tape.frame("grad", "denom") as frame:
            for parameter in step.parameters:
                frame.drop("grad")
                if decays:
                    frame.let("grad", tape.new(parameter.size_bytes))
                quotient = tape.hold(tape.new(parameter.size_bytes))
                root = tape.new(parameter.size_bytes)
                tape.release([quotient])
                frame.let("denom", root)
        return
    with tape.frame("grouped_grads", "exp_avg_sq_sqrt") as frame:
        for parameters in step.lists():
            frame.drop("grouped_grads")
            if decays:
                frame.let("grouped_grads", *_like(tape, parameters))
            frame.let("exp_avg_sq_sqrt", *_like(tape, parameters))


def _radam(tape: Tape, step: Step) -> None:
    _keep_moments(tape, step, 2)
    with tape.frame("grouped_grads", "buffer") as frame:
        for parameters in step.lists():
            if "weight_decay" in step.options:
                frame.let("grouped_grads", *_like(tape, parameters))
                frame.drop("grouped_grads")
            frame.let("buffer", *_like(tape, parameters))


def _asgd(tape: Tape, step: Step) -> None:
    decays = "weight_decay" in step.options
    for parameter in _without_state(step):
        tape.keep(_SCALAR_BYTES)  # step, on the device unlike that of the others
        eta = tape.hold(tape.new(_SCALAR_BYTES))
        tape.keep(_SCALAR_BYTES)
        tape.release([eta])
        tape.keep(_SCALAR_BYTES)  # mu
        tape.keep(parameter.size_bytes)
    if step.implementation == LOOP:
        with tape.frame("grad") as frame:
            for parameter in step.parameters:
                frame.drop("grad")
                if decays:
                    frame.let("grad", tape.new(parameter.size_bytes))
        return
    with tape.frame("intermediate", "new_etas", "new_mus") as frame:
        for parameters in step.lists():
            for _ in range(2):
                frame.let("intermediate", *_like(tape, parameters))
                frame.drop("intermediate")
            frame.let("new_etas", *[tape.new(_SCALAR_BYTES) for _ in parameters])
            frame.let("new_mus", *[tape.new(_SCALAR_BYTES) for _ in parameters])


def _rprop(tape: Tape, step: Step) -> None:
    _keep_moments(tape, step, 2)
    with tape.frame("signs", "sign", "grad_signs") as frame:
        for parameters in step.lists():
            signs = frame.let("signs", *_like(tape, parameters))
            for parameter in parameters:
                for _ in range(3):
                    tape.flash(_mask_bytes(parameter))
            frame.let("sign", signs[-1])  # the variable of a loop over them
            for parameter in parameters:
                mask = tape.hold(tape.new(_mask_bytes(parameter)))
                chosen = tape.hold(tape.new(parameter.size_bytes))
                tape.release([mask])
                tape.release([chosen])
            frame.drop("signs")
            frame.let("grad_signs", *_like(tape, parameters))


ALGORITHMS = {
    "sgd": Algorithm(_sgd, (FOREACH, LOOP, FUSED), ("momentum", "nesterov", "weight_decay")),
    "adam": Algorithm(_adam, (FOREACH, LOOP, FUSED), ("amsgrad", "weight_decay")),
    "adamw": Algorithm(_adamw, (FOREACH, LOOP, FUSED), ("amsgrad", "weight_decay")),
    "adafactor": Algorithm(_adafactor, (LOOP, FOREACH)),
    "rmsprop": Algorithm(_rmsprop, (FOREACH, LOOP), ("momentum", "centered", "weight_decay")),
    "adagrad": Algorithm(_adagrad, (FOREACH, LOOP, FUSED), ("weight_decay",), state_at_construction=True),
    "adadelta": Algorithm(_adadelta, (FOREACH, LOOP), ("weight_decay",)),
    "adamax": Algorithm(_adamax, (FOREACH, LOOP), ("weight_decay",)),
    "nadam": Algorithm(_nadam, (FOREACH, LOOP), ("weight_decay",)),
    "radam": Algorithm(_radam, (FOREACH,), ("weight_decay",)),
    "asgd": Algorithm(_asgd, (FOREACH, LOOP), ("weight_decay",)),
    "rprop": Algorithm(_rprop, (FOREACH,)),
}
"""By the name of the command line."""


def _without_state(step: Step) -> list[Parameter]:
    return [parameter for parameter in step.parameters if parameter.name in step.fresh]


def _keep_moments(tape: Tape, step: Step, moments: int) -> None:
    for parameter in _without_state(step):
        for _ in range(moments):
            tape.keep(parameter.size_bytes)


def _keep_step(tape: Tape, implementation: str) -> None:
    if implementation == FUSED:
        tape.keep(_SCALAR_BYTES)


def _mask_bytes(parameter: Parameter) -> int:
    """Return the size of a bool tensor of the parameter's shape."""
    return parameter.size_bytes // ITEM_BYTES.get(parameter.dtype, 4)


def _like(tape: Tape, parameters: Sequence[Parameter]) -> list[int]:
    return [tape.new(parameter.size_bytes) for parameter in parameters]


def _by_rank(parameters: Sequence[Parameter]) -> list[list[Parameter]]:
    """Separate matrices and vectors, in order of first appearance."""
    apart: dict[bool, list[Parameter]] = {}
    for parameter in parameters:
        apart.setdefault(_is_matrix(parameter), []).append(parameter)
    return list(apart.values())


def _shape(parameter: Parameter) -> tuple[int, ...]:
    if parameter.shape is None:
        raise TraceError(
            f"Adafactor's state cannot be sized: the shape of {parameter.name} at this size is not recorded; "
            "capture the script at this size"
        )
    return parameter.shape


def _bytes_of(parameter: Parameter, shape: Sequence[int]) -> int:
    """Return the size of a tensor of the parameter's dtype."""
    elements = prod(_shape(parameter))
    return parameter.size_bytes // elements * prod(shape) if elements else 0


def _row_bytes(parameter: Parameter) -> int:
    return _bytes_of(parameter, _shape(parameter)[:-1])


def _column_bytes(parameter: Parameter) -> int:
    shape = _shape(parameter)
    return _bytes_of(parameter, (*shape[:-2], shape[-1]))


def _summed(tape: Tape, step: Step, parameter: Parameter, shape: Sequence[int], *axes: int) -> int:
    """Allocate the sum of a contiguous tensor of the parameter's dtype over some axes, or over all, and what
    the kernel takes while it runs."""
    summed = {axis % len(shape) for axis in axes} if axes else range(len(shape))
    value = tape.new(_bytes_of(parameter, [size for axis, size in enumerate(shape) if axis not in summed]))
    staging = staging_on(step.device, shape, axes, parameter.dtype)
    if any(staging):
        tape.release([tape.hold(tape.new(size_bytes)) for size_bytes in staging])
    return value


def _mean_of_rows(tape: Tape, step: Step, parameter: Parameter) -> int:
    return _summed(tape, step, parameter, (*_shape(parameter)[:-1], 1), -2)


def _read_norm(tape: Tape, step: Step, parameter: Parameter) -> None:
    """Take the norm of a tensor of the parameter's shape, which the host reads."""
    tape.release([tape.hold(_summed(tape, step, parameter, _shape(parameter)))])


def _is_matrix(parameter: Parameter) -> bool:
    return len(_shape(parameter)) > 1

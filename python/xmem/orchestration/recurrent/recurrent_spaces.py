"""Formulas for the memory that cuDNN needs for a recurrent layer."""

from __future__ import annotations

from xmem.devices.description import Device
from xmem.devices.gpus import UNKNOWN_IS_LIKE, find_device
from xmem.records import dataclass

_LSTM_GATES, _GRU_GATES = 4, 3
_AMPERE = 8
"""Major compute capability; Ada's too."""
_PSEUDO_LAYER_BYTES = 8 << 20
_ALIGNMENT_BYTES = 32
_HEAD_BYTES = 256
_GATED_STEPS = 256
"""In one direction, the gates of so many steps are computed at once."""
_STATES_FORWARD = {(4, 1): 6, (3, 1): 3, (1, 1): 1, (4, 2): 16, (3, 2): 10, (1, 2): 6}
_STATES_BACKWARD = {(4, 1): 3, (3, 1): 1, (1, 1): 1, (4, 2): 10, (3, 2): 6, (1, 2): 6}
"""By gates and directions: states of one step that each layer works on."""
_STEPS_AT_ONCE = ((1, 32), (8, 16), (16, 8), (96, 4))
"""Most sequences, and how many steps a layer above the first takes at a time in the backward; else 2."""
_STEPS_OF_LONG, _LONG_STEPS = 8, 128
"""From compute capability 8.0 on it takes so many at least, of so long sequences."""
_PERSISTENT_HIDDEN = {4: (192, 128), 3: (192, 128), 1: (384, 256)}
"""By gates, largest state for which PyTorch asks for kernels that stay on the GPU, forward and backward."""
_PERSISTENT_FORWARD = {4: 16, 3: 12, 1: 4}
_PERSISTENT_BACKWARD = {4: 12, 3: 14, 1: 9}
"""By gates, states of every step that these work on beside what the others do."""
_PERSISTENT_STATES = {(4, 1): 4, (3, 1): 2, (1, 1): 2, (4, 2): 10, (3, 2): 6, (1, 2): 6}
"""By gates and directions, in both passes: states of one step that each layer works on."""
_FEWEST_STEPS_BETWEEN = 8
_GENERATOR_BYTES_PER_THREAD = 24
_LENGTHS_BYTES = 8
_LENGTHS_BYTES_BEFORE_9_8 = 12
"""For each sequence, where its steps lie."""


@dataclass(frozen=True)
class RecurrentCall:
    """A call of a recurrent layer, with everything that determines the sizes.

    Attributes:
        gates: Gates of a cell: 4 for an LSTM, 3 for a GRU, 1 for a plain one.
        item_bytes: Bytes of an element of all tensors.
        steps: Steps of all sequences together.
        longest: Steps of the longest sequence.
        batch: Number of sequences.
        input_width: Elements of a step's input.
        hidden: Elements of a cell's state.
        projection: Elements of an LSTM's projected state, 0 = none.
        layers: Number of stacked layers.
        directions: 1, or 2 for a bidirectional layer.
        biases: Whether the weights have any.
        training: Whether a backward follows.
        drops: Whether elements between layers are dropped.
        by_sequence: Whether the input lies in order of sequences (`batch_first`), not of time.
        packed: Whether the sequences are packed, so that none is padded.
        has_persistent: Whether cuDNN has kernels that stay on the GPU for its type: float32 and float16.
        weights_bytes: Size of each weight and bias, in order.
    """

    gates: int
    item_bytes: int
    steps: int
    longest: int
    batch: int
    input_width: int
    hidden: int
    projection: int
    layers: int
    directions: int
    biases: bool
    training: bool
    drops: bool
    by_sequence: bool
    packed: bool
    has_persistent: bool
    weights_bytes: tuple[int, ...]

    @property
    def is_lstm(self) -> bool:
        """Whether a cell has a state of its own beside its output."""
        return self.gates == _LSTM_GATES

    @property
    def pseudo_layers(self) -> int:
        """Layers, counted once for each direction."""
        return self.layers * self.directions

    @property
    def output_width(self) -> int:
        """Elements of a step's output in one direction."""
        return self.projection or self.hidden

    def persists(self, *, backward: bool) -> bool:
        """Whether PyTorch asks for kernels for small states (``get_algo`` of ``cudnn/RNN.cpp``)."""
        fits = self.hidden <= _PERSISTENT_HIDDEN[self.gates][backward]
        return self.has_persistent and fits and not self.packed and not self.projection

    @property
    def input_bytes(self) -> int:
        """Size of the input."""
        return self.steps * self.input_width * self.item_bytes

    @property
    def result_bytes(self) -> int:
        """Size of the outputs of all steps."""
        return self.steps * self.output_width * self.directions * self.item_bytes

    @property
    def state_bytes(self) -> tuple[int, ...]:
        """Sizes of the last outputs, and of the last cells of an LSTM."""
        widths = (self.output_width, self.hidden) if self.is_lstm else (self.output_width,)
        return tuple(self.pseudo_layers * self.batch * width * self.item_bytes for width in widths)

    @property
    def matrix_bytes(self) -> int:
        """Size of the matrices of all layers, without biases."""
        elements = 0
        for layer in range(self.layers):
            width = self.output_width * self.directions if layer else self.input_width
            elements += self.gates * self.hidden * (width + self.output_width)
            elements += self.projection * self.hidden
        return elements * self.directions * self.item_bytes

    @property
    def weight_space_bytes(self) -> int:
        """Size of cuDNN's block of all weights: it has two biases per gate, even if the layer has none."""
        biases = self.pseudo_layers * 2 * self.gates * self.hidden
        return self.matrix_bytes + biases * self.item_bytes


def reserve_bytes(call: RecurrentCall) -> int:
    """Return the memory that a forward in training keeps for its backward.

    For every step the gates and the cell of an LSTM (with a projection also what goes into it and comes out),
    twice the gates of a GRU, the state of a plain cell; between layers the output, and under dropout a bit
    for each of its elements, padding included; 256 bytes. What cuDNN answers for its standard algorithm, or
    up to 64 bytes less (`tests/phantom/machine/test_recurrent_spaces.py`; 9.1, 9.8, 9.20).
    """
    kept = {_LSTM_GATES: 5, _GRU_GATES: 6}.get(call.gates, 1) * call.hidden
    if call.projection:
        kept += call.hidden + call.projection
    between = (call.layers - 1) * call.directions
    step_bytes = call.steps * call.item_bytes
    size_bytes = _aligned(step_bytes * call.pseudo_layers * kept) + _aligned(
        step_bytes * between * call.hidden
    )
    if call.drops:
        elements = call.longest * call.batch * call.directions * call.output_width
        size_bytes += between * _aligned(-(-elements // 8))
    return size_bytes + _HEAD_BYTES


def work_bytes(
    call: RecurrentCall, capability: tuple[int, int], *, backward: bool = False, before_9_8: bool = False
) -> int:
    """Return the memory that a call takes while it runs.

    8 MiB per layer and direction (on 8.x only of a single layer or two directions), the matrices, what the
    wider of both passes works on, and copies of all that goes in and comes out, without padding, unless the
    sequences are packed. What cuDNN answers, or up to 64 bytes less
    (`tests/phantom/machine/test_recurrent_spaces.py`), and what 9.19 took on an H200 (bench/gpu/results,
    libraries).

    Args:
        call: The call.
        capability: Compute capability of the GPU.
        backward: Whether it is the backward, for which PyTorch asks for other kernels than for the forward.
        before_9_8: Whether the cuDNN is an older one, as before torch 2.8: 9.1 notes more of each sequence.
    """
    persists = call.persists(backward=backward)
    in_forward = _forward_bytes(call, persists=persists)
    in_backward = _backward_bytes(call, capability, persists=persists) if call.training else 0
    has_areas = capability[0] != _AMPERE or call.layers == 1 or call.directions == 2
    areas_bytes = call.pseudo_layers * _PSEUDO_LAYER_BYTES if has_areas else 0
    fixed = _aligned(areas_bytes + call.matrix_bytes + _HEAD_BYTES)
    if call.packed:
        return fixed + max(in_forward, in_backward)
    copied = sum(_aligned(size) for size in (call.input_bytes, call.result_bytes))
    copied += sum(2 * _aligned(size) for size in call.state_bytes)
    with_gradients = in_backward + 2 * copied if call.training else 0
    lengths = _LENGTHS_BYTES_BEFORE_9_8 if before_9_8 else _LENGTHS_BYTES
    return fixed + max(in_forward + copied, with_gradients) + _aligned(lengths * call.batch)


def _forward_bytes(call: RecurrentCall, *, persists: bool) -> int:
    """Return the size of gates and states, and in two directions of the outputs of either."""
    projected = 1 if call.projection else 0
    if call.directions == 1:
        at_once = call.steps if persists else min(call.steps, _GATED_STEPS * call.batch)
        parts = [call.gates * at_once, projected * call.steps, call.steps if call.drops else 0]
    else:
        parts = [2 * call.gates * call.steps, (4 + 2 * projected) * call.steps]
    if persists:
        parts.append(_PERSISTENT_FORWARD[call.gates] * call.steps)
    return _parts_bytes(call, parts, _PERSISTENT_STATES if persists else _STATES_FORWARD)


def _backward_bytes(call: RecurrentCall, capability: tuple[int, int], *, persists: bool) -> int:
    """Return the size of gradients; in one direction, layers above the first take some steps at a time."""
    projected = 1 if call.projection else 0
    given = _aligned(call.directions**2 * max(call.input_bytes, call.steps * call.hidden * call.item_bytes))
    if call.directions == 2:
        parts = [((2 if call.layers == 1 else 4) + 2 * projected) * call.steps]
    elif persists:
        parts = [(1 if call.layers == 1 else 2) * call.steps]
    else:
        parts = [_steps_at_once(call, capability), projected * call.steps]
    if persists:
        parts.append(_PERSISTENT_BACKWARD[call.gates] * call.steps)
    return given + _parts_bytes(call, parts, _PERSISTENT_STATES if persists else _STATES_BACKWARD)


def _parts_bytes(call: RecurrentCall, parts: list[int], states: dict[tuple[int, int], int]) -> int:
    """Return the size of parts that hold states of so many steps, and of the states of each layer."""
    width_bytes = call.hidden * call.item_bytes
    of_layers = states[call.gates, call.directions] * call.layers * call.batch
    return sum(_aligned(steps * width_bytes) for steps in (*parts, of_layers))


def _steps_at_once(call: RecurrentCall, capability: tuple[int, int]) -> int:
    if call.layers == 1:
        return call.steps
    found = next((steps for most, steps in _STEPS_AT_ONCE if call.batch <= most), 2)
    if capability[0] >= _AMPERE and call.longest >= _LONG_STEPS:
        found = max(found, _STEPS_OF_LONG)
    return min(call.steps, (found * call.layers + max(found, _FEWEST_STEPS_BETWEEN)) * call.batch)


def dropout_state_bytes(device: Device | None) -> int:
    """Return the size of the state of cuDNN's random generator: six words for each thread that the GPU can
    hold at once; an A100's if nothing is known.
    """
    if device is None or device.multiprocessors < 0:
        device = find_device(UNKNOWN_IS_LIKE)
    threads = device.multiprocessors * device.attributes.get("MaxThreadsPerMultiProcessor", 2048)
    return threads * _GENERATOR_BYTES_PER_THREAD


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES

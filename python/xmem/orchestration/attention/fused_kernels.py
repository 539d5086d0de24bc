"""What CUDA's attention kernels allocate, call by call: the choice of the kernel, its result and its
workspaces.

Sizes were read off the requests that PyTorch 2.6.0 and 2.12.0 make for one call at a time on the phantom GPU
(RTX 2080 Ti to B200, float32, float16, bfloat16, widths of 32 to 264), and agree with the sources named at
each function.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from xmem.orchestration.tape import Tape
from xmem.records import dataclass
from xmem.run.target import Target

_FLOAT = 4


class Kernel(Enum):
    """A kernel behind `scaled_dot_product_attention`."""

    FLASH = "flash"
    CUDNN = "cuDNN"
    EFFICIENT = "memory-efficient"
    MATH = "math"


# `at::Context::sdp_priority_order` (2.6 to 2.13).
DEFAULT_ORDER = (Kernel.FLASH, Kernel.EFFICIENT, Kernel.MATH, Kernel.CUDNN)


@dataclass(frozen=True)
class AttentionCall:
    """One call of `scaled_dot_product_attention`.

    Attributes:
        item_bytes: Bytes of an element of query, key and value.
        bfloat16: Whether the elements are bfloat16.
        batch: Number of sequences.
        heads: Heads of the query.
        key_heads: Heads of key and value; fewer than ``heads`` in grouped-query attention.
        length: Length of the query.
        key_length: Length of key and value.
        width: Width of a head of query and key.
        value_width: Width of a head of value.
        by_position: Whether the query lies in memory position by position, then head by head.
        mask_elements: Elements of the mask as given, 0 = no mask.
        bool_mask: Whether the mask marks positions that count, rather than what is added to them.
        causal: Whether the call asks for the causal mask without giving a mask.
        dropout: Whether some attention weights are dropped.
        scattered: Whether the elements of a head do not lie side by side, which no fused kernel reads.
        allowed: Kernels that the script allows, by priority.
        in_order: Whether that priority counts, rather than CUDA's own.
    """

    item_bytes: int
    bfloat16: bool
    batch: int
    heads: int
    key_heads: int
    length: int
    key_length: int
    width: int
    value_width: int
    by_position: bool = True
    mask_elements: int = 0
    bool_mask: bool = False
    causal: bool = False
    dropout: bool = False
    scattered: bool = False
    allowed: tuple[Kernel, ...] = DEFAULT_ORDER
    in_order: bool = False

    @property
    def query_bytes(self) -> int:
        """Size of the query, and of its gradient."""
        return self.batch * self.heads * self.length * self.width * self.item_bytes

    @property
    def key_bytes(self) -> int:
        """Size of the key, and of its gradient."""
        return self.batch * self.key_heads * self.key_length * self.width * self.item_bytes

    @property
    def value_bytes(self) -> int:
        """Size of the value, and of its gradient."""
        return self.batch * self.key_heads * self.key_length * self.value_width * self.item_bytes

    @property
    def result_bytes(self) -> int:
        """Size of the result, and of its gradient."""
        return self.batch * self.heads * self.length * self.value_width * self.item_bytes

    @property
    def rows(self) -> int:
        """Rows of attention weights."""
        return self.batch * self.heads * self.length


def kernel_of(call: AttentionCall, target: Target) -> Kernel:
    """Return the kernel that CUDA takes in training: the first that takes the call, of those allowed.

    Source: `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`, `select_sdp_backend` (2.6, 2.12). cuDNN
    comes first on compute capability 9 and 10 where PyTorch ships cuDNN newer than 9.15, seen in 2.12.
    """
    tried = call.allowed
    major, _ = target.compute_capability
    if Kernel.CUDNN in tried and not call.in_order and major in (9, 10) and target.torch_version >= (2, 12):
        tried = (Kernel.CUDNN, *tried)
    for kernel in tried:
        if _takes(kernel, call, target):
            return kernel
    return Kernel.MATH  # on a GPU, the script would fail


def _takes(kernel: Kernel, call: AttentionCall, target: Target) -> bool:
    if kernel is Kernel.MATH:
        return True
    if call.scattered:
        return False
    half = call.item_bytes == 2
    major, _ = target.compute_capability
    if kernel is Kernel.CUDNN:
        widest = 256 if major == 9 else 128
        eights = call.width % 8 == 0 and call.value_width % 8 == 0
        return half and major >= 8 and not call.dropout and eights and call.width <= widest
    if kernel is Kernel.FLASH:
        little_shared_memory = _little_shared_memory(target)
        too_wide = little_shared_memory and (192 < call.width <= 224 or (call.width > 224 and call.dropout))
        uneven = call.causal and call.length != call.key_length
        fits = call.width == call.value_width and call.width <= 256
        return half and major >= 8 and call.mask_elements == 0 and fits and not too_wide and not uneven
    multiple = 8 if half else 4
    fits = call.width % multiple == 0 and call.value_width % multiple == 0
    whole = major >= 8 or not call.bfloat16
    return call.item_bytes <= _FLOAT and fits and whole and call.key_heads == call.heads


def lies_by_position(call: AttentionCall, kernel: Kernel) -> bool:
    """Return whether the result lies in memory position by position, so that the usual transposition copies
    nothing.

    Flash and cuDNN give it the layout of the query (`at::empty_like(q)`, `alloc_with_matching_layout`).
    """
    return kernel is Kernel.EFFICIENT or _padded(call).by_position


@dataclass
class Forward:
    """Blocks of the forward, as numbered on its tape.

    Attributes:
        result: The result.
        saved: Blocks that the backward needs and nobody else holds, in the order in which it releases them.
    """

    result: int
    saved: list[int]


def write_forward(tape: Tape, call: AttentionCall, kernel: Kernel, target: Target) -> Forward:
    """Write what a fused kernel allocates in the forward.

    Sources: `attention.cpp` (`convert_boolean_attn_mask`, `pad_bias`), `cuda/attention.cu`
    (`_efficient_attention_forward`: log-sum-exp of ``batch x heads x length up to a multiple of 32`` floats,
    an accumulator where half precision is wider than 128), `cuda/flash_attn/flash_api.cpp` (log-sum-exp;
    from 2.7 on, the state of the random generator), `cudnn/MHA.cpp`.
    """
    saved = _write_mask(tape, call, kernel)
    if kernel is Kernel.CUDNN:
        seed, offset = (tape.hold(tape.new(8)) for _ in range(2))
        result = tape.hold(tape.new(call.result_bytes))
        log_sums = tape.hold(tape.new(call.rows * _FLOAT))
        if target.compute_capability[0] == 9:
            tape.flash(256)
        return Forward(result, [*saved, log_sums, seed, offset])
    if kernel is Kernel.EFFICIENT:
        result = tape.hold(tape.new(call.result_bytes))
        padded_rows = call.batch * call.heads * _up(call.length, 32)
        log_sums = tape.hold(tape.new(padded_rows * _FLOAT))
        if call.item_bytes < _FLOAT and call.value_width > 128:
            tape.flash(call.rows * call.value_width * _FLOAT)
        return Forward(result, [*saved, log_sums])
    padded = _padded(call)
    if padded is not call:
        for size_bytes in (padded.query_bytes, padded.key_bytes, padded.value_bytes):
            saved.append(tape.hold(tape.new(size_bytes)))
    result = tape.hold(tape.new(padded.result_bytes))
    saved.append(tape.hold(tape.new(call.rows * _FLOAT)))
    if target.torch_version >= (2, 7):
        saved += [tape.hold(tape.new(16)), tape.hold(tape.new(8))]
        if call.dropout:
            tape.flash(16)
    return Forward(result, saved)


@dataclass
class Backward:
    """Blocks of the backward, as numbered on its tape.

    Attributes:
        query, key, value: Their gradients.
    """

    query: int
    key: int
    value: int


def write_backward(tape: Tape, call: AttentionCall, kernel: Kernel, target: Target) -> Backward:
    """Write what a fused kernel allocates in the backward; the gradients stay, the rest is freed at its end.

    Sources: `cuda/attention_backward.cu` (flash: gradient and result are made contiguous; sum of each row,
    accumulator of the query's gradient; memory-efficient: sum of each row, in float32 from a product that
    Python could have written, then the kernel's workspace), `flash_api.cpp` (`mha_bwd`), `cudnn/MHA.cpp`.
    """
    if kernel is Kernel.FLASH:
        return _write_flash_backward(tape, call, target)
    query, key, value = (
        tape.hold(tape.new(size_bytes)) for size_bytes in (call.query_bytes, call.key_bytes, call.value_bytes)
    )
    sums_bytes = call.rows * _FLOAT
    if kernel is Kernel.CUDNN:
        accumulated = call.rows * call.width * _FLOAT
        accumulator = accumulated + sums_bytes
        if target.compute_capability[0] == 9:
            accumulator += 256
        if target.compute_capability[0] in (8, 12):  # only where the script selects it
            accumulator += accumulated + 128
        if call.key_heads != call.heads:
            accumulator += (call.key_bytes + call.value_bytes) * call.heads // call.key_heads
        tape.flash(accumulator)
        return Backward(query, key, value)
    if call.item_bytes == _FLOAT:
        product = tape.hold(tape.new(call.result_bytes))
        strided_sums = tape.hold(tape.new(sums_bytes))
        sums = tape.hold(tape.new(sums_bytes))
        tape.release([strided_sums])
        tape.release([product])
    else:
        sums = tape.hold(tape.new(sums_bytes))
    workspace = tape.hold(tape.new(efficient_workspace_bytes(call, target)))
    tape.release([sums])
    tape.release([workspace])
    return Backward(query, key, value)


def _write_flash_backward(tape: Tape, given: AttentionCall, target: Target) -> Backward:
    call = _padded(given)
    copies = []
    if call is not given:
        copies.append(tape.hold(tape.new(call.result_bytes)))  # gradient of the slice that the script got
    if not call.by_position:
        copies += [tape.hold(tape.new(call.result_bytes)) for _ in range(2)]
    query, key, value = (
        tape.hold(tape.new(size_bytes)) for size_bytes in (call.query_bytes, call.key_bytes, call.value_bytes)
    )
    padded_rows = call.batch * call.heads * _up(call.length, 128)
    sums = tape.hold(tape.new(padded_rows * _FLOAT))
    rounding = 64 if call.width > 128 and target.torch_version >= (2, 7) else 32
    accumulator = tape.hold(tape.new(padded_rows * _up(call.width, rounding) * _FLOAT))
    if call.key_heads != call.heads:
        groups = call.heads // call.key_heads
        expanded = [tape.hold(tape.new(size * groups)) for size in (call.key_bytes, call.value_bytes)]
        tape.release(expanded)
    tape.release([sums, accumulator])
    tape.release(copies)
    if call is given:
        return Backward(query, key, value)
    narrow = []
    for wide, size_bytes in (
        (value, given.value_bytes),
        (key, given.key_bytes),
        (query, given.query_bytes),
    ):
        narrow.append(tape.hold(tape.new(size_bytes)))
        tape.release([wide])
    return Backward(narrow[2], narrow[1], narrow[0])


@dataclass(frozen=True)
class _Tiles:
    """How a backward kernel of CUTLASS cuts its work.

    Attributes:
        widest: Widest head that it is made for.
        queries: Positions of the query in a tile.
        keys: Positions of the key in a tile.
        columns: Columns of the query's gradient in a tile.
        accumulates_keys: Whether gradients of key and value are summed in memory.
    """

    widest: int
    queries: int
    keys: int
    columns: int
    accumulates_keys: bool = False


_ANY_WIDTH = 65536
_NARROW = _Tiles(64, 64, 64, 64)
_WIDE_HALF = _Tiles(_ANY_WIDTH, 128, 64, 64, accumulates_keys=True)
_HALF_BY_64 = _Tiles(128, 64, 64, 64, accumulates_keys=True)
_HALF_BY_128 = _Tiles(128, 128, 64, 64)

_FLOAT_TILES: tuple[_Tiles, ...] = (_Tiles(_ANY_WIDTH, 64, 64, 64),)
_FLOAT_TILES_SM80: tuple[_Tiles, ...] = (_NARROW, _Tiles(_ANY_WIDTH, 128, 64, 64))
_HALF_TILES_BEFORE_SM80: tuple[_Tiles, ...] = (_NARROW, _HALF_BY_128, _WIDE_HALF)
_HALF_TILES_SM80: tuple[_Tiles, ...] = (_NARROW, _Tiles(128, 128, 128, 128), _WIDE_HALF)
_HALF_TILES_SM86: tuple[_Tiles, ...] = (_NARROW, _Tiles(96, 128, 64, 64), _HALF_BY_64, _WIDE_HALF)
_HALF_TILES_SM120: tuple[_Tiles, ...] = (_NARROW, _HALF_BY_64, _WIDE_HALF)


def _tiles(call: AttentionCall, target: Target) -> _Tiles:
    """Return the first kernel of `cuda/mem_eff_attention/kernels/cutlassB.h` that is wide enough and whose
    shared memory the GPU has: 163 KiB a block on compute capability 8.0, 9 and 10, 99 KiB on 8.6, 8.9 and 12.
    """
    major, _ = target.compute_capability
    before_sm80, little = major < 8, _little_shared_memory(target)
    if call.item_bytes == _FLOAT:
        table = _FLOAT_TILES if before_sm80 or little else _FLOAT_TILES_SM80
    elif before_sm80:
        table = _HALF_TILES_BEFORE_SM80
    elif not little:
        table = _HALF_TILES_SM80
    else:
        table = _HALF_TILES_SM120 if major == 12 else _HALF_TILES_SM86
    width = max(call.width, call.value_width)
    return next(tiles for tiles in table if width <= tiles.widest)


def efficient_workspace_bytes(call: AttentionCall, target: Target) -> int:
    """Return the workspace of the memory-efficient backward.

    Source: `cuda/mem_eff_attention/kernel_backward.h`, `workspace_size`: for each head a tile of floats with
    16 bytes of locks for each tile of the query's gradient; where gradients of key and value are summed in
    memory, a tile of them for each split of the keys (`attention_backward.cu`: as many as there are tiles of
    keys, at most 200 over all heads).
    """
    tiles = _tiles(call, target)
    per_head = (
        _up(call.length, tiles.queries)
        // tiles.queries
        * (_up(call.width, tiles.columns) // tiles.columns)
        * (tiles.queries * tiles.columns * _FLOAT + 16)
    )
    heads = call.batch * call.heads
    if tiles.accumulates_keys:
        splits = max(1, min(200 // heads, _up(call.key_length, tiles.keys) // tiles.keys))
        widths = _up(call.width, 128) + _up(call.value_width, 128)
        per_head += splits * tiles.keys * widths * _FLOAT
    return heads * per_head


def _write_mask(tape: Tape, call: AttentionCall, kernel: Kernel) -> list[int]:
    """Write the mask as it is saved, empty where it is the script's own."""
    if call.mask_elements == 0:
        return []
    mask = []
    if call.bool_mask:
        numbers = [tape.hold(tape.new(call.item_bytes)) for _ in range(2)]
        mask = [tape.hold(tape.new(call.mask_elements * call.item_bytes))]
        tape.release(numbers)
    if kernel is Kernel.EFFICIENT and call.key_length % 8:
        elements = call.mask_elements // call.key_length * _up(call.key_length, 8)
        padded = [tape.hold(tape.new(elements * call.item_bytes))]
        tape.release(mask)
        mask = padded
    return mask


def _padded(call: AttentionCall) -> AttentionCall:
    """Return the call as flash pads it: heads to a multiple of 8, in copies that lie head by head."""
    if call.width % 8 == 0:
        return call
    width = _up(call.width, 8)
    return replace(call, width=width, value_width=width, by_position=False)


def _little_shared_memory(target: Target) -> bool:
    return target.compute_capability in ((8, 6), (8, 7), (8, 9)) or target.compute_capability[0] == 12


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple

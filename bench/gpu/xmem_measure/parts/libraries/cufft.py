"""Plans of cuFFT and their work areas."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from typing import Any

from xmem_measure.parts.libraries.asked import Functions, Table, wide

# A plan may load a module, and large ones take longer: what is left when the time is over is not asked.
_PATIENCE_S = 25.0
# cudaDataType of the real and the complex numbers.
_FFT_TYPES = {"half": (2, 6), "float": (0, 4), "double": (1, 5)}
_FFT_LENGTHS = (
    *range(2, 130),
    *(
        144,
        160,
        169,
        192,
        200,
        211,
        240,
        243,
        251,
        256,
        257,
        288,
        300,
        320,
        343,
        360,
        384,
        400,
        448,
        480,
        500,
        509,
    ),
    *(
        512,
        521,
        576,
        600,
        625,
        640,
        720,
        729,
        768,
        800,
        900,
        960,
        1000,
        1009,
        1021,
        1024,
        1031,
        1080,
        1152,
        1200,
    ),
    *(
        1280,
        1331,
        1440,
        1500,
        1536,
        1600,
        1728,
        1920,
        2000,
        2039,
        2048,
        2053,
        2187,
        2304,
        2400,
        2401,
        2560,
        3000,
    ),
    *(
        3072,
        3125,
        3600,
        3840,
        4000,
        4093,
        4096,
        4099,
        4608,
        4800,
        5000,
        5120,
        6000,
        6144,
        6561,
        7200,
        7680,
        8000,
    ),
    *(
        8191,
        8192,
        8209,
        9600,
        10000,
        12000,
        12288,
        14400,
        15625,
        16000,
        16381,
        16384,
        16411,
        19200,
        20000,
        22050,
    ),
    *(
        24000,
        24576,
        25000,
        32000,
        32768,
        32771,
        40000,
        44100,
        48000,
        50000,
        64000,
        65536,
        65537,
        80000,
        96000,
    ),
    *(100000, 110250, 131072, 160000, 200000, 240000, 262144, 320000, 400000, 441000, 480000, 500000, 524288),
    *(1000000, 1048576, 1048583, 2000000, 2097152, 4194304),
)
_FFT_BATCHES = (1, 2, 3, 8, 16, 37, 64, 256, 1000)
_FFT_SIDES_2D = (
    4,
    8,
    12,
    16,
    24,
    28,
    32,
    48,
    49,
    53,
    56,
    64,
    80,
    96,
    100,
    112,
    128,
    137,
    160,
    192,
    224,
    240,
    256,
)
_FFT_LARGE_SIDES_2D = (
    320,
    384,
    400,
    448,
    480,
    512,
    521,
    640,
    720,
    768,
    1000,
    1024,
    1080,
    1536,
    1920,
    2048,
    4096,
)
_FFT_SIDES_3D = (4, 8, 10, 16, 24, 32, 37, 48, 53, 64, 80, 96, 100, 128, 192, 256)
_MOST_ELEMENTS = 1 << 31


def tables(config: dict[str, Any]) -> Iterator[Table]:
    library = Functions("libcufft")
    real, complex_ = _FFT_TYPES[config["dtype"]]
    kinds = {"c2c": (complex_, complex_), "r2c": (real, complex_), "c2r": (complex_, real)}
    table = Table(
        "cufftXtMakePlanMany", ("input", "output", "rank", "n0", "n1", "n2", "stride", "batch", "bytes")
    )
    deadline = time.monotonic() + _PATIENCE_S
    for kind in config["kinds"]:
        source, target = kinds[kind]
        for sizes, stride, batch in _transforms(config["rank"], kind):
            if time.monotonic() > deadline:
                break
            answer = _plan_bytes(library, source, target, complex_, sizes, stride, batch)
            padded = [*sizes, *[1] * (3 - len(sizes))]
            table.rows.append([source, target, len(sizes), *padded, stride, batch, answer])
    yield table


def _transforms(rank: int, kind: str) -> Iterator[tuple[list[int], int, int]]:
    """Sizes, the distance of neighbours in the last dimension, and batches."""
    if rank == 1:
        for batch in _FFT_BATCHES:
            for length in _FFT_LENGTHS:
                if length * batch <= _MOST_ELEMENTS // 8:
                    yield [length], 1, batch
        if kind == "c2c":
            # Along a dimension that is not the last: neighbours lie as far apart as there are transforms.
            for batch in (8, 64, 1000):
                for length in _FFT_LENGTHS[::3]:
                    if length * batch <= _MOST_ELEMENTS // 8:
                        yield [length], batch, batch
        return
    sides = (*_FFT_SIDES_2D, *_FFT_LARGE_SIDES_2D) if rank == 2 else _FFT_SIDES_3D
    shapes = [[side] * rank for side in sides]
    shapes += [[a, b] if rank == 2 else [a, b, b] for a, b in zip(sides, sides[3:], strict=False)]
    shapes += [[b, a] if rank == 2 else [b, b, a] for a, b in zip(sides, sides[5:], strict=False)]
    for batch in _FFT_BATCHES[:7]:
        for shape in shapes:
            elements = batch
            for side in shape:
                elements *= side
            if elements <= _MOST_ELEMENTS // 8:
                yield shape, 1, batch


def _plan_bytes(
    library: Functions, source: int, target: int, execution: int, sizes: list[int], stride: int, batch: int
) -> int:
    plan, work = ctypes.c_int(), ctypes.c_size_t()
    if status := library.cufftCreate(ctypes.byref(plan)):
        return -status
    try:
        library.cufftSetAutoAllocation(plan, 0)
        n = (ctypes.c_int64 * len(sizes))(*sizes)
        # Without an embedding the data is dense, and strides count for nothing.
        embedding = None if stride == 1 else n
        distance = wide(1 if stride != 1 else 0)
        layout = (embedding, wide(stride), distance)
        status = library.cufftXtMakePlanMany(
            plan,
            len(sizes),
            n,
            *layout,
            source,
            *layout,
            target,
            wide(batch),
            ctypes.byref(work),
            execution,
        )
    finally:
        library.cufftDestroy(plan)
    return -status if status else work.value

"""Occupancy of launches whose answer is known: worked by hand, or written by a profiler."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from xmem.devices.gpus import devices, find_device
from xmem.errors import ConfigError
from xmem.occupancy.calculator import Limiter, filling, kineto_percent, residency
from xmem.occupancy.limits import known_capabilities, limits_of, limits_of_device

SHARED = Path(os.environ.get("XMEM_SHARED", Path(__file__).parents[4] / "shared")) / "data"
KIB = 1024


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "blocks", "limiter"),
    [
        ((9, 0), 256, 32, 0, 8, Limiter.WARPS),  # 64 warps of 8
        ((9, 0), 384, 168, 200 * KIB, 1, Limiter.REGISTERS),  # cuBLAS on Hopper: 12 warps of 5,376 registers
        ((9, 0), 128, 64, 100 * KIB, 2, Limiter.SHARED_MEMORY),  # 2 x 101 KiB of 228
        ((9, 0), 32, 16, 0, 32, Limiter.BLOCKS),
        ((9, 0), 1024, 128, 0, 0, Limiter.NOTHING_FITS),  # 131,072 registers
        ((8, 0), 128, 32, 163 * KIB, 1, Limiter.SHARED_MEMORY),
        ((8, 0), 128, 32, 163 * KIB + 1, 0, Limiter.NOTHING_FITS),
        ((7, 5), 256, 32, 0, 4, Limiter.WARPS),  # 32 warps
        ((7, 0), 128, 32, 96 * KIB, 1, Limiter.SHARED_MEMORY),
        ((8, 6), 1024, 32, 0, 1, Limiter.WARPS),  # 48 warps hold one block of 32
        ((6, 1), 64, 32, 48 * KIB, 2, Limiter.SHARED_MEMORY),
        ((12, 0), 512, 40, 0, 3, Limiter.WARPS),
    ],
)
def test_blocks_that_a_multiprocessor_holds(capability, threads, registers, shared, blocks, limiter) -> None:
    held = residency(limits_of(capability), threads, registers, shared)
    assert (held.active_blocks, held.limiter) == (blocks, limiter)


def test_registers_are_given_to_warps_of_a_sub_partition() -> None:
    # 3 warps of 168 registers: 16,384 registers of a partition hold 3 warps, 12 on all four, so 4 blocks.
    assert residency(limits_of((9, 0)), 96, 168, 0).active_blocks == 4
    # In two halves, as on a P100, 32,768 registers hold 6 warps each.
    assert residency(limits_of((6, 0)), 96, 168, 0).active_blocks == 4
    # 13 warps by the total of 65,536 alone: the partitions' remainders are lost.
    assert residency(limits_of((9, 0)), 32, 150, 0).active_blocks == 12


def test_clusters_that_do_not_fit_whole_are_left_out() -> None:
    # One block a multiprocessor, 132 of them: 16 clusters of 8 use 128.
    held = residency(limits_of((9, 0)), 384, 168, 200 * KIB, cluster_blocks=8, multiprocessors=132)
    assert held.limiter == Limiter.CLUSTER
    assert held.theoretical == pytest.approx(12 / 64 * 128 / 132)


def test_a_partial_last_wave_halves_the_average() -> None:
    # 132 x 4 blocks of 8 warps at a time; one block more begins a second wave.
    limits = limits_of((9, 0))
    held = residency(limits, 256, 64, 0)
    full, one_more = (filling(limits, 132, held, blocks) for blocks in (528, 529))
    assert (full.steady, full.elapsed, full.active, full.tail) == (0.5, 0.5, 0.5, 1.0)
    assert one_more.elapsed == pytest.approx(0.25, abs=1e-3)
    assert one_more.active == pytest.approx(0.497, abs=1e-3)
    assert one_more.tail == pytest.approx(1 / 528)
    assert (full.waves, one_more.waves) == (1.0, 529 / 528)


def test_a_small_grid_leaves_multiprocessors_empty() -> None:
    limits = limits_of((9, 0))
    held = residency(limits, 256, 64, 0)
    one_block = filling(limits, 132, held, 1)
    assert one_block.active == 8 / 64
    assert one_block.steady == one_block.elapsed == pytest.approx(8 / 64 / 132)


def test_every_nvidia_gpu_has_limits_and_others_say_so() -> None:
    for device in devices():
        if device.vendor == "NVIDIA":
            limits = limits_of_device(device)
            assert limits.warps * 32 == device.attributes["MaxThreadsPerMultiProcessor"]
            assert limits.shared_bytes_opt_in == device.attributes["MaxSharedMemoryPerBlockOptin"]
    with pytest.raises(ConfigError, match="MI300X"):
        limits_of_device(find_device("mi300x"))
    with pytest.raises(ConfigError, match=r"5\.2"):
        limits_of((5, 2))
    assert known_capabilities()[0] == (6, 0)
    assert known_capabilities()[-1] >= (12, 0)


def _recorded() -> list[Path]:
    return sorted((SHARED / "traces").glob("*.json.gz"))


@pytest.mark.skipif(not _recorded(), reason="no recorded traces (XMEM_SHARED)")
def test_equal_to_the_profilers_own_figure_on_every_recorded_kernel() -> None:
    compared = above_48_kib = 0
    for path in _recorded():
        trace = json.loads(gzip.decompress(path.read_bytes()))
        if not isinstance(trace, dict) or not trace.get("deviceProperties"):
            continue
        kernels = [
            event["args"]
            for event in trace["traceEvents"]
            if str(event.get("cat", "")).lower() == "kernel"
            and "est. achieved occupancy %" in event.get("args", {})
        ]
        if not kernels:
            continue
        gpu = trace["deviceProperties"][0]
        limits = limits_of((gpu["computeMajor"], gpu["computeMinor"]))
        threads, blocks = (
            np.prod(np.maximum([kernel[key] for kernel in kernels], 1), axis=1) for key in ("block", "grid")
        )
        registers = np.array([kernel["registers per thread"] for kernel in kernels])
        shared = np.array([kernel["shared memory"] for kernel in kernels])
        theirs = np.array([kernel["est. achieved occupancy %"] for kernel in kernels])

        like_theirs = residency(limits, threads, registers, shared, like_kineto=True)
        ours = kineto_percent(limits, gpu["numSms"], threads, like_theirs, blocks)
        np.testing.assert_array_equal(ours, theirs, err_msg=path.name)

        held = residency(limits, threads, registers, shared)
        assert (held.active_blocks > 0).all(), "a kernel that ran was held by no multiprocessor"
        big = shared > 48 * KIB
        assert (theirs[big] == 0).all()
        compared += len(kernels)
        above_48_kib += int(big.sum())
    assert compared >= 25_000
    assert above_48_kib >= 250

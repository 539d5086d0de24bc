"""Estimates written by hand, for tests of everything that takes a finished one."""

from __future__ import annotations

from dataclasses import replace

from xmem.estimation.estimate import (
    AllocatedPeak,
    Bounds,
    Breakdown,
    CardPart,
    Curve,
    Diagnostic,
    Estimate,
    Interval,
    LargeBlock,
    OutOfMemoryRecord,
    PathBytes,
    PolicyRecord,
    SimulationSummary,
    TargetRecord,
    TraceSummary,
    Verdict,
)

MIB = 1024**2
RTX_3060_BYTES = 12_622_168_064


def _path(
    module: str,
    bytes_: int,
    *,
    phase: str = "forward",
    line: int = 83,
    slack_bytes: int = 0,
    persistent: bool = False,
) -> PathBytes:
    return PathBytes(
        category="activation",
        phase=phase,
        persistent=persistent,
        module=module,
        operator="aten::mm",
        source_line=f"examples/train_gpt2.py:{line}",
        bytes=bytes_,
        slack_bytes=slack_bytes,
        blocks=12,
    )


FITS = Estimate(
    peak_reserved_bytes=3368 * MIB,
    peak_allocated_bytes=3200 * MIB,
    peak_requested_bytes=3180 * MIB,
    context_bytes=146 * MIB,
    device_peak_bytes=3514 * MIB,
    interval=Interval(0.9, 3400 * MIB, 3900 * MIB, "20 measured runs (cpu, other)"),
    verdict=Verdict("RTX 3060 12 GB", RTX_3060_BYTES, fits=True, margin_bytes=RTX_3060_BYTES - 3514 * MIB),
    peak=AllocatedPeak(
        iteration=1,
        phase="backward",
        operator="aten::mm",
        module="GPT.head",
        source_line="examples/train_gpt2.py:83",
        time_ns=4_373_598_193_210_044,
        request_index=4567,
    ),
    breakdown=Breakdown(
        category={
            "parameter": 400 * MIB,
            "activation": 1600 * MIB,
            "gradient": 400 * MIB,
            "optimizer_state": 784 * MIB,
            "workspace": 0,
            "allocator_slack": 16 * MIB,
        },
        category_peaks={"parameter": 400 * MIB, "activation": 1700 * MIB},
        module={
            "GPT.head": 1200 * MIB,
            "GPT.token_embedding": 500 * MIB,
            **{f"GPT.blocks.{layer}.attention": 200 * MIB for layer in range(6)},
            "GPT.encoder.some_very_deeply_nested.module.projection": 300 * MIB,
        },
        operator={"aten::mm": 3200 * MIB},
        source_line={"examples/train_gpt2.py:83": 2000 * MIB, "examples/train_gpt2.py:122": 1200 * MIB},
        paths=(
            _path("GPT.head", 1184 * MIB, slack_bytes=16 * MIB),
            _path("GPT.token_embedding", 500 * MIB, phase="backward", persistent=True),
            _path("GPT.encoder.some_very_deeply_nested.module.projection", 300 * MIB),
            *(_path(f"GPT.blocks.{layer}.attention", 200 * MIB, line=122) for layer in range(6)),
        ),
    ),
    target=TargetRecord(
        gpu="rtx-3060",
        capacity_bytes=RTX_3060_BYTES,
        compute_capability="8.6",
        context_bytes=146 * MIB,
        torch_version="2.13",
        alloc_conf="",
    ),
    policies=(
        PolicyRecord("host_memory", 120, -30 * MIB, "drops what a GPU machine keeps in host memory"),
        PolicyRecord("cublas_workspace", 1, 8_519_680, "adds the workspace of the cuBLAS handle"),
        PolicyRecord("dropout_masks", 0, 0, "resizes dropout masks to one byte an element"),
    ),
    assumptions=(
        "The CUDA context takes as much as on the published runs; drivers differ by some tens of MiB.",
    ),
    simulation=SimulationSummary(
        segments=61,
        num_alloc_retries=0,
        num_ooms=0,
        fragmentation_bytes=168 * MIB,
        bounds=Bounds(perfect_reuse_bytes=3184 * MIB, never_reuse_bytes=40960 * MIB),
        oom=None,
    ),
    measured=None,
    scaling=None,
    what_if=(),
    diagnostics=(),
    trace=TraceSummary(
        path="trace.json",
        bytes=24_000_000,
        events={"operator": 4000, "memory": 9000},
        iterations=3,
        source="capture",
        command=("python", "examples/train_gpt2.py"),
    ),
    timings_s={"read": 0.125, "attribute": 0.03, "simulate": 0.004},
    curve=Curve(
        time_ns=(1000, 2000, 3000),
        allocated_bytes=(400 * MIB, 3200 * MIB, 1200 * MIB),
        reserved_bytes=(402 * MIB, 3368 * MIB, 3368 * MIB),
    ),
    card=(
        CardPart("context", 146 * MIB, "CUDA context and loaded kernels"),
        CardPart("tensors", 3180 * MIB, "requested by tensors"),
        CardPart("cublas_workspaces", 0, "of matrix products"),
        CardPart("cudnn_workspaces", 0, "of convolutions"),
        CardPart("rounding", 20 * MIB, "blocks are multiples of 512 bytes, and some are not split"),
        CardPart("fragmentation", 128 * MIB, "free parts of segments that are in use"),
        CardPart("cached", 40 * MIB, "segments that are free, kept for reuse"),
    ),
    largest_blocks=(
        LargeBlock(
            bytes=392 * MIB,
            category="activation",
            module="GPT.head",
            operator="aten::linear",
            source_line="examples/train_gpt2.py:83",
            alloc_ns=1500,
            free_ns=2500,
            words="saved for backward by GPT.head from examples/train_gpt2.py:83 until its backward",
        ),
    ),
)

DOES_NOT_FIT = replace(
    FITS,
    verdict=Verdict("RTX 4060 8 GB", 3000 * MIB, fits=False, margin_bytes=-514 * MIB),
    simulation=SimulationSummary(
        segments=40,
        num_alloc_retries=1,
        num_ooms=1,
        fragmentation_bytes=20 * MIB,
        bounds=Bounds(perfect_reuse_bytes=3184 * MIB, never_reuse_bytes=40960 * MIB),
        oom=OutOfMemoryRecord(
            request_index=301,
            requested_bytes=392 * MIB,
            device_free_bytes=100 * MIB,
            operator="aten::convolution",
            module="ResNet18.stem",
            source_line="model.py:41",
            iteration=0,
            phase="forward",
        ),
    ),
    measured=None,
    scaling=None,
    what_if=(),
    diagnostics=(
        Diagnostic(
            "free_of_unknown_address", "data_loss", 1200, 34567, "blocks that were born before the trace"
        ),
        Diagnostic("empty_memory_event", "info", 2, -1, "memory events of zero bytes"),
    ),
)

NO_GPU = replace(
    FITS,
    verdict=None,
    target=replace(FITS.target, gpu=None, capacity_bytes=-1, compute_capability=None),
    peak=AllocatedPeak(-1, "other", None, None, None, 0, 0),
)

"""``xmem-fast estimate``: the memory that a recorded job will need."""

from __future__ import annotations

from xmem.cli import options, output


def estimate(
    trace: options.Trace,
    gpu: options.Gpu = None,
    capacity: options.Capacity = None,
    alloc_conf: options.AllocConf = None,
    torch_version: options.TorchVersion = None,
    what_if: options.WhatIfs = None,
    as_json: options.Json = False,
    output_file: options.EstimateFile = None,
) -> None:
    """Estimate the peak GPU memory of a recorded job, and whether it fits."""
    import xmem

    target = options.target_options(gpu, capacity, alloc_conf, torch_version)
    output.give_estimate(
        xmem.estimate(trace, what_if=what_if or (), **target), as_json=as_json, output=output_file
    )

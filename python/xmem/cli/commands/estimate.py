"""``xmem-fast estimate``: the memory that a recorded job will need."""

from __future__ import annotations

from xmem.cli import job, options, output


def estimate(
    trace: options.Trace,
    at: options.At = None,
    gpu: options.Gpu = None,
    capacity: options.Capacity = None,
    alloc_conf: options.AllocConf = None,
    torch_version: options.TorchVersion = None,
    cudnn: options.PlannedBy = None,
    what_if: options.WhatIfs = None,
    confidence: options.Confidence = None,
    without_policy: options.WithoutPolicies = None,
    explain: options.Explain = False,
    show_packages: options.ShowPackages = False,
    as_json: options.Json = False,
    request: options.Format = None,
    output_file: options.EstimateFile = None,
    page: options.Page = None,
    with_advice: options.WithAdvice = True,
    with_source: options.WithSource = True,
) -> None:
    """Estimate the peak GPU memory of a recorded job, and whether it fits."""
    from xmem.estimation.pipeline import answer

    output.require_one_format(as_json, request)
    question = options.question(gpu, capacity, alloc_conf, torch_version, cudnn, confidence)
    options.require_policies(without_policy)
    observed = job.observed(trace, at).without_policies(*without_policy or ()).what_if(*what_if or ())
    analysis = answer(observed, question, show_packages=show_packages)
    output.give_analysis(
        analysis,
        as_json=as_json,
        explain=explain,
        output=output_file,
        page=page,
        with_advice=with_advice,
        with_source=with_source,
        request=request,
        upper=confidence is not None,
    )

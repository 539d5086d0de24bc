"""Work areas of Fourier transforms in captures on the CPU, against what cuFFT asked for on an H200."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import xmem.capture
from xmem.validation import LibraryAnswers, load_measurements

RESULTS = Path(__file__).parents[3] / "bench" / "gpu" / "results" / "nvidia-h200-torch2.11.0"
# cudaDataType: 0 to 2 are real numbers, 4 to 6 complex ones.
COMPLEX_BYTES = {0: 8, 4: 8, 1: 16, 5: 16, 2: 4, 6: 4}


def test_the_rules_give_what_cufft_asked_for() -> None:
    path = Path(xmem.capture.__file__).parent / "child/xmem_child/on_cpu/fake/fourier_passes.py"
    spec = spec_from_file_location("fourier_passes", path)
    assert spec is not None
    assert spec.loader is not None
    rules = module_from_spec(spec)
    spec.loader.exec_module(rules)
    plans = equal = 0
    for run in load_measurements(RESULTS):
        if not isinstance(run, LibraryAnswers) or run.config["library"] != "cufft":
            continue
        calls = run.calls("cufftXtMakePlanMany")
        for source, target, rank, n0, n1, n2, stride, batch, bytes_ in zip(
            *(column.tolist() for column in calls.values()), strict=True
        ):
            if bytes_ >= 0:  # else a plan that cuFFT refuses
                plans += 1
                equal += bytes_ == rules.work_bytes(
                    (n0, n1, n2)[:rank],
                    batch,
                    COMPLEX_BYTES[source],
                    real=min(source, target) < 4,
                    strided=stride != 1,
                )
    assert plans > 18_000
    assert equal >= 0.99 * plans

"""The analysed runs that the reports of these tests are made of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from training_sample import training
from xmem.estimation.analysis import Analysis
from xmem.estimation.pipeline import analyze

ROOT = Path(__file__).parents[2]
TRACES = Path(os.environ.get("XMEM_SHARED", ROOT.parent / "shared")) / "data" / "traces"
LINES = {
    "train.py:7": {"function": "Net.forward", "text": "y = self.fc(x)"},
    "layers/linear.py:3": {"function": "Linear.forward", "text": "return linear(x)"},
}


def job(folder: Path) -> Path:
    """Two steps of one layer; the second iteration calls a module through an installed package."""
    trace = training().with_metadata(lines=LINES)
    t = 250
    trace.iteration(2, t, t + 100).line("train.py:7 < layers/linear.py", 3, t + 6, t + 30)
    trace.module("Net.fc", t + 10, t + 20).operator("aten::linear", t + 11, t + 19)
    trace.operator("aten::empty", t + 12, t + 18).alloc(0x7, 2 << 20, t + 15).free(0x7, t + 60)
    return trace.write(folder / "trace.json")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return job(tmp_path)


@pytest.fixture(params=["predicted", "recorded on a GPU"])
def analysis(request: pytest.FixtureRequest, tmp_path: Path) -> Analysis:
    """Of a run on the CPU, and of one on a real GPU where its trace is at hand."""
    if request.param == "predicted":
        return analyze(job(tmp_path))
    recorded = TRACES / "t4_toy_training_fp32.json.gz"
    if not recorded.is_file():
        pytest.skip(f"no real traces: {TRACES} is absent")
    return analyze(recorded)


@pytest.fixture
def unfolded(trace: Path) -> Analysis:
    """With the lines of installed packages."""
    return analyze(trace, show_packages=True)


@pytest.fixture
def predicted(trace: Path) -> Analysis:
    return analyze(trace)

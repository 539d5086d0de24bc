"""Advice on a captured job: what it claims is what the estimate of the changed job says, and in time."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

import pytest

import xmem
from xmem.advice import advise
from xmem.capture import capture
from xmem.estimation.observation import Observation, observe

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.slow,
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_gpt2.py"
SMALL = ["--layers", "3", "--width", "128", "--heads", "4", "--vocab-size", "5000", "--seq-len", "128"]


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Observation:
    path = tmp_path_factory.mktemp("advice") / "trace.json.gz"
    capture([sys.executable, str(EXAMPLE), *SMALL], path, timeout_s=120)
    return observe(path)


def test_a_transformer_is_told_what_a_person_would_say(observed: Observation) -> None:
    analysis = xmem.analyze(observed, gpu="rtx-3060")
    begin_s = time.perf_counter()
    advised = advise(analysis)
    assert time.perf_counter() - begin_s < 5.0  # under a second on a machine that does nothing else
    by_remedy = {advice.remedy: advice for advice in reversed(advised.advice)}
    assert by_remedy.keys() >= {"chunk_loss", "checkpoint", "release", "precision"}
    lines = EXAMPLE.read_text().splitlines()
    for remedy, text in (("chunk_loss", "F.cross_entropy"), ("release", "self.head(self.norm(x))")):
        where = by_remedy[remedy].where
        assert where is not None
        assert text in lines[int(where.rpartition(":")[2]) - 1]
    for advice in advised.advice:
        after = xmem.estimate(
            observed,
            gpu="rtx-3060",
            what_if=[advice.what_if] if advice.what_if else (),
            alloc_conf=advice.alloc_conf,
        )
        assert advice.peak_reserved_bytes == after.peak_reserved_bytes, advice.text
        assert advice.device_peak_bytes == after.device_peak_bytes, advice.text

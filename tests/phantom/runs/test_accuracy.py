"""A row of measured runs, captured on real CUDA builds of torch."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

from accuracy.cache import Cache
from accuracy.runs import Job, Run
from accuracy.ways import Laboratory
from measured_run import measured
from xmem.estimation.need import memory_needed
from xmem.estimation.question import Question

JOB = Job("Transformer", "distilbert/distilgpt2", "AdamW", 4, zero_grad=1, tokens=32)
ROW = Run(measured(JOB.family, JOB.model, JOB.optimizer, JOB.batch, zero_grad=1), JOB)


@pytest.mark.nightly
def test_a_row_through_the_phantom(phantom: Any) -> None:
    laboratory = Laboratory(phantom.python, Cache(phantom.folder / "captures"), dict(os.environ))
    record = laboratory.capture_on_phantom(ROW, 4)
    assert record.outcome == "captured", record.note
    answer = laboratory.ask(ROW, "phantom")
    assert (answer.reserved_bytes, answer.out_of_memory) == (record.peak_reserved_bytes, False)
    # Weights, gradients and two moments in single precision, and what a step needs beside them.
    assert 4 * 4 * 81.9e6 < answer.reserved_bytes < 7 * 4 * 81.9e6
    # Its trace, replayed by us, needs the same.
    observed = laboratory.observe_capture(laboratory.phantom_key(ROW))
    assert memory_needed(observed, Question(ROW.device)).peak_reserved_bytes == record.peak_reserved_bytes

    total_bytes = ROW.device.context_bytes + answer.reserved_bytes // 2
    small = replace(ROW, measured=replace(ROW.measured, total_bytes=total_bytes))
    record = laboratory.capture_on_phantom(small, 4)
    assert record.outcome == "out_of_memory", record.note
    without_limit = laboratory.ask(small, "phantom")
    assert without_limit.out_of_memory
    assert without_limit.reserved_bytes >= answer.reserved_bytes

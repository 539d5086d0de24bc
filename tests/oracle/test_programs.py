"""What a capture keeps of the allocator's history, replayed, gives the gauges of the real allocator.

Random programs with threads, streams, graphs, pools and checkpoints, many to a process. The long run is
``python -m oracle.programs`` from ``tests``.
"""

from __future__ import annotations

import os

import pytest

from oracle.programs import random_setting, run_programs

PYTHONS = [name for name in os.environ.get("XMEM_PHANTOM_PYTHONS", "").split(":") if name]

pytestmark = pytest.mark.skipif(not PYTHONS, reason="no CUDA build of torch here")


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("seed", [1, 2, 4])
def test_random_programs(python, seed, tmp_path):
    setting, devices, captures = random_setting(seed)
    outcome = run_programs(python, tmp_path, seed, 25, setting, devices, captures)
    assert outcome.difference is None
    assert outcome.requests > 500
    if captures:
        assert outcome.calls["BEGIN_CAPTURE"] > 0
        assert outcome.calls["RESTORE_POOL"] > 0

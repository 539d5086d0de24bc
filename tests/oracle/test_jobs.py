"""No card holds more than the need that the estimate of a job states; the long run is ``oracle.jobs``."""

from __future__ import annotations

import os

import pytest

from nightly import most_nightly
from oracle.jobs import run_job

PYTHONS = [name for name in os.environ.get("XMEM_PHANTOM_PYTHONS", "").split(":") if name]

pytestmark = pytest.mark.skipif(not PYTHONS, reason="no CUDA build of torch here")


@pytest.mark.parametrize("seed", most_nightly([3, 2]))
def test_random_jobs(seed, tmp_path):
    job = run_job(PYTHONS[seed % len(PYTHONS)], tmp_path, seed)
    assert job.wrong() is None
    assert job.seen > 400 << 20, "a context at least"

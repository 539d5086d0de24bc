"""Random training jobs, estimated: no card was seen to hold more than the need that their estimates state."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import xmem
from xmem.capture import PhantomMachine, capture
from xmem.devices.gpus import find_device

DRIVER = Path(__file__).with_name("drive_jobs.py")


@dataclass(frozen=True)
class Job:
    """What one job showed. Sizes are bytes.

    Attributes:
        need: Of its estimate.
        seen: The most that the job saw on a card that it looked at.
        ledger: The most that the phantom's ledger has of a card.
        agrees: Whether the replay gave PyTorch's own counters.
        in_interval: Whether the interval holds what was seen.
    """

    need: int
    seen: int
    ledger: int
    agrees: bool
    in_interval: bool

    def wrong(self) -> str | None:
        """What is wrong with the estimate, for people; None where nothing is."""
        if self.need < max(self.seen, self.ledger):
            return f"needs {self.need:,}, and {self.seen:,} were seen ({self.ledger:,} in the ledger)"
        if not self.in_interval:
            return f"the interval does not hold {self.seen:,}"
        return None if self.agrees else "the replay differs from PyTorch's counters"


def run_job(python: str, folder: Path, seed: int) -> Job:
    """Capture one job on a phantom machine and estimate it."""
    rng = random.Random(f"job {seed}")
    gpus = rng.choice([1, 1, 1, 2])
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"] if gpus > 1 else []
    looks = folder / "looks"
    result = capture(
        [python, *launcher, str(DRIVER), str(seed)],
        folder / "trace.json",
        mode="phantom",
        machine=PhantomMachine(device=find_device("h100"), count=gpus),
        env={**os.environ, "XMEM_JOB_OUT": str(looks)},
        timeout_s=300,
        rank=rng.randrange(gpus),
    )
    estimate = xmem.estimate(result.path, gpu="h100")
    measured = estimate.measured
    assert measured is not None
    assert estimate.interval is not None
    seen = max(int(line) for line in looks.read_text().splitlines())
    return Job(
        need=estimate.device_peak_bytes,
        seen=seen,
        ledger=max([measured.card_peak_bytes or 0, *(rank.card_peak_bytes or 0 for rank in measured.ranks)]),
        agrees=measured.replay_agrees,
        in_interval=max(seen, estimate.device_peak_bytes) <= estimate.interval.high_bytes,
    )


def main() -> int:
    """The long run: ``python -m oracle.jobs --jobs 100``; 1 if an estimate was wrong."""
    parser = argparse.ArgumentParser(prog="oracle.jobs", description=main.__doc__)
    parser.add_argument("--jobs", type=int, default=100, help="for each torch")
    parser.add_argument("--first-seed", type=int, default=0)
    asked = parser.parse_args()
    pythons = [name for name in os.environ.get("XMEM_PHANTOM_PYTHONS", "").split(":") if name]
    done = wrong = 0
    for seed in range(asked.first_seed, asked.first_seed + asked.jobs):
        for python in pythons:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    reason = run_job(python, Path(folder), seed).wrong()
                except xmem.errors.XmemError as error:
                    reason = error.message.splitlines()[0]
            done += 1
            if reason is not None:
                wrong += 1
                print(f"seed {seed}, {python}: {reason}", flush=True)
    print(f"{done:,} jobs, {wrong} wrong")
    return 1 if wrong or not pythons else 0


if __name__ == "__main__":
    sys.exit(main())

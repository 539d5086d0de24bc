"""Every command of ``xmem-fast`` once or more, on files that the ones before it wrote.

The wheel's smoke test runs them, and the test of the schemas, which adds ``--json``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SCRIPT = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
size = parser.parse_args().batch_size
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(4):
    optimizer.zero_grad()
    model(torch.zeros(size * 1024, 256, device="cuda")).sum().backward()
    optimizer.step()
"""
# A profile of a GPU: one kernel.
KERNELS: dict[str, object] = {
    "deviceProperties": [
        {"id": 0, "name": "NVIDIA A100-SXM4-40GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108}
    ],
    "traceEvents": [
        {
            "ph": "X",
            "cat": "kernel",
            "name": "elementwise_kernel",
            "ts": 10,
            "dur": 2.5,
            "args": {
                "device": 0,
                "stream": 7,
                "grid": [108, 1, 1],
                "block": [256, 1, 1],
                "registers per thread": 32,
                "shared memory": 512,
            },
        }
    ],
}
SWEEP = '[job]\nmodel = "model.xmem"\n[grid]\nbatch = [4, 8]\ngpu = ["t4", "rtx-3060"]\n'


@dataclass(frozen=True)
class Call:
    """One call of a command.

    Attributes:
        arguments: What follows ``xmem-fast``.
        json_after: Number of the arguments after which ``--json`` goes, None where there is no such option.
        statuses: Exit statuses that are right.
        schema: Name of the schema of what it prints, the command's own unless told.
    """

    arguments: tuple[str, ...]
    json_after: int | None = 1
    statuses: tuple[int, ...] = (0,)
    schema: str = ""

    @property
    def command(self) -> str:
        """Name of the command."""
        return self.arguments[0]

    @property
    def with_json(self) -> tuple[str, ...]:
        """The arguments with ``--json``."""
        assert self.json_after is not None
        return (*self.arguments[: self.json_after], "--json", *self.arguments[self.json_after :])


def write_files(folder: Path) -> None:
    """Write what the calls start from."""
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    (folder / "kernels.json").write_text(json.dumps(KERNELS), encoding="utf-8")
    (folder / "measured").mkdir()
    (folder / "sweep.toml").write_text(SWEEP, encoding="utf-8")


def calls() -> Iterator[Call]:
    """Yield the calls in an order in which they can run."""
    script = ("--", "python", "train.py", "--batch-size")
    yield Call(("run", "--gpu", "rtx-3060", *script, "64"))
    yield Call(("capture", "-o", "small.json.gz", *script, "2"))
    yield Call(("capture", "-o", "large.json.gz", *script, "3"))
    yield Call(("estimate", "small.json.gz", "--gpu", "rtx-3060"))
    yield Call(("estimate", "small.json.gz", "--capacity", "300MiB"), statuses=(1,))
    yield Call(("estimate", "small.json.gz", "--html", "page.html"))
    yield Call(("check", "small.json.gz", "--budget", "10GiB"))
    yield Call(("check", "small.json.gz", "--budget", "50MiB"), statuses=(1,))
    yield Call(("diff", "small.json.gz", "large.json.gz"))
    yield Call(("fit", "--dim", "batch=2,3", "-o", "model.xmem", *script, "{batch}"))
    yield Call(("estimate", "model.xmem", "--at", "batch=8", "--gpu", "t4"))
    yield Call(("max-batch", "model.xmem", "--gpu", "t4", "--curve", "3"))
    yield Call(("sweep", "sweep.toml", "-o", "results.csv"))
    for table in ("events", "operators", "blocks", "sequence", "segments"):
        yield Call(("inspect", "small.json.gz", table, "--limit", "5"))
    yield Call(("report", "small.json.gz", "-o", "snapshot.pickle"))
    yield Call(("report", "small.json.gz", "-o", "blocks.csv"))
    yield Call(("replay", "snapshot.pickle"))
    yield Call(("advise", "small.json.gz", "--capacity", "300MiB"), statuses=(0, 1))
    yield Call(("tune", "small.json.gz", "--gpu", "t4"))
    yield Call(("occupancy", "kernels.json"))
    yield Call(("gpus",))
    yield Call(("gpus", "h100"))
    yield Call(("policies",))
    yield Call(("policies", "recorded_requests"))
    yield Call(("validate", "measured", "--list"), schema="validate-list")
    yield Call(("schema",), json_after=None)
    # What they do needs a network, and another package.
    yield Call(("phantom-env", "--help"), json_after=None)
    yield Call(("mcp", "--help"), json_after=None)

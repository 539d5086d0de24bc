"""Part 5, where Nsight Compute is installed: what the hardware counted during a forward pass.

    python -m xmem_measure.parts.nsight CONFIG     the program that Nsight Compute watches

Nsight Compute has to start the process that it watches, so these runs are not forked from the zygote.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xmem_measure.columns import pack

# The metric, our column, and what its value is multiplied by to become a whole number.
METRICS = {
    "gpu__time_duration.sum": ("duration_ns", 1),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("active_ppm", 10_000),
    "sm__warps_active.avg.pct_of_peak_sustained_elapsed": ("elapsed_ppm", 10_000),
    "launch__grid_size": ("grid", 1),
    "launch__block_size": ("block", 1),
    "launch__registers_per_thread": ("registers", 1),
    "launch__shared_mem_per_block_static": ("shared_static_bytes", 1),
    "launch__shared_mem_per_block_dynamic": ("shared_dynamic_bytes", 1),
    "launch__occupancy_limit_blocks": ("limit_blocks", 1),
    "launch__occupancy_limit_registers": ("limit_registers", 1),
    "launch__occupancy_limit_shared_mem": ("limit_shared", 1),
    "launch__occupancy_limit_warps": ("limit_warps", 1),
}
_MOST_LAUNCHES = 600
_WARM_UPS = 2


def installed() -> bool:
    """Whether there is an Nsight Compute."""
    return shutil.which("ncu") is not None


def measure(config: Mapping[str, Any], environment: Mapping[str, str], deadline: float) -> dict[str, Any]:
    """One forward pass under Nsight Compute, as the result of a run."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "launches.csv"
        command = [
            *("ncu", "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)),
            *("--profile-from-start", "off", "--clock-control", "none"),
            *("--launch-count", str(_MOST_LAUNCHES), "--metrics", ",".join(METRICS)),
            *(sys.executable, "-m", "xmem_measure.parts.nsight", json.dumps(dict(config))),
        ]
        try:
            done = subprocess.run(
                command,
                env=dict(environment),
                capture_output=True,
                text=True,
                timeout=max(1.0, deadline - time.monotonic()),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"outcome": "timeout", "error": "Nsight Compute took too long"}
        printed = log.read_text(errors="replace") if log.exists() else ""
    if done.returncode != 0:
        said = (done.stderr + done.stdout + printed).strip()[-2000:]
        return {"outcome": "failed", "error": f"ncu ended with status {done.returncode}: {said}"}
    result = launches(printed)
    if not result["kernels"]:
        return {"outcome": "failed", "error": f"ncu saw no kernel: {printed.strip()[-2000:]}"}
    return {"outcome": "done", **result}


def launches(printed: str) -> dict[str, Any]:
    """The launches in the raw page that Nsight Compute prints as CSV."""
    lines = [line for line in printed.splitlines() if line.startswith('"')]
    names: dict[str, int] = {}
    columns: dict[str, list[int]] = {"kernel": [], **{column: [] for column, _ in METRICS.values()}}
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        if not row["ID"].isdigit():
            continue  # The row of units.
        columns["kernel"].append(names.setdefault(row["Kernel Name"], len(names)))
        for metric, (column, factor) in METRICS.items():
            columns[column].append(_whole(row.get(metric), factor))
    return {"kernels": list(names), "launches": pack(columns)}


def _whole(text: str | None, factor: int) -> int:
    try:
        return round(float((text or "").replace(",", "")) * factor)
    except ValueError:
        return -1


def main() -> None:
    import torch

    from workloads import Inference, prepare_inference
    from xmem_measure.parts.occupancy import forward

    model, inputs = prepare_inference(Inference(**json.loads(sys.argv[1])))
    device = torch.device("cuda")
    model = model.to(device)
    inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
    for _ in range(_WARM_UPS):
        forward(model, inputs)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    forward(model, inputs)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    main()

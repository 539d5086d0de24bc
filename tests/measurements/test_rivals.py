"""Other methods on the same rows: the static analysis by hand, and how answers and refusals come back."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
workloads = pytest.importorskip("workloads")
workloads.vision_operators.define_vision_operators()
pytest.importorskip("torchvision")

RIVALS = Path(__file__).parents[2] / "bench" / "accuracy" / "rivals"
HEADER = "family,model,optimizer,batch_size,gpu,gpu_total_bytes,nvml_peak_bytes,real_oom"


def answers(method: str, *jobs: dict[str, object]) -> list[dict[str, object]]:
    lines = "".join(json.dumps(job) + "\n" for job in jobs)
    command = [sys.executable, str(RIVALS / "answer.py"), method]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True, timeout=200)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_static_analysis_going_backward() -> None:
    from accuracy.rivals.static_analysis import _backward

    # Kept: 10, then 20. Gradients: 5 of what was used before both, 7 between them, 1 after.
    # After the loss 30 + 1; with the second gone 10 + 1 + 7; with both gone 1 + 7 + 5.
    assert list(_backward([10, 20], [(0, 5), (1, 7), (2, 1)])) == [31, 18, 13]


def test_static_analysis_of_published_jobs() -> None:
    job = {"family": "cnn", "model": "MobeNetV3Small", "optimizer": "SGD", "batch": 8}
    sgd, adam, twice, unknown = answers(
        "static_analysis", job, {**job, "optimizer": "Adam"}, {**job, "batch": 16}, {**job, "model": "None"}
    )
    parameters = 1_528_106  # torchvision's mobilenet_v3_small with ten classes
    assert isinstance(sgd["peak_bytes"], int)
    assert isinstance(adam["peak_bytes"], int)
    assert isinstance(twice["peak_bytes"], int)
    # Two more copies of the parameters, each tensor rounded up by less than 512 bytes.
    assert 8 * parameters <= adam["peak_bytes"] - sgd["peak_bytes"] < 8 * parameters + 2 * 142 * 512
    # Activations double with the batch, weights and gradients do not.
    assert 1.3 * sgd["peak_bytes"] < twice["peak_bytes"] < 2 * sgd["peak_bytes"]
    assert unknown["note"] == "KeyError: 'None'"
    assert "peak_bytes" not in unknown


@pytest.mark.nightly
def test_rows_are_asked_once(tmp_path: Path) -> None:
    runs, output = tmp_path / "runs.csv", tmp_path / "static.csv"
    row = "CNN,MobeNetV3Small,SGD,{},NVIDIA GeForce RTX 3060,12622168064,900000000,false"
    command = [
        *[sys.executable, str(RIVALS / "compare.py"), "static", "--csv", str(runs)],
        *["--python", sys.executable, "-o", str(output)],
    ]
    for batches in ([8], [8, 4]):
        runs.write_text("\n".join([HEADER, *(row.format(batch) for batch in batches)]) + "\n")
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
        assert len(done.stderr.splitlines()) == 1
    with output.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["batch_size"], row["way"]) for row in rows] == [("8", "static"), ("4", "static")]
    assert int(rows[0]["estimate_bytes"]) > int(rows[1]["estimate_bytes"]) > 0

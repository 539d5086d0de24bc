"""Fitted models against runs of the same scripts at a larger batch: is the peak right, and what did it cost?

For every model: captures at two small batch sizes on the CPU; from their traces a fit and the answer for the
large batch, which is the prediction; then the capture at the large batch itself. Costs are CPU seconds of
whole processes, children included.

    python bench/bench_scaling.py [--fit 2,3] [--batch 32] [--only ResNet50] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

TRAIN = Path(__file__).parent / "accuracy" / "train.py"
MODELS = {
    "gpt2": ("Transformer", "openai-community/gpt2"),
    "t5-small": ("Transformer", "T5-small"),
    "ResNet50": ("CNN", "ResNet50"),
    "MobileNetV2": ("CNN", "MobileNetV2"),
    "VGG16": ("CNN", "VGG16"),
    "ConvNeXtTiny": ("CNN", "ConvNeXtTiny"),
}


@dataclass(frozen=True)
class Result:
    """Bytes, and CPU seconds."""

    model: str
    predicted_bytes: int
    captured_bytes: int
    small_captures_s: float
    prediction_s: float
    capture_s: float

    @property
    def error(self) -> float:
        return self.predicted_bytes / self.captured_bytes - 1

    @property
    def cheaper(self) -> float:
        """How many times the large capture costs what the prediction from the traces does."""
        return self.capture_s / self.prediction_s


def run(*command: str | Path) -> tuple[str, float]:
    """What the command prints, and its CPU seconds."""
    before = os.times()
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stderr}")
    after = os.times()
    used = after.children_user - before.children_user + after.children_system - before.children_system
    return done.stdout, used


def peak_of(estimate: str) -> int:
    return int(json.loads(estimate)["peak_reserved_bytes"])


def measure(name: str, fit_at: str, batch: int, folder: Path) -> Result:
    family, model = MODELS[name]
    script = [sys.executable, TRAIN, family, model, "AdamW"]
    mode = ["--mode", "real"]
    fitted, trace = folder / f"{name}.xmem", folder / f"{name}.json.gz"
    xmem = Path(sys.executable).parent / "xmem-fast"
    small: dict[str, float] = {}
    for value in fit_at.split(","):
        path = folder / f"{name}-{value}.json.gz"
        _, small[f"{path}@batch={value}"] = run(xmem, "capture", *mode, "-o", path, "--", *script, value, "0")
    _, fit_s = run(xmem, "fit", "-o", fitted, *small)
    predicted, ask_s = run(xmem, "estimate", fitted, "--at", f"batch={batch}", "--json")
    _, capture_s = run(xmem, "capture", *mode, "-o", trace, "--", *script, str(batch), "0")
    captured, _ = run(xmem, "estimate", trace, "--json")
    return Result(name, peak_of(predicted), peak_of(captured), sum(small.values()), fit_s + ask_s, capture_s)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--fit", default="2,3", help="batch sizes to fit from")
    parser.add_argument("--batch", type=int, default=32, help="the batch size to answer for")
    parser.add_argument("--only", choices=MODELS, action="append", help="may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here")
    options = parser.parse_args(arguments)
    results = []
    print(
        f"{'model':14} {'predicted':>12} {'captured':>12} {'error':>8} {'small':>8} {'ask':>6} {'capture':>8}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only or MODELS:
            result = measure(name, options.fit, options.batch, Path(folder))
            results.append(result)
            predicted, captured = result.predicted_bytes / 2**20, result.captured_bytes / 2**20
            cost = f"{result.small_captures_s:6.1f} s {result.prediction_s:4.1f} s {result.capture_s:6.1f} s"
            print(
                f"{name:14} {predicted:8.1f} MiB {captured:8.1f} MiB {result.error:+8.3%} {cost} "
                f"{result.cheaper:5.2f} times cheaper",
                flush=True,
            )
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")


if __name__ == "__main__":
    main()

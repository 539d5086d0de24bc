"""Configurations an hour of a sweep, with one worker and with more.

    xmem-fast fit --dim batch=2,3 -o model.xmem -- python examples/train_gpt2.py --batch-size {batch}
    python bench/bench_sweep.py model.xmem [--executor local|ray] [--workers 1 2] [--values N] ...

Each measurement is one `xmem-fast sweep` of 1,000 configurations (10 values of the model's first dimension,
10 allocator settings, 10 GPUs) from the start of the process to its end. The bar is 10 s on 2 cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path

from measure import Run, Spread, interleaved, run
from xmem.scaling import read_model

LARGEST_VALUE = 64
SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.8",
    "expandable_segments:True,max_split_size_mb:128",
)
GPUS = ("rtx-3060", "rtx-3090", "rtx-4090", "t4", "v100-32gb", "a10", "l4", "a100-40gb", "h100", "24GiB")


def write_spec(folder: Path, model: Path, values: int) -> Path:
    """The sweep that is measured; dimensions after the first stay at the largest value that was captured."""
    step = max(1, LARGEST_VALUE // values)
    fitted = read_model(model)
    first, *others = fitted.dimensions
    grid = {
        first: range(step, step * values + 1, step),
        **{name: [fitted.base_sample.point[name]] for name in others},
    }
    lines = [f"{name} = {json.dumps(list(values))}" for name, values in grid.items()]
    spec = folder / "spec.toml"
    spec.write_text(
        f"[job]\nmodel = {json.dumps(str(model.absolute()))}\n[grid]\n"
        + "\n".join([*lines, f"alloc_conf = {json.dumps(SETTINGS)}", f"gpu = {json.dumps(GPUS)}"])
        + "\n"
    )
    return spec


def swept(spec: Path, executor: str, workers: int) -> Run:
    results = spec.with_name(f"results-{workers}.csv")
    command = [
        sys.executable,
        "-m",
        "xmem.cli.main",
        "sweep",
        str(spec),
        "-o",
        str(results),
        "--fresh",
        "--json",
    ]
    return run([*command, "--executor", executor, "--workers", str(workers)])


def main() -> None:
    parser = argparse.ArgumentParser(description="Configurations an hour of a sweep.")
    parser.add_argument("model", type=Path, help="a fitted model")
    parser.add_argument("--executor", default="local", choices=["local", "ray"])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--values", type=int, default=10, help="of the dimension; 100 configurations each")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object a case")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        spec = write_spec(Path(folder), arguments.model, arguments.values)
        cases = {workers: partial(swept, spec, arguments.executor, workers) for workers in arguments.workers}
        for workers, runs in interleaved(cases, arguments.repeats).items():
            wall_s = Spread.of([each.wall_s for each in runs])
            work_s = Spread.of([each.output["seconds"] for each in runs])
            configurations = runs[0].output["configurations"]
            row = {
                "executor": arguments.executor,
                "workers": workers,
                "configurations": configurations,
                "wall_s": wall_s.median,
                "wall_least_s": wall_s.least,
                "wall_most_s": wall_s.most,
                "sweep_s": work_s.median,
                "configurations_an_hour": round(configurations * 3600 / wall_s.median),
            }
            if arguments.json:
                print(json.dumps(row))
            else:
                print(
                    f"{arguments.executor:6} {workers} workers  {configurations:,} configurations  "
                    f"{wall_s.median:.2f} s ({wall_s.least:.2f} to {wall_s.most:.2f}), "
                    f"{work_s.median:.2f} s without start-up  "
                    f"{row['configurations_an_hour']:,} an hour"
                )


if __name__ == "__main__":
    main()

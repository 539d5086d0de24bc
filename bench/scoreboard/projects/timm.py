"""timm's tables of benchmark results: the largest batch that did not run out of memory.

The project's own ``benchmark.py`` begins with a large batch and takes a smaller one after each failure, so on
a phantom GPU of the card's size the unmodified script finds a batch itself.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

from scoreboard.answers import Answers
from scoreboard.laboratory import Laboratory
from scoreboard.rows import Row, card_of, read_sources

NAME = "timm"
FILE = "timm_batch_fit.csv"
_REPOSITORY = "huggingface/pytorch-image-models"
_CARDS = {
    "RTX 3090": "rtx-3090",
    "RTX 4090": "rtx-4090",
    "RTX 5090": "rtx-5090",
    "RTX PRO 6000 Max-Q": "rtx-pro-6000",
}
# By release of torch. All others are older, and nearest to the oldest release that has an environment.
_ENVIRONMENTS = {"pt291": "torch-2.9.1"}
_OLDEST = "torch-2.6.0"
# The environment has the same build as these tables.
_SAME_BUILD = "pt291-cu128"
# Tables that were made with `--fast-norm`, without which autocast makes float32 copies before a norm.
# efficientnet_b3_g8_gn shows it: the 4090's table has a batch that would need 54 GiB without the option, and
# the 5090's has half of it, which is the most that fits without. The first tables are older than the option.
_FAST_NORM = ("pt240-cu124", "pt291-cu128")
_PRECISIONS = {"amp": "amp", "amp_bf16": "amp_bfloat16", "bf16": "bfloat16", "fp32": "float32"}
_TABLE = re.compile(
    r"(?P<bench>infer|train)-(?P<precision>amp|amp_bf16|bf16|fp32)-(?P<layout>nchw|nhwc)"
    r"-(?P<release>pt\d+)-(?P<cuda>cu\d+)-\w+(?P<compiled>-dynamo)?"
)
_SIZE = re.compile(r"img (\d+)")


def rows(data: Path) -> Iterator[Row]:
    """The published batches."""
    for source in read_sources(data / FILE):
        table = Path(source.path).stem.removeprefix("benchmark-")
        size = _SIZE.search(source.config)
        named = _TABLE.fullmatch(table)
        if named is None or size is None:
            continue
        yield Row(
            project=NAME,
            job=f"{table}/{source.model}/{size[1]}",
            item="batch",
            kind="training" if table.startswith("train") else "inference",
            gpu=card_of(source, _CARDS, NAME),
            torch=source.torch.split()[0],
            quantity="batch",
            truth=float(source.value),
            rounding=0.0,
            is_rebuilt=f"{named['release']}-{named['cuda']}" == _SAME_BUILD,
        )


def run(row: Row, laboratory: Laboratory) -> Answers:
    """Let the benchmark find the largest batch on the phantom GPU; where it finds another one than was
    published, also with 2% less and 2% more memory (items ``batch-2%``, ``batch+2%``)."""
    table, model, size = row.job.split("/")
    named = _TABLE.fullmatch(table)
    assert named is not None  # of a job that `rows` made
    path = f"results/benchmark-{table}.csv"
    commit = laboratory.git(_REPOSITORY, "log", "-1", "--format=%h", "--", path).strip()
    code = laboratory.code(_REPOSITORY, commit)
    environment = _ENVIRONMENTS.get(named["release"], _OLDEST)
    command = [
        *[laboratory.python(environment), str(code / "benchmark.py"), "--model", model, "--img-size", size],
        *["--bench", named["bench"], *_options(named)],
        *["-b", str(_first_batch(laboratory.git(_REPOSITORY, "show", f"HEAD:{path}"), named["bench"]))],
        # Memory is at its peak after the first iterations; the script needs five to print its figures.
        *["--num-warm-iter", "1", "--num-bench-iter", "5"],
    ]

    def largest(capacity: float) -> tuple[float | None, str]:
        ran = laboratory.on_phantom(
            command, row.gpu, strict=True, capacity=capacity, variables={"PYTHONPATH": str(code)}
        )
        found = ran.output.rpartition("--result")[2]
        try:
            return float(json.loads(found)[f"{named['bench']}_batch_size"]), ""
        except (ValueError, KeyError, TypeError):
            return None, ran.problem or f"the benchmark gave no batch: {found.strip()[:300]}"

    batch, problem = largest(1.0)
    torch = laboratory.torch(environment)
    if batch is None:
        return Answers(problem=problem, torch=torch)
    figures = {"batch": batch}
    if batch != row.truth:
        for share in (0.98, 1.02):
            other, _ = largest(share)
            if other is not None:
                figures[f"batch{(share - 1) * 100:+.0f}%"] = other
    return Answers(figures=figures, torch=torch)


def _options(table: re.Match[str]) -> list[str]:
    """What else was on the command line, as far as the name of the table and its figures tell."""
    options = ["--precision", _PRECISIONS[table["precision"]]]
    if f"{table['release']}-{table['cuda']}" in _FAST_NORM:
        options.append("--fast-norm")
    if table["layout"] == "nhwc":
        options.append("--channels-last")
    if table["compiled"]:
        options.append("--torchcompile")
    return options


def _first_batch(text: str, bench: str) -> int:
    """What the benchmark began with: the largest batch of the whole table."""
    found = csv.DictReader(io.StringIO(text))
    return max(int(float(line[f"{bench}_batch_size"] or 0)) for line in found)

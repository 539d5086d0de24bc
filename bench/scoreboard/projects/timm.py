"""timm's tables of benchmark results: the largest batch that did not run out of memory.

The project's own ``benchmark.py`` begins with a large batch and takes a smaller one after each failure, so on
a phantom GPU of the card's size the unmodified script finds a batch itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class _Table:
    """A table of results.

    Attributes:
        commit: The one that added it.
        environment: The one that is nearest to its.
        is_rebuilt: Whether that is the same release of torch, built for the same CUDA.
        batch: What the benchmark began with: the largest batch in the table, or more, up to the next step.
        options: What else was on the command line, as far as the figures tell.
    """

    commit: str
    environment: str
    is_rebuilt: bool
    batch: int
    options: tuple[str, ...] = ()


# The tables do not name their options. Without --fast-norm, efficientnet_b3_g8_gn would need 54 GiB for the
# batch that they say fits a 4090, for the float32 copies that autocast makes before group_norm.
_FAST = ("--fast-norm",)
_TABLES = {
    "infer-amp-nchw-pt291-cu128-4090": _Table("90cae8c5", "torch-2.9.1", True, 1024, _FAST),
    "infer-amp-nchw-pt291-cu130-5090": _Table("90cae8c5", "torch-2.9.1", False, 1024, _FAST),
    "infer-amp-nchw-pt291-cu130-pro6000maxq": _Table("90cae8c5", "torch-2.9.1", False, 2048, _FAST),
    "infer-amp-nchw-pt240-cu124-rtx3090": _Table("5c33776a", "torch-2.6.0", False, 1024, _FAST),
    "train-amp-nchw-pt112-cu113-rtx3090": _Table("c865028c", "torch-2.6.0", False, 512),
    "train-amp-nhwc-pt112-cu113-rtx3090": _Table("c865028c", "torch-2.6.0", False, 512, ("--channels-last",)),
}
_SIZE = re.compile(r"img (\d+)")


def rows(data: Path) -> Iterator[Row]:
    """The published batches."""
    for source in read_sources(data / FILE):
        table = Path(source.path).stem.removeprefix("benchmark-")
        size = _SIZE.search(source.config)
        if table not in _TABLES or size is None:
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
            is_rebuilt=_TABLES[table].is_rebuilt,
        )


def run(row: Row, laboratory: Laboratory) -> Answers:
    """Let the benchmark find the largest batch on the phantom GPU; where it finds another one than was
    published, also with 2% less and 2% more memory (items ``batch-2%``, ``batch+2%``)."""
    table, model, size = row.job.split("/")
    setting = _TABLES[table]
    code = laboratory.code(_REPOSITORY, setting.commit)
    bench = table.partition("-")[0]
    command = [
        *[
            laboratory.python(setting.environment),
            str(code / "benchmark.py"),
            "--model",
            model,
            "--img-size",
            size,
        ],
        *["--bench", bench, "--amp", "-b", str(setting.batch), *setting.options],
        # Memory is at its peak after the first iterations; the script needs five to print its figures.
        *["--num-warm-iter", "1", "--num-bench-iter", "5"],
    ]

    def largest(capacity: float) -> tuple[float | None, str]:
        ran = laboratory.on_phantom(
            command, row.gpu, strict=True, capacity=capacity, variables={"PYTHONPATH": str(code)}
        )
        found = ran.output.rpartition("--result")[2]
        try:
            return float(json.loads(found)[f"{bench}_batch_size"]), ""
        except (ValueError, KeyError, TypeError):
            return None, ran.problem or f"the benchmark gave no batch: {found.strip()[:300]}"

    batch, problem = largest(1.0)
    torch = laboratory.torch(setting.environment)
    if batch is None:
        return Answers(problem=problem, torch=torch)
    figures = {"batch": batch}
    if batch != row.truth:
        for share in (0.98, 1.02):
            other, _ = largest(share)
            if other is not None:
                figures[f"batch{(share - 1) * 100:+.0f}%"] = other
    return Answers(figures=figures, torch=torch)

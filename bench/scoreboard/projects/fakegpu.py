"""FakeGPU's comparison with real cards: one step of fine-tuning, sharded over two or four ranks.

FakeGPU is the nearest relative of this project: it computes on the CPU and follows tensors. Its documentation
has the peak of allocated memory of a rank on a real card, and its own prediction. Both ranks ran on one card
there, with FakeGPU's collectives; here rank 0 stands for all.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scoreboard.answers import Answers
from scoreboard.laboratory import Laboratory
from scoreboard.rows import Row, card_of, read_sources
from xmem.capture import World

NAME = "fakegpu"
FILE = "published_tables.csv"
_REPOSITORY = "FanBB2333/FakeGPU"
_COMMIT = "7d5cf83cf3"
_MODEL = "qwen3.5-0.8b"
# Neither card is described; these have their compute capability.
_CARDS = {"RTX PRO 5000 Blackwell": "rtx-pro-6000", "RTX 3090 Ti Ampere": "rtx-3090"}
# What each was measured with, and the environment that is nearest.
_RELEASES = {"rtx-pro-6000": "2.8.0", "rtx-3090": "2.12.1"}
_ENVIRONMENTS = {
    "rtx-pro-6000": "torch-2.8.0-transformers-5.12",
    "rtx-3090": "torch-2.12.0-transformers-5.12",
}
_FULL, _LORA = "qwen_fsdp_sft_memory_worker.py", "qwen_fsdp2_lora_sft_memory_worker.py"
# Here the script checks that the optimizer has changed a weight, which cannot be seen without computing.
_CHECKED_LINE = 471
_GIB = 1 << 30


def rows(data: Path) -> Iterator[Row]:
    """The peaks of a rank on real cards."""
    for source in read_sources(data / FILE):
        length = re.search(r"Seq\.=(\d+)", source.config)
        if source.repository != _REPOSITORY or length is None:
            continue
        ranks = re.search(r"Ranks=(\d)", source.config)
        kind = "lora" if "LoRA" in source.config else "full"
        card = card_of(source, _CARDS, NAME)
        yield Row(
            project=NAME,
            job=f"{kind}/{ranks[1] if ranks else 2}/{length[1]}/{card}",
            item="peak",
            kind="fine-tuning, FSDP",
            gpu=card,
            torch=_RELEASES[card],
            quantity="allocated",
            truth=float(source.value.split()[0]) * _GIB,
            rounding=0.0005 * _GIB,
            is_rebuilt=_ENVIRONMENTS[card].startswith(f"torch-{_RELEASES[card]}-"),
            rival=_rival(source.notes),
        )


def run(row: Row, laboratory: Laboratory) -> Answers:
    """Run the script as rank 0."""
    kind, ranks, length, _ = row.job.split("/")
    environment = _ENVIRONMENTS[row.gpu]
    script = laboratory.code(_REPOSITORY, _COMMIT) / "verification" / (_LORA if kind == "lora" else _FULL)
    with tempfile.TemporaryDirectory(prefix="scoreboard-") as folder:
        ran = laboratory.on_phantom(
            [
                *[laboratory.python(environment), str(script), "--report-dir", folder],
                *["--model-dir", str(laboratory.model(_MODEL, environment)), "--sequence-length", length],
            ],
            row.gpu,
            values={f"{script}:{_CHECKED_LINE}": 1.0} if kind == "lora" else None,
            world=World(int(ranks), (0,)),
        )
        report = Path(folder) / "rank_0.json"
        said = json.loads(report.read_text()) if report.exists() else {}
    torch = laboratory.torch(environment)
    try:
        return Answers({"peak": said["memory_phases"]["overall_peak_bytes"]}, torch=torch)
    except KeyError:
        return Answers(problem=str(said.get("error") or ran.problem), torch=torch)


def _rival(notes: str) -> float | None:
    predicted = re.search(r"predicted ([\d.]+) GiB", notes)
    return float(predicted[1]) * _GIB if predicted else None

"""torchtitan's tables and logs: the most that a rank of a sharded training run reserves.

The figure is PyTorch's own count, which the script prints. One process stands for a rank of up to 256.
``torchtitan.toml`` has the jobs: the commit, its options, and which published figures are theirs.
"""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scoreboard.answers import Answers
from scoreboard.laboratory import Laboratory
from scoreboard.rows import Row, Source, read_sources
from xmem.capture import World

NAME = "torchtitan"
FILE = "torchtitan.csv"
_REPOSITORY = "pytorch/torchtitan"
_PATHS = (":(glob)**/*.py", ":(glob)**/*.toml", "tests/assets/*token*")
_GIB = 1 << 30
# The second step has the optimizer's state, which the first makes; figures do not change after it.
_STEPS = 3
# Llama 3's tokenizer: merges and 256 special tokens. Its size is the model's vocabulary.
_MERGES = 128_000


@dataclass(frozen=True)
class Edit:
    """What the run's own log shows to be different from its commit: a text of a file, for another."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Job:
    """A table of ``torchtitan.toml``.

    Attributes:
        name: What the page calls it.
        file: Where its figure stands: a part of the source's ``repo_path``.
        figure: The figure as published, which tells it from others of the same file.
        commit: Of the code.
        environment: Of ``environments``.
        config: The script's configuration file.
        options: More of its command line.
        allocator: PyTorch's settings of the allocator; by default those of the project's script.
        gpus: Ranks of the job.
        rank: The one that the figure is of; the process stands for it.
        gpu: Name of the card.
        kind: For the tables.
        notes: A part of the source's notes, where several figures are equal.
        edit: What the code of the run had otherwise.
        words: Size of the tokenizer, where the model takes its vocabulary from it and it is not Llama's.
        torch: Release that was measured; empty where the source does not say it.
    """

    name: str
    file: str
    figure: str
    commit: str
    environment: str
    config: str
    options: str = ""
    allocator: str = "expandable_segments:True"
    gpus: int = 8
    rank: int = 0
    gpu: str = "h100-96gb"
    kind: str = "pre-training, sharded"
    notes: str = ""
    edit: Edit | None = None
    words: int = 0
    torch: str = ""

    def is_of(self, source: Source) -> bool:
        """Whether a published figure is this job's."""
        is_same = source.value.removesuffix(" GiB") == self.figure and self.notes in source.notes
        return is_same and self.file in source.path


def rows(data: Path) -> Iterator[Row]:
    """The figures of jobs in ``torchtitan.toml``."""
    for source in read_sources(data / FILE):
        for job in _jobs().values():
            if job.is_of(source):
                digits = len(job.figure.partition(".")[2])
                yield Row(
                    project=NAME,
                    job=job.name,
                    item="peak",
                    kind=job.kind,
                    gpu=job.gpu,
                    torch=job.torch,
                    quantity="reserved",
                    truth=float(job.figure) * _GIB,
                    rounding=0.5 * 10.0**-digits * _GIB,
                    is_rebuilt=False,
                )
                break


def run(row: Row, laboratory: Laboratory) -> Answers:
    """Run the script as one rank, for as many steps as its memory changes."""
    job = _jobs()[row.job]
    code = laboratory.code(_REPOSITORY, job.commit, _PATHS)
    python = laboratory.python(job.environment)
    script = ["train.py"] if (code / "train.py").exists() else ["-m", "torchtitan.train"]
    with tempfile.TemporaryDirectory(prefix="scoreboard-") as scratch:
        if job.edit is not None:
            code = _edited(code, job.edit, Path(scratch))
        ran = laboratory.on_phantom(
            [
                *[python, *script, "--job.config_file", job.config, "--job.dump_folder", scratch],
                *["--training.dataset", "c4_test", "--training.dataset_path", str(_texts(Path(scratch)))],
                *["--training.steps", str(_STEPS)],
                *[*_tokenizer(code, job, Path(scratch)), *job.options.split()],
            ],
            row.gpu,
            variables={"PYTORCH_CUDA_ALLOC_CONF": job.allocator, "PYTHONPATH": str(code)},
            world=World(job.gpus, (job.rank,)),
            folder=code,
        )
    torch = laboratory.torch(job.environment)
    if job.rank not in ran.reserved:
        return Answers(problem=ran.problem or "the rank reserved nothing", torch=torch)
    return Answers({"peak": float(ran.reserved[job.rank])}, torch=torch)


@cache
def _jobs() -> dict[str, Job]:
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["job"]
    jobs = [Job(**{**table, "edit": Edit(**table["edit"]) if "edit" in table else None}) for table in tables]
    return {job.name: job for job in jobs}


def _edited(code: Path, edit: Edit, folder: Path) -> Path:
    edited = folder / "code"
    shutil.copytree(code, edited)
    before = (edited / edit.file).read_text()
    assert edit.old in before
    (edited / edit.file).write_text(before.replace(edit.old, edit.new))
    return edited


def _texts(folder: Path) -> Path:
    """A data set as the script reads it; its samples fill sequences whatever their length."""
    texts = folder / "texts"
    texts.mkdir()
    lines = (json.dumps({"text": f"{number} is a number. " * 500}) for number in range(2000))
    (texts / "data.json").write_text("\n".join(lines))
    return texts


def _tokenizer(code: Path, job: Job, folder: Path) -> list[str]:
    """The option that names a tokenizer: one of the right size is made, or the tests' own, where the
    vocabulary is the model's."""
    tests = code / "tests" / "assets" / "tokenizer"
    if not (tests / "tokenizer.json").exists():
        return ["--model.tokenizer_path", str(_llama_tokenizer(folder / "tokenizer.model"))]
    option = "hf_assets_path" if "hf_assets_path" in (code / job.config).read_text() else "tokenizer_path"
    return [f"--model.{option}", str(_grown(tests, job.words, folder) if job.words else tests)]


def _llama_tokenizer(path: Path) -> Path:
    tokens = itertools.chain.from_iterable(
        (bytes(token) for token in itertools.product(range(256), repeat=length)) for length in (1, 2, 3)
    )
    with path.open("w") as lines:
        for rank, token in enumerate(itertools.islice(tokens, _MERGES)):
            lines.write(f"{base64.b64encode(token).decode()} {rank}\n")
    return path


def _grown(tests: Path, words: int, folder: Path) -> Path:
    """The tests' tokenizer with as many words as the job's."""
    grown = folder / "tokenizer"
    shutil.copytree(tests, grown)
    tokenizer = json.loads((tests / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    unused = set(range(words)).difference(vocabulary.values())
    vocabulary.update({f"<unused {number}>": number for number in unused})
    (grown / "tokenizer.json").write_text(json.dumps(tokenizer))
    return grown

"""modded-nanogpt's records: what rank 0 of 8 allocates and reserves while it trains a GPT-2.

Each log begins with the whole script that wrote it, and ends with PyTorch's own count. Logs of the same
script share a job. ``modded_nanogpt.toml`` has the jobs: a log to take the script from, and the environment.

The script runs as it is but for how often it repeats, and for what its environment refuses: it trains for
fewer steps, and validates after fewer of them. Its schedules are in shares of all steps, so attention windows
still grow to the last one; they are values of a tensor, on which no size depends. Tokens are made up.
FlashAttention 3 is built without its kernels.
"""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from scoreboard import extensions
from scoreboard.answers import Answers
from scoreboard.laboratory import Laboratory
from scoreboard.rows import MIB, Row, read_sources
from xmem.capture import World

NAME = "modded_nanogpt"
FILE = "modded_nanogpt_logs.csv"
_REPOSITORY = "KellerJordan/modded-nanogpt"
_COMMIT = "f411b3d346"
_GPU = "h100"
_RANKS = 8
# How often a script repeats what it does, by the names that it has for that.
_SHORTER = {
    "num_iterations": 20,
    "num_scheduled_iterations": 20,
    "num_extension_iterations": 4,
    "val_loss_every": 10,
}
# A script ends before this line of its log; modules of its own follow it under such a head.
_END_OF_SCRIPT = "=" * 100
_MODULE = re.compile(r"\n+-{40}\n# (\w+\.py)\n-{40}\n+")
_FLASH_ATTENTION_3 = re.compile(r"\bget_kernel\b|\bflash_attn_interface\b")
_PEAKS = re.compile(r"peak memory (?:allocated|consumption): (\d+) MiB(?:\s+reserved: (\d+) MiB)?")
# The files that scripts read: a header, then tokens; this one begins a document.
_HEADER = (20240520, 1)
_HEADER_WORDS = 256
_TOKENS = 100_000_000
_VOCABULARY = 50257
_FIRST_OF_A_DOCUMENT = 50256
_DOCUMENT = 1000


@dataclass(frozen=True)
class Job:
    """A table of ``modded_nanogpt.toml``.

    Attributes:
        name: What the page calls it.
        logs: Folder of the logs, below ``records``.
        torch: What was measured with; a folder may have logs of several scripts, one for each build.
        log: File of the folder whose script is run: the same text as in all others of this build.
        environment: Of ``environments``.
        old: A text of the script that the environment refuses; there is none as a rule.
        new: What stands there instead.
    """

    name: str
    logs: str
    torch: str
    log: str
    environment: str
    old: str = ""
    new: str = ""


def rows(data: Path) -> Iterator[Row]:
    """The figures of jobs in ``modded_nanogpt.toml``."""
    for source in read_sources(data / FILE):
        job = _jobs().get((str(Path(source.path).parent), source.torch.split("+")[0]))
        if job is None:
            continue
        quantity = "reserved" if "reserved" in source.metric else "allocated"
        yield Row(
            project=NAME,
            job=job.name,
            item=quantity,
            kind="pre-training, compiled",
            gpu=_GPU,
            torch=job.torch,
            quantity=quantity,
            truth=float(source.value.removesuffix(" MiB")) * MIB,
            rounding=0.5 * MIB,
            is_rebuilt=re.fullmatch(r"[\d.]+", job.torch) is not None,
        )


def run(row: Row, laboratory: Laboratory) -> Answers:
    """Run the script of a log as rank 0."""
    job = next(job for job in _jobs().values() if job.name == row.job)
    log = laboratory.git(_REPOSITORY, "show", f"{_COMMIT}:records/{job.logs}/{job.log}")
    text, *modules = _MODULE.split(shortened(log.partition(_END_OF_SCRIPT)[0]))
    assert job.old in text
    variables = {}
    if _FLASH_ATTENTION_3.search(text):
        variables["PYTHONPATH"] = str(extensions.flash_attention_3(laboratory, job.environment))
    with tempfile.TemporaryDirectory(prefix="scoreboard-") as scratch:
        folder = Path(scratch)
        (folder / "logs").mkdir()
        script = folder / "train_gpt2.py"
        script.write_text(text.replace(job.old, job.new) if job.old else text)
        for name, module in zip(modules[::2], modules[1::2], strict=True):
            (folder / name).write_text(module)
        write_tokens(folder / "data" / "fineweb10B")
        ran = laboratory.on_phantom(
            [laboratory.python(job.environment), str(script)],
            row.gpu,
            variables={"PATH": _path_with_nvidia_smi(folder / "bin"), **variables},
            world=World(_RANKS, (0,)),
            folder=folder,
        )
    torch = laboratory.torch(job.environment)
    figures = peaks(ran.output)
    if not figures:
        return Answers(problem=ran.problem or "the script printed no peak", torch=torch)
    return Answers(figures, torch=torch)


def shortened(script: str) -> str:
    """The script with fewer steps, and validations among them."""
    found = set()
    for name, value in _SHORTER.items():
        script, count = re.subn(rf"\b({name}(?:\s*: int)? = \(?\s*)\d+", rf"\g<1>{value}", script)
        assert count <= 1, name
        found |= {name} if count else set()
    assert {"num_iterations", "num_scheduled_iterations"} & found, "no number of steps"
    assert "val_loss_every" in found
    return script


def peaks(output: str) -> dict[str, float]:
    """What the script says at its end, in bytes."""
    said = _PEAKS.search(output)
    if said is None:
        return {}
    named = zip(("allocated", "reserved"), said.groups(), strict=True)
    return {quantity: float(mib) * MIB for quantity, mib in named if mib is not None}


def write_tokens(folder: Path) -> None:
    """Texts to train on and to validate with."""
    folder.mkdir(parents=True)
    header = np.zeros(_HEADER_WORDS, np.int32)
    header[:3] = (*_HEADER, _TOKENS)
    tokens = np.random.default_rng(0).integers(_VOCABULARY - 1, size=_TOKENS, dtype=np.uint16)
    tokens[::_DOCUMENT] = _FIRST_OF_A_DOCUMENT
    for part in ("train", "val"):
        (folder / f"fineweb_{part}_000001.bin").write_bytes(header.tobytes() + tokens.tobytes())
    # Newer scripts load the next file ahead.
    (folder / "fineweb_train_000002.bin").hardlink_to(folder / "fineweb_train_000001.bin")


def _path_with_nvidia_smi(folder: Path) -> str:
    """The scripts put into their logs what it prints."""
    folder.mkdir()
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@cache
def _jobs() -> dict[tuple[str, str], Job]:
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["job"]
    jobs = [Job(**table) for table in tables]
    return {(f"records/{job.logs}", job.torch): job for job in jobs}

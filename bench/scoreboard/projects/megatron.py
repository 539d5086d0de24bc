"""Megatron-LM's golden files: the peak of allocated bytes of the last rank in its functional tests.

The arguments are those of the test's recipe; its data is made up, because shapes do not depend on it. The
last rank runs beside rank 0, which tells the others whether to train. Tests of T5 are not here, because they
want tokenized data, nor are those of 7B models: FlashAttention is not built for heads of their size.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from scoreboard import extensions
from scoreboard.answers import Answers
from scoreboard.from_source import printed, toolkit
from scoreboard.laboratory import Laboratory
from scoreboard.rows import Row, Source, read_sources
from xmem.capture import Extent, World

NAME = "megatron"
FILE = "megatron_lm_golden.csv"
_REPOSITORY = "NVIDIA/Megatron-LM"
# The commit of most golden files. Code of 2026-05 and later needs Python 3.12, so tests of it are left out.
_COMMIT = "adc69dba2d"
_LEFT_OUT = re.compile(
    r"_1node$|_fim_dataset$|_gb200$|_op_fuser$|_check_grads$"
    r"|dynamic_inference|offline_inference|grpo|weekly|muon|offloading|/gpt3_7b_"
)
# The LTS container until November 2025 has a TransformerEngine that takes FlashAttention only where a test
# asks for it, or allows algorithms that are not deterministic (NVTE_ALLOW_NONDETERMINISTIC_ALGO): these do.
_OLD_CONTAINER = re.compile(r"_lts_dgxa100_dracooci")
_OLD_LOG = "env=lts; value = max over 21 logged steps"
_OTHER_ATTENTION = re.compile(r"transformer-impl=local|attention-backend=")
_NOT_DETERMINISTIC = re.compile(r"_nondeterministic|_resume_torch_dist_reshard_")
_UNFUSED = "/unfused"
_PATHS = ("megatron", ":(glob)*.py")
_TESTS = "tests/functional_tests/test_cases"
_ENVIRONMENT = "torch-2.12.0-megatron"
# GB200's GPU is described as B200: the same compute capability, and no size here depends on its memory. Files
# that do not name a card are taken for those of an A100.
_CARDS = {"A100": "a100-80gb", "H100": "h100", "GB200": "b200", "not": "a100-80gb"}
_RANKS = 8
# The optimizer's state, which its first step makes, is there from the second on.
_ITERATIONS = 3
# What names files of the test's data, or where to write.
_OF_FILES = re.compile(r"--(data-path|vocab-file|merge-file|tensorboard-dir|save|load|data-cache-path)")
# GPT-2's vocabulary has one token more, which Megatron's null tokenizer adds.
_MADE_UP = ("--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", "50256")


def rows(data: Path) -> Iterator[Row]:
    """Peaks of first runs; runs that resume from a checkpoint are not here."""
    for source in read_sources(data / FILE):
        is_here = source.model.startswith(("gpt/", "moe/")) and not _LEFT_OUT.search(source.model)
        if not is_here or "_2nd" in source.path:
            continue
        card = _CARDS[source.gpu.split()[0]]
        yield Row(
            project=NAME,
            job=f"{source.model}/{card}{_UNFUSED if _is_unfused(source) else ''}",
            item="peak",
            kind="pre-training, tensor, pipeline and expert parallel",
            gpu=card,
            torch="",
            quantity="allocated",
            truth=float(source.value),
            # TensorBoard, from which the file was made, keeps 24 bits.
            rounding=float(source.value) * 2.0**-24,
            is_rebuilt=False,
        )


def _is_unfused(source: Source) -> bool:
    """Whether a file was measured with attention that keeps whole matrices of scores."""
    is_old = _OLD_CONTAINER.search(source.path) or source.notes.startswith(_OLD_LOG)
    is_chosen = _OTHER_ATTENTION.search(source.config) or _NOT_DETERMINISTIC.search(source.model)
    return bool(is_old and not is_chosen)


def run(row: Row, laboratory: Laboratory) -> Answers:
    """Run the test's script as the last rank; its figure holds for every golden file of the test."""
    test = row.job.removesuffix(_UNFUSED).rpartition("/")[0]
    python = laboratory.python(_ENVIRONMENT)
    code = laboratory.code(_REPOSITORY, _COMMIT, _PATHS)
    _compile_helpers(code, python)
    recipe = yaml.safe_load(
        laboratory.git(_REPOSITORY, "show", f"{_COMMIT}:{_TESTS}/{test}/model_config.yaml")
    )
    cuda = toolkit(python, laboratory.checkouts / f"cuda-{_ENVIRONMENT}")
    packages = {
        "Apex": extensions.apex,
        "transformer_engine": extensions.transformer_engine,
        "flash_attn": extensions.flash_attention,
    }
    removed = re.findall(r"uninstall -y (\w+)", recipe.get("BEFORE_SCRIPT", ""))
    kept = [build for name, build in packages.items() if name not in removed]
    folders = [code, *(build(laboratory, _ENVIRONMENT, cuda) for build in kept)]
    attention = ("--attention-backend", "unfused") if row.job.endswith(_UNFUSED) else ()
    # A folder of its own for what the script compiles: a run that is cut short leaves a lock there.
    with tempfile.TemporaryDirectory(prefix="scoreboard-") as compiled:
        ran = laboratory.on_phantom(
            [python, str(code / "pretrain_gpt.py"), *arguments(recipe), *_MADE_UP, *attention],
            row.gpu,
            variables={
                "CUDA_HOME": str(cuda),
                "TORCH_EXTENSIONS_DIR": compiled,
                "PYTHONPATH": os.pathsep.join(map(str, folders)),
                **{name: str(value) for name, value in recipe["ENV_VARS"].items()},
            },
            world=World(_RANKS, (0, _RANKS - 1)),
            rank=_RANKS - 1,
            extent=Extent(_ITERATIONS),
        )
    torch = laboratory.torch(_ENVIRONMENT)
    peak = ran.allocated.get(_RANKS - 1)
    if peak is None:
        return Answers(problem=ran.problem or "the last rank allocated nothing", torch=torch)
    return Answers({"peak": float(peak)}, torch=torch)


def arguments(recipe: dict[str, Any]) -> list[str]:
    """The command line of a recipe, without what names files."""
    given = []
    for name, value in recipe["MODEL_ARGS"].items():
        if value is False or _OF_FILES.fullmatch(name):
            continue
        given += [name] if value is True else [name, *_words(value)]
    return given


def _words(value: Any) -> list[str]:
    """The words of an option's value: several where it is a list of numbers, as YAML or in brackets."""
    if isinstance(value, list):
        return [str(each) for each in value]
    numbers = re.fullmatch(r"\[?(\d+(?: \d+)+)\]?", str(value))
    return numbers[1].split() if numbers else [str(value)]


def _compile_helpers(code: Path, python: str) -> None:
    """Build the data set's C++ module, which the script itself would build with another Python's headers."""
    folder = code / "megatron" / "core" / "datasets"
    suffix = "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"
    module = folder / f"helpers_cpp{printed(python, '-c', suffix)}"
    if not module.exists():
        compiler = [shutil.which("c++") or "c++", "-O3", "-shared", "-std=c++17", "-fPIC"]
        includes = printed(python, "-m", "pybind11", "--includes").split()
        subprocess.run([*compiler, *includes, str(folder / "helpers.cpp"), "-o", str(module)], check=True)

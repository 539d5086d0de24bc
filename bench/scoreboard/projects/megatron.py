"""Megatron-LM's golden files: the peak of allocated bytes of the last rank in its functional tests.

They use the kernels of Apex and TransformerEngine, which have no wheels for PyTorch: both are built from
source, once. Only tests of local layers and of unfused attention are here. The others take FlashAttention,
which takes hours to build; tests of T5 want tokenized data. The arguments are those of the test's recipe; its
data is made up, because shapes do not depend on it. The last rank runs beside rank 0, which tells the others
whether to train.
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

from scoreboard.answers import Answers
from scoreboard.from_source import install, printed, toolkit
from scoreboard.laboratory import Laboratory
from scoreboard.rows import Row, read_sources
from xmem.capture import Extent, World

NAME = "megatron"
FILE = "megatron_lm_golden.csv"
_REPOSITORY = "NVIDIA/Megatron-LM"
# The commit of most golden files. Code of 2026-05 and later needs Python 3.12; these tests came with it.
_COMMIT = "adc69dba2d"
_LATER = re.compile(
    r"_1node$|_fim_dataset$|_gb200$|_op_fuser$|_check_grads$"
    r"|dynamic_inference|offline_inference|grpo|weekly|muon|offloading"
)
_LAYERS = re.compile(r"transformer-impl=local|attention-backend=unfused")
_PATHS = ("megatron", ":(glob)*.py")
_TESTS = "tests/functional_tests/test_cases"
_APEX, _APEX_COMMIT = "NVIDIA/apex", "6424da3b"
_TRANSFORMER_ENGINE = "2.9.0"
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
        is_here = source.model.startswith(("gpt/", "moe/")) and not _LATER.search(source.model)
        if not is_here or not _LAYERS.search(source.config) or "_2nd" in source.path:
            continue
        card = _CARDS[source.gpu.split()[0]]
        yield Row(
            project=NAME,
            job=f"{source.model}/{card}",
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


def run(row: Row, laboratory: Laboratory) -> Answers:
    """Run the test's script as the last rank; its figure holds for every golden file of the test."""
    test = row.job.rpartition("/")[0]
    python = laboratory.python(_ENVIRONMENT)
    code = laboratory.code(_REPOSITORY, _COMMIT, _PATHS)
    _compile_helpers(code, python)
    recipe = yaml.safe_load(
        laboratory.git(_REPOSITORY, "show", f"{_COMMIT}:{_TESTS}/{test}/model_config.yaml")
    )
    cuda = toolkit(python, laboratory.checkouts / f"cuda-{_ENVIRONMENT}")
    extensions = {
        "Apex": _apex(laboratory, python, cuda),
        "transformer_engine": _transformer_engine(laboratory, python, cuda),
    }
    removed = re.findall(r"uninstall -y (\w+)", recipe.get("BEFORE_SCRIPT", ""))
    folders = [code, *(folder for name, folder in extensions.items() if name not in removed)]
    # A folder of its own for what the script compiles: a run that is cut short leaves a lock there.
    with tempfile.TemporaryDirectory(prefix="scoreboard-") as compiled:
        ran = laboratory.on_phantom(
            [python, str(code / "pretrain_gpt.py"), *arguments(recipe), *_MADE_UP],
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
        given += [name] if value is True else [name, str(value)]
    return given


def _apex(laboratory: Laboratory, python: str, cuda: Path) -> Path:
    """Apex as a folder to import from: kernels for compute capability 8.0, and PTX for later cards."""
    source = laboratory.code(_APEX, _APEX_COMMIT)
    built = source.with_name(f"{_APEX_COMMIT}-{laboratory.torch(_ENVIRONMENT)}")
    if not built.exists():
        variables = {"APEX_CUDA_EXT": "1", "TORCH_CUDA_ARCH_LIST": "8.0+PTX"}
        install(python, [str(source)], built, cuda, variables)
    return built


def _transformer_engine(laboratory: Laboratory, python: str, cuda: Path) -> Path:
    """TransformerEngine as a folder to import from: only its part for PyTorch is compiled."""
    release = laboratory.torch(_ENVIRONMENT)
    built = laboratory.checkouts / f"transformer_engine-{_TRANSFORMER_ENGINE}-{release}"
    if not built.exists():
        packages = [f"transformer_engine{part}=={_TRANSFORMER_ENGINE}" for part in ("", "_cu13", "_torch")]
        install(python, packages, built, cuda, {"NVTE_PYTORCH_FORCE_BUILD": "TRUE"})
    return built


def _compile_helpers(code: Path, python: str) -> None:
    """Build the data set's C++ module, which the script itself would build with another Python's headers."""
    folder = code / "megatron" / "core" / "datasets"
    suffix = "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"
    module = folder / f"helpers_cpp{printed(python, '-c', suffix)}"
    if not module.exists():
        compiler = [shutil.which("c++") or "c++", "-O3", "-shared", "-std=c++17", "-fPIC"]
        includes = printed(python, "-m", "pybind11", "--includes").split()
        subprocess.run([*compiler, *includes, str(folder / "helpers.cpp"), "-o", str(module)], check=True)

"""Megatron-LM's golden files: the peak of allocated bytes of the last rank in its functional tests.

Only tests with ``--transformer-impl local`` are here, because TransformerEngine has no wheels for PyTorch.
Apex, whose kernels these use, has none either: it is built from source, once. Tests of T5, whose data has to
be tokenized, are not here. The arguments of a test are those of its recipe; its data is made up, because
shapes do not depend on it. The last rank runs beside rank 0, which tells the others whether to train.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from scoreboard.answers import Answers
from scoreboard.laboratory import Laboratory
from scoreboard.rows import Row, read_sources
from xmem.capture import Extent, World
from xmem.errors import ConfigError

NAME = "megatron"
FILE = "megatron_lm_golden.csv"
_REPOSITORY = "NVIDIA/Megatron-LM"
# The commit of most golden files. Code of 2026-05 and later needs Python 3.12.
_COMMIT = "adc69dba2d"
_PATHS = ("megatron", ":(glob)*.py")
_TESTS = "tests/functional_tests/test_cases"
_APEX, _APEX_COMMIT = "NVIDIA/apex", "6424da3b"
_ENVIRONMENT = "torch-2.12.0-apex"
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
        is_here = source.model.startswith(("gpt/", "moe/")) and "transformer-impl=local" in source.config
        if not is_here or "_2nd" in source.path:
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
    folders = [code]
    _compile_helpers(code, python)
    recipe = yaml.safe_load(
        laboratory.git(_REPOSITORY, "show", f"{_COMMIT}:{_TESTS}/{test}/model_config.yaml")
    )
    if "uninstall -y Apex" not in recipe.get("BEFORE_SCRIPT", ""):
        folders.append(_built_apex(laboratory, python))
    ran = laboratory.on_phantom(
        [python, str(code / "pretrain_gpt.py"), *arguments(recipe), *_MADE_UP],
        row.gpu,
        variables={
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


def _built_apex(laboratory: Laboratory, python: str) -> Path:
    """Apex as a folder to import from, built with the compiler that the environment has as a wheel.

    Its kernels are compiled for compute capability 8.0, and as PTX for the cards that came later.
    """
    source = laboratory.code(_APEX, _APEX_COMMIT)
    built = source.with_name(f"{_APEX_COMMIT}-{laboratory.torch(_ENVIRONMENT)}")
    if not built.exists():
        wheels = Path(_said(python, "-c", "import nvidia.cu13; print(nvidia.cu13.__path__[0])"))
        toolkit = _toolkit(wheels, source.with_name("cuda"))
        done = subprocess.run(
            [python, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--target", built, source],
            env={
                **os.environ,
                "APEX_CUDA_EXT": "1",
                "CUDA_HOME": str(toolkit),
                "PATH": os.pathsep.join([str(Path(python).parent), os.environ["PATH"]]),
                "TORCH_CUDA_ARCH_LIST": "8.0+PTX",
            },
            check=False,
        )
        if done.returncode:
            raise ConfigError(f"Apex in {source} cannot be built", "see what pip printed above")
    return built


def _toolkit(wheels: Path, folder: Path) -> Path:
    """The folder that wheels of CUDA share, laid out as an installed toolkit is."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "lib64").mkdir(parents=True)
    for name in ("bin", "include", "nvvm"):
        (folder / name).symlink_to(wheels / name)
    (runtime,) = (wheels / "lib").glob("libcudart.so.*")
    (folder / "lib64" / "libcudart.so").symlink_to(runtime)
    return folder


def _compile_helpers(code: Path, python: str) -> None:
    """Build the data set's C++ module, which the script itself would build with another Python's headers."""
    folder = code / "megatron" / "core" / "datasets"
    suffix = "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"
    module = folder / f"helpers_cpp{_said(python, '-c', suffix)}"
    if not module.exists():
        compiler = [shutil.which("c++") or "c++", "-O3", "-shared", "-std=c++17", "-fPIC"]
        includes = _said(python, "-m", "pybind11", "--includes").split()
        subprocess.run([*compiler, *includes, str(folder / "helpers.cpp"), "-o", str(module)], check=True)


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

"""Packages of CUDA code that training scripts import and that have no wheels, each built once.

No GPU ever runs what is built here, so it is built for as few architectures as possible, or for none.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from scoreboard.from_source import compile_module, empty_folder, install, unpack
from scoreboard.laboratory import HERE, Laboratory

_APEX, _APEX_COMMIT = "NVIDIA/apex", "6424da3b"
_TRANSFORMER_ENGINE = "2.9.0"
# The newest that this TransformerEngine takes, and what is compiled of it: one size of heads in one type,
# without what Megatron's models do not use.
_FLASH_ATTENTION = "2.8.1"
_COMPILED = re.compile(r"hdim64_bf16")
_UNUSED = ("ALIBI", "SOFTCAP", "LOCAL")
_FLASH_ATTENTION_3, _FLASH_ATTENTION_3_COMMIT = "Dao-AILab/flash-attention", "0251105a"
_STAND_INS = HERE / "stand_ins" / "flash_attention_3"
_ENTRY = re.compile(r"void run_mha_\w+<[^>]*>\([^)]*\)")


def apex(laboratory: Laboratory, environment: str, cuda: Path) -> Path:
    """Apex as a folder to import from: kernels for compute capability 8.0, and PTX for later cards."""
    source = laboratory.code(_APEX, _APEX_COMMIT)
    built = source.with_name(f"{_APEX_COMMIT}-{laboratory.torch(environment)}")
    if not built.exists():
        variables = {"APEX_CUDA_EXT": "1", "TORCH_CUDA_ARCH_LIST": "8.0+PTX"}
        install(laboratory.python(environment), [str(source)], built, cuda, variables)
    return built


def transformer_engine(laboratory: Laboratory, environment: str, cuda: Path) -> Path:
    """TransformerEngine as a folder to import from: only its part for PyTorch is compiled."""
    release = laboratory.torch(environment)
    built = laboratory.checkouts / f"transformer_engine-{_TRANSFORMER_ENGINE}-{release}"
    if not built.exists():
        packages = [f"transformer_engine{part}=={_TRANSFORMER_ENGINE}" for part in ("", "_cu13", "_torch")]
        install(laboratory.python(environment), packages, built, cuda, {"NVTE_PYTORCH_FORCE_BUILD": "TRUE"})
    return built


def flash_attention(laboratory: Laboratory, environment: str, cuda: Path) -> Path:
    """FlashAttention as a folder to import from, with kernels for heads of 64 elements in bfloat16 alone.

    All of them would take hours to compile: a call of another one raises an error.
    """
    release = laboratory.torch(environment)
    built = laboratory.checkouts / f"flash_attn-{_FLASH_ATTENTION}-{release}"
    if built.exists():
        return built
    # Slow code for the oldest card, and PTX for all others.
    flags = ["-Xptxas=-O0", "-gencode=arch=compute_80,code=compute_80"]
    flags += [f"-DFLASHATTENTION_DISABLE_{feature}" for feature in _UNUSED]
    variables = {
        "FLASH_ATTENTION_FORCE_BUILD": "TRUE",
        "FLASH_ATTN_CUDA_ARCHS": "80",
        "NVCC_APPEND_FLAGS": " ".join(flags),
    }
    with tempfile.TemporaryDirectory(prefix="scoreboard-") as scratch:
        folder = unpack(laboratory.python(environment), f"flash_attn=={_FLASH_ATTENTION}", Path(scratch))
        _leave_out(folder / "csrc" / "flash_attn" / "src")
        install(laboratory.python(environment), [str(folder)], built, cuda, variables)
    return built


def flash_attention_3(laboratory: Laboratory, environment: str) -> Path:
    """FlashAttention 3 as a folder to import from, with the package ``kernels``, by which scripts get it from
    the Hugging Face hub. Its host code allocates; its kernels do nothing."""
    built = laboratory.checkouts / f"flash_attn_3-{laboratory.torch(environment)}"
    if built.exists():
        return built
    source = laboratory.code(_FLASH_ATTENTION_3, _FLASH_ATTENTION_3_COMMIT, ("hopper",)) / "hopper"
    partial = empty_folder(built)
    package = partial / "flash_attn_3"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(source / "flash_attn_interface.py", partial)
    for module in _STAND_INS.glob("*.py"):
        shutil.copy(module, partial)
    compile_module(
        laboratory.python(environment), _STAND_INS / "no_kernels.cpp", package / "_C.abi3.so", source
    )
    return partial.rename(built)


def _leave_out(folder: Path) -> None:
    """Replace the kernels of FlashAttention that are not compiled by functions that raise an error."""
    left_out = [file for file in sorted(folder.glob("flash_*_hdim*.cu")) if not _COMPILED.search(file.name)]
    refusing = []
    for file in left_out:
        refusing += [
            f'template<> {entry} {{ throw std::runtime_error("{file.stem} was not built"); }}'
            for entry in _ENTRY.findall(file.read_text())
        ]
        file.write_text("")
    if refusing:
        head = ["#include <stdexcept>", "#include <cutlass/numeric_types.h>", '#include "namespace_config.h"']
        body = ['#include "flash.h"', "namespace FLASH_NAMESPACE {", *refusing, "}"]
        left_out[0].write_text("\n".join([*head, *body, ""]))

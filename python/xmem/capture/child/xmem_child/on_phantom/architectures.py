"""Checks that a build of torch has code for the described GPU: the real one runs no kernel without it.

An architecture is ``10 * major + minor``, as in ``sm_86``.
"""

from __future__ import annotations

import ctypes
import re

import torch

# CUdevice_attribute
_MAJOR, _MINOR = 75, 76
_NAME_BYTES = 256
# Cubins of these do not run on cards, nor cubins of cards on them ("Binary Compatibility" of the CUDA guide).
_TEGRA = {53, 62, 72, 87, 101, 110}
_ENTRY = re.compile(r"(sm|compute)_(\d+)([af]?)$")
# What the builds of PyTorch's own index are compiled for: torch.cuda.PYTORCH_RELEASES_CODE_CC of torch 2.12.
_FIRST_OF_CUDA_13 = 75
_LAST_OF_CUDA_126 = 90


def refusal() -> str | None:
    """Say why the script cannot run on the described GPU and what to do; None when it can.

    Nothing is initialized: the script may still fork.
    """
    flags = torch._C._cuda_getArchFlags() if hasattr(torch._C, "_cuda_getArchFlags") else None
    card = _described_card()
    if not flags or card is None:
        return None
    name, capability = card
    built_for = flags.split()
    if any(runs_on(entry, capability) for entry in built_for):
        return None
    return (
        f"torch {torch.__version__} has no code for the {name} (compute capability {_dotted(capability)}): "
        f"it is built for {', '.join(built_for)}, so none of its kernels would run there; "
        f"{_way_out(capability)}, or choose another GPU with --gpu"
    )


def runs_on(entry: str, capability: int) -> bool:
    """Return whether code of an entry of ``torch.cuda.get_arch_list()`` runs on a GPU.

    The rule of ``csrc/phantom/runtime/fat_binary.cpp``; entries of an unknown form count as running.
    """
    known = _ENTRY.match(entry)
    if known is None:
        return True
    form, architecture, suffix = known[1], int(known[2]), known[3]
    if architecture == capability:
        return True
    if architecture > capability or suffix == "a":
        return False
    same_major = architecture // 10 == capability // 10
    if form == "compute":
        return same_major or not suffix
    return same_major and not _TEGRA & {architecture, capability}


def _described_card() -> tuple[str, int] | None:
    driver = ctypes.CDLL(None)
    count, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    if not hasattr(driver, "cuDeviceGetCount"):
        return None  # started without the phantom: what follows says so
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return None
    driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, 0)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, 0)
    driver.cuDeviceGetName(name, _NAME_BYTES, 0)
    return name.value.decode(errors="replace"), 10 * major.value + minor.value


def _way_out(capability: int) -> str:
    if capability < _FIRST_OF_CUDA_13:
        return (
            "install a build for CUDA 12.6, which has code for it "
            "(pip install torch --index-url https://download.pytorch.org/whl/cu126)"
        )
    if capability > _LAST_OF_CUDA_126:
        return "install torch 2.7 or newer in a build for CUDA 12.8 or newer, which has code for it"
    return "install a build of PyTorch's own index (pip install torch), which has code for it"


def _dotted(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"

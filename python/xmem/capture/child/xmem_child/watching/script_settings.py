"""PyTorch settings of the script that change what CUDA allocates; defaults are left out.

Read when the recording ends: scripts set these before they train. Autocast is seen where the model is called.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch

from .tensor_names import has_lazy_tensors

# Variables that torch and its libraries read; nothing else of the environment leaves the process.
_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "DISABLE_ADDMM_CUDA_LT",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_CUBLASLT_UNIFIED_WORKSPACE",
    "TORCH_CUBLAS_WORKSPACE_CACHE",
    "TORCH_CUDNN_SDPA_DEPRIORITIZED",
    "TORCH_CUDNN_USE_HEURISTIC_MODE_B",
    "TORCH_CUDNN_V8_API_DISABLED",
)


class ScriptSettings:
    """The ``settings`` of the trace's metadata."""

    def __init__(self) -> None:
        self._autocast: str | None = None
        self._channels_last = False
        self._seen: WeakSet[torch.nn.Module] = WeakSet()

    def root_called(self, module: torch.nn.Module) -> None:
        """Note the settings at a call of a module from outside any other."""
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                self._autocast = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        if module not in self._seen and not has_lazy_tensors(module):
            self._seen.add(module)
            self._channels_last |= any(map(_is_channels_last, module.parameters()))

    def values(self) -> dict[str, Any]:
        """Return all settings by name."""
        backends = torch.backends
        return {
            "cudnn_enabled": bool(backends.cudnn.enabled),
            "cudnn_allow_tf32": _flag(lambda: backends.cudnn.allow_tf32, default=True),
            "cudnn_benchmark": bool(backends.cudnn.benchmark),
            "cudnn_deterministic": bool(backends.cudnn.deterministic),
            "matmul_allow_tf32": _flag(lambda: backends.cuda.matmul.allow_tf32, default=False),
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
            "autocast": self._autocast,
            "channels_last": self._channels_last,
            "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        }


def _flag(read: Callable[[], bool], *, default: bool) -> bool:
    """Read a flag; newer versions refuse to give it if the script set precisions the new way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return bool(read())
        except RuntimeError:
            return default


def _is_channels_last(parameter: torch.Tensor) -> bool:
    if parameter.dim() != 4 or parameter.is_contiguous():
        return False
    return bool(parameter.is_contiguous(memory_format=torch.channels_last))

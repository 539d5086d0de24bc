"""CUDA autocast on the CPU: CUDA's default dtype, and CUDA's list of operators that stay in float32.

The script sees two states, CUDA's and the CPU's, each thread its own, as torch keeps them: checkpointing
saves and restores both. Torch's only real one is the CPU's. While CUDA's state is enabled, the real one
follows it, since what the script computes then stands for GPU work; otherwise it follows the CPU's.

Its list of low-precision operators is CUDA's, but it leaves softmax, norms, losses and sums in low precision
where CUDA computes them in float32; these get a kernel at the CPU's autocast key that casts first. Mirrors
``aten/src/ATen/autocast_mode.h`` of 2.13 (``AT_FORALL_FP32`` and ``AT_FORALL_FP32_SET_OPT_DTYPE``); what an
older torch does not have is left out.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from torch.library import Library

from .recurrent_casts import RecurrentCasts

# Not listed: rarely trained through, or already float32 in the CPU's own list (losses over cross_entropy and
# the like reach nll_loss below).
_FLOAT32 = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "group_norm",
    "frobenius_norm.dim",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "norm.Scalar",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "_upsample_bilinear2d_aa",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
    "prod",
    "prod.dim_int",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "sum",
    "sum.dim_IntList",
]

_KEY = "AutocastCPU"
_below_autocast = functools.partial(
    torch._C._ExcludeDispatchKeyGuard, torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
)


class _State(threading.local):
    """Both states of a thread, which begin with torch's own values."""

    def __init__(self) -> None:
        self.enabled = {"cuda": False, "cpu": False}
        self.dtype = {"cuda": torch.float16, "cpu": torch.bfloat16}


_state = _State()


class CudaAutocast:
    """The redirection of ``torch.autocast``, in force while this object lives."""

    def __init__(self) -> None:
        self._library = Library("aten", "IMPL")
        self._recurrent = RecurrentCasts(_dtype_of_cuda, _below_autocast)

    def install(self) -> None:
        """Replace the kernels and the functions that ask for or set the state of CUDA's autocast."""
        for name in _FLOAT32:
            self._keep_float32(name)
        self._recurrent.install()
        _redirect_state()

    def _keep_float32(self, name: str) -> None:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if operator is None or torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), _KEY):
            return

        def kernel(*args: Any, **kwargs: Any) -> Any:
            with _below_autocast():
                if not _state.enabled["cuda"]:
                    return operator(*args, **kwargs)
                return operator(*_in_float32(args), **_in_float32(kwargs))

        self._library.impl(name, kernel, _KEY)


def _dtype_of_cuda() -> torch.dtype | None:
    return _state.dtype["cuda"] if _state.enabled["cuda"] else None


def _redirect_state() -> None:
    """Answer for both states; the contexts of ``torch.autocast`` ask and set them through these functions."""
    is_enabled, set_enabled = torch.is_autocast_enabled, torch.set_autocast_enabled
    get_dtype, set_dtype = torch.get_autocast_dtype, torch.set_autocast_dtype

    def follow() -> None:
        leading = "cuda" if _state.enabled["cuda"] else "cpu"
        set_enabled("cpu", _state.enabled[leading])
        set_dtype("cpu", _state.dtype[leading])

    def is_autocast_enabled(device_type: str = "cuda") -> bool:
        if device_type in _state.enabled:
            return _state.enabled[device_type]
        return bool(is_enabled(device_type))

    def set_autocast_enabled(*args: Any) -> None:
        device_type, enabled = args if len(args) == 2 else ("cuda", args[0])
        if device_type in _state.enabled:
            _state.enabled[device_type] = bool(enabled)
            follow()
        else:
            set_enabled(device_type, enabled)

    def get_autocast_dtype(device_type: str) -> torch.dtype:
        return _state.dtype[device_type] if device_type in _state.dtype else get_dtype(device_type)

    def set_autocast_dtype(device_type: str, dtype: torch.dtype) -> None:
        if device_type in _state.dtype:
            _state.dtype[device_type] = dtype
            follow()
        else:
            set_dtype(device_type, dtype)

    torch.is_autocast_enabled = is_autocast_enabled
    torch.set_autocast_enabled = set_autocast_enabled
    torch.get_autocast_dtype = get_autocast_dtype
    torch.set_autocast_dtype = set_autocast_dtype
    torch.get_autocast_gpu_dtype = lambda: get_autocast_dtype("cuda")
    torch.set_autocast_gpu_dtype = lambda dtype: set_autocast_dtype("cuda", dtype)
    torch.is_autocast_cpu_enabled = lambda: is_autocast_enabled("cpu")
    torch.set_autocast_cpu_enabled = lambda enabled: set_autocast_enabled("cpu", enabled)
    torch.get_autocast_cpu_dtype = lambda: get_autocast_dtype("cpu")
    torch.set_autocast_cpu_dtype = lambda dtype: set_autocast_dtype("cpu", dtype)


def _in_float32(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
    if isinstance(value, (list, tuple)):
        return type(value)(_in_float32(item) for item in value)
    if isinstance(value, dict):
        return {key: _in_float32(item) for key, item in value.items()}
    return value

"""CUDA autocast on the CPU: CUDA's default dtype, and CUDA's list of operators that stay in float32.

``torch.autocast("cuda")`` becomes autocast of the CPU. Its list of low-precision operators is CUDA's, but it
leaves softmax, norms, losses and sums in low precision where CUDA computes them in float32; these get a
kernel at the CPU's autocast key that casts first. Mirrors ``aten/src/ATen/autocast_mode.h`` of 2.13
(``AT_FORALL_FP32`` and ``AT_FORALL_FP32_SET_OPT_DTYPE``); what an older torch does not have is left out.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from torch.library import Library

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


class _Standing(threading.local):
    """How CPU autocast is meant on this thread: as CUDA's, or as the script's own CPU autocast."""

    for_cuda = False


_standing = _Standing()


class CudaAutocast:
    """The redirection of ``torch.autocast``, in force while this object lives."""

    def __init__(self) -> None:
        self._library = Library("aten", "IMPL")
        self.dtype = torch.float16

    def install(self) -> None:
        """Replace the kernels and the functions that ask for or set the state of CUDA's autocast."""
        for name in _FLOAT32:
            self._keep_float32(name)
        self._redirect_contexts()
        self._redirect_state()

    def _keep_float32(self, name: str) -> None:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if operator is None or torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), _KEY):
            return

        def kernel(*args: Any, **kwargs: Any) -> Any:
            with _below_autocast():
                if not _standing.for_cuda:
                    return operator(*args, **kwargs)
                return operator(*_in_float32(args), **_in_float32(kwargs))

        self._library.impl(name, kernel, _KEY)

    def _redirect_contexts(self) -> None:
        context = torch.amp.autocast_mode.autocast
        build, enter, leave = context.__init__, context.__enter__, context.__exit__
        default = self

        @functools.wraps(build)
        def build_redirected(
            self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
        ) -> None:
            self._xmem_for_cuda = isinstance(device_type, str) and device_type.startswith("cuda")
            self._xmem_outer = []
            if self._xmem_for_cuda:
                device_type, dtype = "cpu", dtype or default.dtype
            build(self, device_type, dtype, *args, **kwargs)

        @functools.wraps(enter)
        def enter_redirected(self: Any) -> Any:
            self._xmem_outer.append(_standing.for_cuda)
            _standing.for_cuda = self._xmem_for_cuda
            return enter(self)

        @functools.wraps(leave)
        def leave_redirected(self: Any, *exception: Any) -> Any:
            _standing.for_cuda = self._xmem_outer.pop()
            return leave(self, *exception)

        context.__init__ = build_redirected
        context.__enter__ = enter_redirected
        context.__exit__ = leave_redirected

    def _redirect_state(self) -> None:
        is_enabled, set_enabled = torch.is_autocast_enabled, torch.set_autocast_enabled
        get_dtype, set_dtype = torch.get_autocast_dtype, torch.set_autocast_dtype

        def is_autocast_enabled(device_type: str = "cuda") -> bool:
            if device_type != "cuda":
                return bool(is_enabled(device_type)) and not _standing.for_cuda
            return bool(is_enabled("cpu")) and _standing.for_cuda

        def set_autocast_enabled(*args: Any) -> None:
            device_type, enabled = args if len(args) == 2 else ("cuda", args[0])
            if device_type == "cuda":
                device_type, _standing.for_cuda = "cpu", enabled
            set_enabled(device_type, enabled)

        def get_autocast_dtype(device_type: str) -> torch.dtype:
            if device_type != "cuda":
                return get_dtype(device_type)
            return get_dtype("cpu") if _standing.for_cuda else self.dtype

        def set_autocast_dtype(device_type: str, dtype: torch.dtype) -> None:
            if device_type == "cuda":
                self.dtype = dtype
            if device_type != "cuda" or _standing.for_cuda:
                set_dtype("cpu" if device_type == "cuda" else device_type, dtype)

        torch.set_autocast_enabled = set_autocast_enabled
        torch.get_autocast_dtype = get_autocast_dtype
        torch.set_autocast_dtype = set_autocast_dtype
        torch.is_autocast_enabled = is_autocast_enabled
        torch.get_autocast_gpu_dtype = lambda: get_autocast_dtype("cuda")
        torch.set_autocast_gpu_dtype = lambda dtype: set_autocast_dtype("cuda", dtype)


def _in_float32(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
    if isinstance(value, (list, tuple)):
        return type(value)(_in_float32(item) for item in value)
    if isinstance(value, dict):
        return {key: _in_float32(item) for key, item in value.items()}
    return value

"""Makes operators allocate on the CPU what they allocate on CUDA.

Each alignment overrides an operator at the dispatcher, so that Python composites, C++ composites and models
from libraries all meet it, and is counted in the trace's metadata.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.library import Library

from ..patches import Patches
from ..records.run_notes import RunNotes
from ..watching.device_memory import usage
from .attention_kernels import computes_scores, flash_of_the_cpu, other_choice, result_strides

_SAVED_MASK = "F.dropout keeps a bool mask, as CUDA does, instead of noise in the input's dtype"
_FUSED_ATTENTION = (
    "attention dropout is left out, so that the CPU uses its flash kernel and saves what CUDA saves"
)
_FLASH_FOR_OTHERS = "the CPU's flash kernel stands for the fused one of CUDA that the script selects"
_ATTENTION_LAYOUT = (
    "fused attention lays out its result as CUDA's kernels do: as the query, or by position, then by head"
)
_SCORES = "attention that no fused kernel of CUDA takes is computed from scores, which are kept"
_FLAT_WEIGHTS = "recurrent layers on the GPU keep their weights in one block, as cuDNN needs them"
_ATTENTION_OF_DTENSORS = (
    "the work areas of the backward kernel of fused attention over DTensors were left out (--mode phantom "
    "has them)"
)
_FOREACH = "optimizers take the foreach path, the default on CUDA; the script itself trains on the CPU"

_FLASH = "_scaled_dot_product_flash_attention_for_cpu"
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_CPU_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

_CUDNN_DTYPES = (torch.float16, torch.float32, torch.float64)

_aten = torch.ops.aten


class Alignments:
    """The overrides, registered while this object lives."""

    def __init__(self, run: RunNotes) -> None:
        self._run = run
        self._library = Library("aten", "IMPL")

    def install(self, patches: Patches) -> None:
        """Register the overrides, for tensors that autograd may follow."""
        patches.on_undo(self._library._destroy)
        self._library.impl("dropout", self._dropout, "AutogradCPU")
        self._library.impl("scaled_dot_product_attention", self._attention, "AutogradCPU")
        # Between autograd and the CPU's kernel, which stays reachable below.
        self._library.impl(_FLASH, self._flash_attention, "BackendSelect")
        _prefer_foreach(self._run, patches)

    def _dropout(self, tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if train and 0 < p < 1 and tensor.numel() > 0:
            self._run.align("native_dropout", _SAVED_MASK)
            return _aten.native_dropout.default(tensor, p, True)[0]
        # Not `decompose`: its Python version clones where nothing is dropped.
        return _aten.dropout.default._op_dk(_COMPOSITE, tensor, p, train)

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> torch.Tensor:
        if hasattr(query, "_local_tensor"):
            self._run.assume(_ATTENTION_OF_DTENSORS)
            return _attention_of_dtensors(query, key, value, attn_mask, is_causal, options.get("scale"))
        from_scores = computes_scores(query, key, value, attn_mask, is_causal, dropout_p)
        if (choice := other_choice()) is not None:
            self._run.attention.note(*choice)
        if from_scores:
            self._run.align("attention_scores", _SCORES)
        elif dropout_p > 0:
            self._run.align("attention_dropout", _FUSED_ATTENTION)
        if not (from_scores or torch.backends.cuda.flash_sdp_enabled()):
            self._run.align("flash_for_other_attention", _FLASH_FOR_OTHERS)
        with flash_of_the_cpu(not from_scores):
            return _aten.scaled_dot_product_attention.default.decompose(
                query, key, value, attn_mask, dropout_p if from_scores else 0.0, is_causal, **options
            )

    def _flash_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Give the result CUDA's strides, so that what the script does with it copies as much as on CUDA."""
        kernel = getattr(_aten, _FLASH).default
        strides = result_strides(query, key, value, options.get("attn_mask"), is_causal)
        result, log_sums = kernel.redispatch(_CPU_KERNEL, query, key, value, dropout_p, is_causal, **options)
        if result.stride() == strides:
            return result, log_sums
        self._run.align("attention_layout", _ATTENTION_LAYOUT)
        laid_out = torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)
        return laid_out.copy_(result), log_sums


def _attention_of_dtensors(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """Call the operator that CUDA would choose: DTensor, and context parallelism, know no other."""
    halves = query.dtype in (torch.float16, torch.bfloat16)
    result: torch.Tensor
    if mask is None and halves and torch.backends.cuda.flash_sdp_enabled():
        flash = _aten._scaled_dot_product_flash_attention.default
        result = flash(query, key, value, 0.0, is_causal, scale=scale)[0]
    else:
        efficient = _aten._scaled_dot_product_efficient_attention.default
        keeps_sums = query.requires_grad or key.requires_grad or value.requires_grad
        result = efficient(query, key, value, mask, keeps_sums, 0.0, is_causal, scale=scale)[0]
    return result


def flatten_recurrent_weights(run: RunNotes) -> None:
    """Replace ``flatten_parameters``, which needs cuDNN; recurrent modules call it whenever they have
    moved."""

    def flatten(module: torch.nn.RNNBase) -> None:
        weights = [weight for weight in module._flat_weights if isinstance(weight, torch.Tensor)]
        alike = len(weights) == len(module._flat_weights_names) and all(
            weight.is_cuda and weight.dtype == weights[0].dtype for weight in weights
        )
        distinct = len({weight.data_ptr() for weight in weights}) == len(weights)
        if torch.backends.cudnn.enabled and alike and distinct and weights[0].dtype in _CUDNN_DTYPES:
            run.align("flat_recurrent_weights", _FLAT_WEIGHTS)
            with torch.no_grad():
                _move_into_one_block(module, weights)

    torch.nn.RNNBase.flatten_parameters = flatten


def _move_into_one_block(module: torch.nn.RNNBase, weights: list[torch.Tensor]) -> None:
    """Move the weights into one block, in any order. cuDNN's block has biases even where a module has
    none."""
    elements = sum(weight.numel() for weight in weights)
    if not module.bias:
        gates = {"LSTM": 4, "GRU": 3}.get(module.mode, 1)
        elements += module.num_layers * (1 + module.bidirectional) * 2 * gates * module.hidden_size
    block = weights[0].new_zeros(elements)
    begin = 0
    for weight in weights:
        view = block[begin : begin + weight.numel()].view(weight.shape)
        view.copy_(weight)
        weight.data = view
        begin += weight.numel()


def _prefer_foreach(run: RunNotes, patches: Patches) -> None:
    """Make optimizers use foreach: a script that asks for the GPU gets it anyway, others get it here."""
    # torch.optim hides its modules behind the classes.
    optimizer = sys.modules[torch.optim.Optimizer.__module__]
    supported_devices = optimizer._get_foreach_kernels_supported_devices

    def devices() -> list[str]:
        if usage.requests:
            return list(supported_devices())
        run.align("foreach", _FOREACH)
        return [*supported_devices(), "cpu"]

    patches.replace(optimizer, "_get_foreach_kernels_supported_devices", devices)

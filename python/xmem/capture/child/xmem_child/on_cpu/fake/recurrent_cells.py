"""Steps of ``nn.LSTMCell`` and ``nn.GRUCell``, which CUDA computes in one kernel each after two products.

Upstream: ``LSTMCell`` and ``GRUCell`` of ``aten/src/ATen/native/RNN.cpp``, ``native/cuda/RNN.cu`` of torch
2.6 to 2.13; the operators have derivatives, and no kernel for the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from .operators import Maker

_aten = torch.ops.aten
_GRU_PARTS = 5  # of the hidden size, which the forward keeps for the backward


class RecurrentCells:
    """Makes what the kernels return.

    Args:
        maker: Makes tensors.
    """

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self._library = Library("aten", "IMPL")
        self._library.impl("lstm_cell", _lstm_cell, "AutogradCPU")
        self._library.impl("gru_cell", _gru_cell, "AutogradCPU")
        self._library.impl("_thnn_fused_lstm_cell", self._lstm, "CPU")
        self._library.impl("_thnn_fused_lstm_cell_backward_impl", self._lstm_backward, "CPU")
        self._library.impl("_thnn_fused_gru_cell", self._gru, "CPU")
        self._library.impl("_thnn_fused_gru_cell_backward", self._gru_backward, "CPU")

    def end(self) -> None:
        """Let the CPU compute them step by step again."""
        self._library._destroy()

    def _new(self, rows: int, columns: int, like: Tensor) -> Tensor:
        return self._maker.new((rows, columns), (columns, 1), like.dtype)

    def _alike(self, tensor: Tensor) -> Tensor:
        return self._new(tensor.size(0), tensor.size(1), tensor)

    def _lstm(self, gates: Tensor, _hidden: Tensor, state: Tensor, *_biases: Any) -> Any:
        workspace = self._alike(gates)
        return *(self._alike(state) for _ in range(2)), workspace

    def _lstm_backward(
        self, of_output: Any, of_state: Any, state: Tensor, _new: Any, workspace: Tensor, has_bias: bool
    ) -> Any:
        if of_output is None and of_state is None:
            return None, None, None
        of_gates = self._alike(workspace)
        of_state = self._alike(state)
        return of_gates, of_state, of_gates.sum(0) if has_bias else None

    def _gru(self, gates: Tensor, _hidden: Tensor, state: Tensor, *_biases: Any) -> Any:
        rows, columns = state.shape
        workspace = self._new(rows, _GRU_PARTS * columns, like=gates)
        return self._new(rows, columns, like=state), workspace

    def _gru_backward(self, of_output: Tensor, workspace: Tensor, has_bias: bool) -> Any:
        rows, columns = of_output.shape
        of_input, of_hidden = (self._new(rows, 3 * columns, like=workspace) for _ in range(2))
        of_state = self._new(rows, columns, like=of_output)
        biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
        return of_input, of_hidden, of_state, *biases


def _lstm_cell(input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, *biases: Any, **named: Any) -> Any:
    gates, hidden = input.matmul(w_ih.t()), hx[0].matmul(w_hh.t())
    output, state, _ = _aten._thnn_fused_lstm_cell(gates, hidden, hx[1], *_both(*biases, **named))
    return output, state


def _gru_cell(input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, *biases: Any, **named: Any) -> Any:
    gates, hidden = input.matmul(w_ih.t()), hx.matmul(w_hh.t())
    return _aten._thnn_fused_gru_cell(gates, hidden, hx, *_both(*biases, **named))[0]


def _both(b_ih: Tensor | None = None, b_hh: Tensor | None = None) -> tuple[Any, Any]:
    return b_ih, b_hh

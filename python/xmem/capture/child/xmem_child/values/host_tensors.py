"""Constructors of tensors on the host, as torch had them when the script began.

Scripts replace torch's: within ``deepspeed.zero.Init`` (``zero_wrapper_for_fp_tensor_constructor``, DeepSpeed
0.14 to 0.19), ``torch.empty`` and its like make tensors on the GPU, in another precision.
"""

from __future__ import annotations

import torch

arange = torch.arange
empty = torch.empty
empty_strided = torch.empty_strided
full = torch.full
ones = torch.ones
tensor = torch.tensor
zeros = torch.zeros

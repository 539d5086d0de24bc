"""Uses torch, never trains."""

import torch

with torch.no_grad():
    print(torch.nn.Linear(4, 4).cuda()(torch.ones(1, 4).cuda()).shape)

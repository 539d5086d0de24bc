"""Sets what PyTorch and its libraries look at before they choose kernels and workspaces."""

import os

import torch
from torch import nn

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.deterministic = True
torch.backends.cudnn.allow_tf32 = False
torch.backends.cuda.matmul.allow_tf32 = True

model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 2))
model.to("cuda", memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    batch = torch.randn(2, 3, 8, 8).to("cuda", memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(batch).float().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

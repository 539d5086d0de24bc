"""Trains one of each kind of layer that CUDA computes otherwise than the CPU, at a batch size."""

import sys

import torch
from torch import nn
from torch.nn import functional

batch = int(sys.argv[1])
torch.manual_seed(0)
device = torch.device("cuda")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.words = nn.Embedding(500, 32)
        self.recurrent = nn.LSTM(32, 32, num_layers=2, dropout=0.1, batch_first=True)
        self.attention, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.norm, self.drop = nn.LayerNorm(32), nn.Dropout(0.1)
        self.head = nn.Linear(32 + 16, 10)

    def forward(self, images, words):
        seen = self.convolution(images).mean((2, 3))
        read, _ = self.recurrent(self.words(words))
        heads = self.attention(read).unflatten(2, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads, dropout_p=0.1)
        read = self.norm(read + self.drop(self.out(mixed.transpose(1, 2).flatten(2))))
        chosen = read[:, torch.arange(0, read.shape[1], 2, device=read.device)]
        return self.head(torch.cat((chosen.amax(1), seen), 1))


model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    images = torch.randn(batch, 3, 32, 32, device=device)
    words = torch.randint(500, (batch, 1600), device=device)
    labels = torch.randint(10, (batch,), device=device)
    optimizer.zero_grad()
    functional.cross_entropy(model(images, words), labels).backward()
    optimizer.step()

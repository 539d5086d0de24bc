"""A small language model that the examples of parallel training share."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal self-attention; the number of heads follows from the width that is left of it."""

    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()
        self.head_width = head_width
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, _ = hidden.shape
        query, key, value = (
            layer(hidden).view(batch, length, -1, self.head_width).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """A gated layer."""

    def __init__(self, width: int, hidden_width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden_width, bias=False)
        self.up = nn.Linear(width, hidden_width, bias=False)
        self.down = nn.Linear(hidden_width, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(hidden)) * self.up(hidden))


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width)
        self.attention = Attention(width, head_width)
        self.feed_forward_norm = nn.RMSNorm(width)
        self.feed_forward = FeedForward(width, 4 * width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return hidden + self.feed_forward(self.feed_forward_norm(hidden))


class LanguageModel(nn.Module):
    """Embedding, blocks, head. A stage of a pipeline has some of them; without an embedding it takes hidden
    states."""

    def __init__(
        self,
        layers: int = 4,
        width: int = 512,
        head_width: int = 64,
        vocabulary: int = 8192,
        *,
        first: bool = True,
        last: bool = True,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width) if first else None
        self.blocks = nn.ModuleList(Block(width, head_width) for _ in range(layers))
        self.norm = nn.RMSNorm(width) if last else None
        self.head = nn.Linear(width, vocabulary, bias=False) if last else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = tokens if self.embedding is None else self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden if self.norm is None or self.head is None else self.head(self.norm(hidden))


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of the next tokens."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def batch_of(size: int, length: int, vocabulary: int = 8192) -> torch.Tensor:
    """Return a batch of random tokens on the GPU."""
    return torch.randint(0, vocabulary, (size, length), device="cuda")

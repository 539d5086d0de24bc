"""The DNN-occu network and those that the paper compares it with. Each takes a batch and returns
occupancies, 0 to 1."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from xmem.occupancy.learned.graph import OPERATORS
from xmem.occupancy.learned.layers import (
    AttentionNodeEdgeEncoder,
    Batch,
    GraphormerLayer,
    SetTransformerDecoder,
    mean_of_real,
)

if TYPE_CHECKING:
    Network: TypeAlias = Any
else:
    Network = nn.Module


def _head(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))


class DnnOccu(nn.Module):
    """One ANEE layer, two Graphormer layers, a set-transformer decoder, and a network on its mean."""

    def __init__(self, node_width: int, edge_width: int, width: int = 256) -> None:
        super().__init__()
        self.encoder = AttentionNodeEdgeEncoder(node_width, edge_width, width)
        self.layers = nn.ModuleList(GraphormerLayer(width) for _ in range(2))
        self.decoder = SetTransformerDecoder(width)
        self.head = _head(width)

    def forward(self, batch: Batch) -> Tensor:
        """Return the occupancy of each graph."""
        graphs, length, _ = batch.nodes.shape
        nodes, _ = self.encoder(batch.nodes.flatten(0, 1), batch.edges, batch.edge_features)
        nodes = nodes.view(graphs, length, -1)
        for layer in self.layers:
            nodes = layer(nodes, batch.real)
        return torch.sigmoid(self.head(self.decoder(nodes, batch.real).mean(1))).squeeze(-1)


class Mlp(nn.Module):
    """Four layers on the mean of the nodes' features; widths 80, 512, 512 and 256, as in the paper."""

    def __init__(self, node_width: int, edge_width: int, width: int = 256) -> None:
        del edge_width
        super().__init__()
        sizes = (node_width, 80, 512, 512, width)
        pairs = itertools.pairwise(sizes)
        layers = [module for size, after in pairs for module in (nn.Linear(size, after), nn.ReLU())]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, batch: Batch) -> Tensor:
        """Return the occupancy of each graph."""
        return torch.sigmoid(self.layers(mean_of_real(batch.nodes, batch.real))).squeeze(-1)


class Lstm(nn.Module):
    """Two layers of 256 channels over the operators in order."""

    def __init__(self, node_width: int, edge_width: int, width: int = 256) -> None:
        del edge_width
        super().__init__()
        self.layers = nn.LSTM(node_width, width, num_layers=2, batch_first=True)
        self.head = _head(width)

    def forward(self, batch: Batch) -> Tensor:
        """Return the occupancy of each graph."""
        outputs, _ = self.layers(batch.nodes)
        last = batch.real.sum(1).clamp(min=1) - 1
        return torch.sigmoid(self.head(outputs[torch.arange(len(last)), last])).squeeze(-1)


class Transformer(nn.Module):
    """Three encoder layers of four heads and networks of 512 channels; the mean of what comes out."""

    def __init__(self, node_width: int, edge_width: int, width: int = 256) -> None:
        del edge_width
        super().__init__()
        self.enter = nn.Linear(node_width, width)
        layer = nn.TransformerEncoderLayer(width, 4, 512, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = _head(width)

    def forward(self, batch: Batch) -> Tensor:
        """Return the occupancy of each graph."""
        nodes = self.layers(self.enter(batch.nodes), src_key_padding_mask=~batch.real)
        return torch.sigmoid(self.head(mean_of_real(nodes, batch.real))).squeeze(-1)


class DnnPerf(nn.Module):
    """Like DNNPerf: two ANEE layers and the mean of the nodes."""

    def __init__(self, node_width: int, edge_width: int, width: int = 256) -> None:
        super().__init__()
        self.first = AttentionNodeEdgeEncoder(node_width, edge_width, width)
        self.second = AttentionNodeEdgeEncoder(width, width, width)
        self.head = _head(width)

    def forward(self, batch: Batch) -> Tensor:
        """Return the occupancy of each graph."""
        nodes, edges = self.first(batch.nodes.flatten(0, 1), batch.edges, batch.edge_features)
        nodes, _ = self.second(nodes, batch.edges, edges)
        pooled = mean_of_real(nodes.view(*batch.real.shape, -1), batch.real)
        return torch.sigmoid(self.head(pooled)).squeeze(-1)


class BrpNas(nn.Module):
    """Like BRP-NAS: four graph convolutions on the types of operators alone, and the mean of the nodes."""

    def __init__(self, node_width: int, edge_width: int, width: int = 256) -> None:
        del node_width, edge_width
        super().__init__()
        sizes = (len(OPERATORS) + 1, *(width,) * 4)
        pairs = itertools.pairwise(sizes)
        self.layers = nn.ModuleList(nn.Linear(size, after) for size, after in pairs)
        self.head = _head(width)

    def forward(self, batch: Batch) -> Tensor:
        """Return the occupancy of each graph."""
        nodes = batch.nodes.flatten(0, 1)[:, : len(OPERATORS) + 1]
        source, target = batch.edges.T
        degree = torch.ones(len(nodes)).index_add(0, target, torch.ones(len(target)))
        for layer in self.layers:
            gathered = nodes.index_add(0, target, nodes[source])
            nodes = torch.relu(layer(gathered / degree[:, None]))
        pooled = mean_of_real(nodes.view(*batch.real.shape, -1), batch.real)
        return torch.sigmoid(self.head(pooled)).squeeze(-1)


NETWORKS: dict[str, Callable[[int, int, int], Network]] = {
    "DNN-occu": DnnOccu,
    "MLP": Mlp,
    "LSTM": Lstm,
    "Transformer": Transformer,
    "DNNPerf-like": DnnPerf,
    "BRP-NAS-like": BrpNas,
}

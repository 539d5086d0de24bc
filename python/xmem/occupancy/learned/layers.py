"""Layers of the DNN-occu paper (section III-D) and of the networks that it is compared with.

A batch of graphs has nodes padded to one length, shape (graphs, nodes, width), and all edges in one list
that points into the nodes laid end to end.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from xmem.records import dataclass


@dataclass(frozen=True)
class Batch:
    """Graphs of one batch.

    Attributes:
        nodes: float32, shape (graphs, nodes, features).
        real: bool, shape (graphs, nodes): not padding.
        edges: int64, shape (edges, 2): source and target, rows of the nodes laid end to end.
        edge_features: float32, shape (edges, features).
        labels: float32, shape (graphs,): occupancy, 0 to 1.
    """

    nodes: Tensor
    real: Tensor
    edges: Tensor
    edge_features: Tensor
    labels: Tensor


def softmax_of_incoming(values: Tensor, target: Tensor, nodes: int) -> Tensor:
    """Return a softmax over the edges that come into each node, channel by channel."""
    index = target[:, None].expand_as(values)
    most = torch.full((nodes, values.shape[1]), -torch.inf, dtype=values.dtype)
    most = most.scatter_reduce(0, index, values.detach(), "amax")
    raised = torch.exp(values - most[target])
    total = torch.zeros(nodes, values.shape[1], dtype=values.dtype).index_add(0, target, raised)
    return raised / total[target]


class AttentionNodeEdgeEncoder(nn.Module):
    """The ANEE layer: edges learn from their ends, nodes from what comes in, weighed by the edges.

    The paper's formula takes a softmax of the edge's features; here it is over a node's incoming edges,
    channel by channel, which makes the sum a mean. A node without incoming edges keeps its own value.
    """

    def __init__(self, node_width: int, edge_width: int, width: int) -> None:
        super().__init__()
        self.nodes = nn.Linear(node_width, width, bias=False)
        self.edges = nn.Linear(edge_width, width, bias=False)
        self.ends = nn.Linear(2 * width, 1, bias=False)
        self.weigh = nn.Linear(width, width, bias=False)
        self.rise = nn.LeakyReLU()

    def forward(self, nodes: Tensor, edges: Tensor, edge_features: Tensor) -> tuple[Tensor, Tensor]:
        """Return new nodes, laid end to end, and new edge features."""
        own = self.rise(self.nodes(nodes))
        if not len(edges):
            return own, self.edges(edge_features)
        source, target = edges.T
        attention = self.ends(torch.cat([own[source], own[target]], dim=1))
        new_edges = torch.sigmoid(attention * self.edges(edge_features))
        shares = softmax_of_incoming(self.weigh(new_edges), target, len(own))
        gathered = torch.zeros_like(own).index_add(0, target, shares * own[source])
        has_incoming = torch.zeros(len(own), 1).index_fill(0, target, 1.0)
        return self.rise(gathered + (1 - has_incoming) * own), new_edges


class GraphormerLayer(nn.Module):
    """Self-attention over all nodes of a graph and a network per node, each after a normalisation."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.before_attention, self.before_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.network = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, nodes: Tensor, real: Tensor) -> Tensor:
        """Return new nodes, shape (graphs, nodes, width)."""
        normal = self.before_attention(nodes)
        attended, _ = self.attention(normal, normal, normal, key_padding_mask=~real, need_weights=False)
        nodes = nodes + attended
        changed: Tensor = nodes + self.network(self.before_network(nodes))
        return changed


class AttentionBlock(nn.Module):
    """The paper's MAB: attention of one set to another, then a network, each added and normalised."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.after_attention, self.after_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.network = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, wanted: Tensor, given: Tensor, real: Tensor | None = None) -> Tensor:
        """Return ``wanted`` with what it took from ``given``."""
        padding = None if real is None else ~real
        attended, _ = self.attention(wanted, given, given, key_padding_mask=padding, need_weights=False)
        mixed = self.after_attention(wanted + attended)
        changed: Tensor = self.after_network(mixed + self.network(mixed))
        return changed


class SetTransformerDecoder(nn.Module):
    """Pooling by attention to learned seeds, then attention among them: FFN(SAB(PMA(nodes)))."""

    def __init__(self, width: int, seeds: int = 4) -> None:
        super().__init__()
        self.seeds = nn.Parameter(torch.randn(1, seeds, width) / width**0.5)
        self.before = nn.Linear(width, width)
        self.pool, self.among = AttentionBlock(width), AttentionBlock(width)
        self.after = nn.Linear(width, width)

    def forward(self, nodes: Tensor, real: Tensor) -> Tensor:
        """Return the seeds, shape (graphs, seeds, width)."""
        pooled = self.pool(self.seeds.expand(len(nodes), -1, -1), self.before(nodes), real)
        decoded: Tensor = self.after(self.among(pooled, pooled))
        return decoded


def mean_of_real(nodes: Tensor, real: Tensor) -> Tensor:
    """Return the mean over the nodes of each graph that are not padding."""
    weights = real.unsqueeze(-1).to(nodes.dtype)
    return (nodes * weights).sum(1) / weights.sum(1).clamp(min=1)

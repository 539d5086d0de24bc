"""Training and evaluation of the networks, with the paper's settings: Adam, 1e-4, weight decay 1e-4,
squared error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from xmem.devices.gpus import Device
from xmem.occupancy.learned.graph import OperatorGraph, edge_features, node_features
from xmem.occupancy.learned.layers import Batch
from xmem.occupancy.learned.networks import Network
from xmem.records import dataclass


@dataclass(frozen=True)
class Example:
    """A graph and its measured occupancy, 0 to 1, with the model that it is of."""

    model: str
    graph: OperatorGraph
    gpu: Device
    occupancy: float
    launches: int


@dataclass(frozen=True)
class Scale:
    """Means and deviations of the node features of the training data: networks see standardised ones."""

    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]

    @staticmethod
    def of(examples: Sequence[Example]) -> Scale:
        """Return the scale of the examples that a network is trained on."""
        features = np.concatenate([node_features(item.graph, item.gpu) for item in examples])
        return Scale(features.mean(0), np.maximum(features.std(0), 1e-2))


def batch_of(examples: Sequence[Example], scale: Scale) -> Batch:
    """Return examples as one batch, padded to the longest."""
    longest = max(len(item.graph) for item in examples)
    width = len(scale.mean)
    nodes = np.zeros((len(examples), longest, width), dtype=np.float32)
    real = np.zeros((len(examples), longest), dtype=bool)
    edges, features = [], []
    for row, item in enumerate(examples):
        count = len(item.graph)
        nodes[row, :count] = (node_features(item.graph, item.gpu) - scale.mean) / scale.deviation
        real[row, :count] = True
        edges.append(np.column_stack([item.graph.source, item.graph.target]).astype(np.int64) + row * longest)
        features.append(edge_features(item.graph, item.gpu))
    return Batch(
        torch.from_numpy(nodes),
        torch.from_numpy(real),
        torch.from_numpy(np.concatenate(edges)),
        torch.from_numpy(np.concatenate(features)),
        torch.tensor([item.occupancy for item in examples], dtype=torch.float32),
    )


def train(
    make: Callable[[int, int, int], Network],
    examples: Sequence[Example],
    *,
    width: int = 256,
    epochs: int = 100,
    batch_size: int = 32,
    learning_rate: float = 1e-4,
    seed: int = 0,
) -> tuple[Network, Scale]:
    """Train a network; the same seed on the same machine gives the same weights."""
    torch.manual_seed(seed)
    scale = Scale.of(examples)
    by_length = sorted(examples, key=lambda item: len(item.graph))
    batches = [
        batch_of(by_length[begin : begin + batch_size], scale)
        for begin in range(0, len(by_length), batch_size)
    ]
    network = make(len(scale.mean), batches[0].edge_features.shape[1], width)
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate, weight_decay=1e-4)
    network.train()
    for _ in range(epochs):
        for number in torch.randperm(len(batches)):
            batch = batches[number]
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(network(batch), batch.labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
    network.eval()
    return network, scale


@torch.no_grad()
def predict(network: Network, scale: Scale, examples: Sequence[Example]) -> NDArray[np.float64]:
    """Return the predicted occupancies."""
    found = [network(batch_of(examples[begin : begin + 32], scale)) for begin in range(0, len(examples), 32)]
    values: NDArray[np.float64] = torch.cat(found).double().numpy()
    return values


def errors(predicted: Sequence[float] | NDArray[np.float64], real: Sequence[float]) -> tuple[float, float]:
    """Return the paper's two measures: mean relative error and mean squared error."""
    pairs = list(zip(predicted, real, strict=True))
    relative = math.fsum(abs((ours - true) / true) for ours, true in pairs) / len(pairs)
    return float(relative), float(math.fsum((ours - true) ** 2 for ours, true in pairs) / len(pairs))

"""PyTorch Geometric: a GCN or GAT on one graph, or a classifier of batches of graphs."""

import sys

import torch
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv, GCNConv, global_mean_pool

kind = sys.argv[1]


def graph(nodes, edges, label):
    return Data(x=torch.rand(nodes, 32), edge_index=torch.randint(0, nodes, (2, edges)), y=label)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layer = GATConv if kind == "gat" else GCNConv
        self.first, self.second = layer(32, 128), layer(128, 8)

    def forward(self, data):
        x = functional.dropout(self.first(data.x, data.edge_index).relu(), 0.5, self.training)
        x = self.second(x, data.edge_index)
        return global_mean_pool(x, data.batch) if kind == "batches" else x


model = Network().cuda()
optimizer = torch.optim.Adam(model.parameters(), 0.01)
if kind == "batches":
    graphs = [graph(40 + i % 9, 120 + i % 31, torch.tensor([i % 8])) for i in range(128)]
    batches = DataLoader(graphs, batch_size=16)
else:
    batches = [graph(3000, 12000, torch.randint(0, 8, (3000,)))] * 6
for batch in batches:
    batch = batch.to("cuda")
    loss = functional.cross_entropy(model(batch), batch.y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), flush=True)

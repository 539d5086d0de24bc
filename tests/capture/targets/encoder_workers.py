"""nn.TransformerEncoder with dropout, and a DataLoader with two worker processes; argparse and sys.exit(main())."""

import argparse
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randint(0, 50, (12,), generator=generator), torch.tensor(index % 2)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, 2)

    def forward(self, tokens):
        padding = tokens == 0
        return self.head(self.encoder(self.embed(tokens), src_key_padding_mask=padding).mean(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args()
    loader = DataLoader(Sentences(), batch_size=8, num_workers=options.workers, pin_memory=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Classifier()
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(options.epochs):
        model.train()
        for tokens, labels in loader:
            assert not tokens.is_cuda
            tokens, labels = tokens.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(tokens), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    print("trained")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Mixed precision as in the PyTorch recipes: autocast, GradScaler, pinned batches, gradient accumulation, clipping."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.backends.cudnn.benchmark = True
torch.backends.cuda.matmul.allow_tf32 = True
torch.manual_seed(0)
device = torch.device("cuda:0")
torch.cuda.set_device(device)
print(torch.cuda.get_device_name(0), torch.cuda.get_device_properties(device).total_memory > 0)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.blocks = nn.ModuleList(Block(64, 4) for _ in range(2))
        self.head = nn.Linear(64, 100)

    def forward(self, tokens):
        positions = torch.arange(tokens.size(1), device=tokens.device)
        assert positions.is_cuda and tokens.device.type == "cuda"
        x = self.embed(tokens) + torch.sin(positions)[:, None]
        for block in self.blocks:
            x = block(x)
        weights = torch.softmax(x, dim=-1)
        assert not torch.is_autocast_enabled() or weights.dtype == torch.float32
        return self.head(x)


data = TensorDataset(torch.randint(0, 100, (64, 24)), torch.randint(0, 100, (64, 24)))
loader = DataLoader(data, batch_size=4, pin_memory=True, drop_last=True)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.cuda.amp.GradScaler(init_scale=256.0)
assert scaler.is_enabled()
accumulate = 2
for step, (tokens, targets) in enumerate(loader):
    tokens = tokens.cuda(non_blocking=True)
    targets = targets.cuda(non_blocking=True)
    with torch.autocast("cuda"):
        logits = model(tokens)
        assert logits.dtype == torch.float16
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        assert loss.dtype == torch.float32 and loss.is_cuda
    scaler.scale(loss / accumulate).backward()
    if (step + 1) % accumulate == 0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=False)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        print(f"step {step} memory {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB")

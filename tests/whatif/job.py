"""A training loop of which every what-if is an option, so that it can be captured with and without."""

import argparse
import contextlib
import fnmatch
import functools
import itertools

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

options = argparse.ArgumentParser()
options.add_argument("--model", default="mlp")
options.add_argument("--optimizer", default="sgd")
options.add_argument("--implementation", default="foreach")
options.add_argument("--zero-grad", default="before_forward")
options.add_argument("--keep-gradients", action="store_true")
options.add_argument("--accumulate", type=int, default=1)
options.add_argument("--precision", default="fp32")
options.add_argument("--checkpoint", default="", help="paths of modules, by commas; * matches")
options.add_argument("--keep-outputs", action="store_true")
options.add_argument("--release", default="", help="drop outputs before_backward or after_backward")
options.add_argument("--chunk-loss", type=int, default=1)
options.add_argument("--loss", default="cross_entropy")
args = options.parse_args()


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2)
            for t in self.qkv(self.norm_1(x)).split(width, -1)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class Transformer(nn.Module):
    def __init__(self, vocabulary=2000, width=256, depth=3):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Attention(width, 4) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def hidden(self, tokens):
        return self.norm(self.blocks(self.embed(tokens)))

    def forward(self, tokens):
        return self.head(self.hidden(tokens)).flatten(0, 1)


def mlp():
    layers = [nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 10)]
    return nn.Sequential(*layers), lambda: (torch.randn(64, 512), torch.randint(0, 10, (64,)))


def transformer():
    def batch():
        tokens = torch.randint(0, 2000, (4, 64))
        return tokens, tokens.flatten()

    return Transformer(), batch


def cnn():
    widths = [3, 32, 64, 128, 256]
    layers = []
    for wide_in, wide_out in itertools.pairwise(widths):
        layers += [
            nn.Conv2d(wide_in, wide_out, 3, padding=1),
            nn.BatchNorm2d(wide_out),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)]
    return nn.Sequential(*layers), lambda: (torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,)))


OPTIONS = {
    "momentum": {"momentum": 0.9},
    "nesterov": {"nesterov": True},
    "weight_decay": {"weight_decay": 0.1},
    "amsgrad": {"amsgrad": True},
    "centered": {"centered": True},
}
CLASSES = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adafactor": torch.optim.Adafactor,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}
LOSSES = {
    "cross_entropy": nn.functional.cross_entropy,
    "squares": lambda outputs, _: outputs.square().mean(),
}


def chunked_loss(tokens, labels, count):
    def loss_of(hidden, labels):
        return nn.functional.cross_entropy(model.head(hidden), labels, reduction="sum")

    total = 0
    hidden = model.hidden(tokens).flatten(0, 1)
    for chunk in zip(hidden.chunk(count), labels.chunk(count), strict=True):
        total = total + checkpoint(loss_of, *chunk, use_reentrant=False)
    return total / len(labels)


torch.manual_seed(0)
model, make_batch = {"mlp": mlp, "transformer": transformer, "cnn": cnn}[args.model]()
model.to("cuda", torch.bfloat16 if args.precision == "bf16" else torch.float32)
for path, module in model.named_modules():
    if path and any(fnmatch.fnmatchcase(path, pattern) for pattern in args.checkpoint.split(",")):
        module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
name, *chosen = args.optimizer.split("+")
keywords = {"foreach": args.implementation == "foreach"}
if args.implementation == "fused":
    keywords = {"fused": True}
for option in chosen:
    keywords |= OPTIONS[option]
groups = list(model.parameters())
optimizer = CLASSES[name](
    [{"params": groups[: len(groups) // 2]}, {"params": groups[len(groups) // 2 :]}], lr=1e-3, **keywords
)
clear = args.zero_grad
for _ in range(3):
    if clear == "iteration_start":
        optimizer.zero_grad(set_to_none=not args.keep_gradients)
    for micro_batch in range(args.accumulate):
        inputs, labels = make_batch()
        inputs, labels = inputs.cuda(), labels.cuda()
        if args.precision == "bf16" and inputs.is_floating_point():
            inputs = inputs.bfloat16()
        if clear == "before_forward" and micro_batch == 0:
            optimizer.zero_grad(set_to_none=not args.keep_gradients)
        half = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}.get(args.precision)
        with torch.autocast("cuda", half) if half else contextlib.nullcontext():
            if args.chunk_loss > 1:
                loss = chunked_loss(inputs, labels, args.chunk_loss)
            elif args.keep_outputs:
                outputs = model(inputs)
                loss = LOSSES[args.loss](outputs, labels)
            else:
                loss = LOSSES[args.loss](model(inputs), labels)
        if clear == "before_backward" and micro_batch == 0:
            optimizer.zero_grad(set_to_none=not args.keep_gradients)
        if args.release == "before_backward":
            del outputs
        loss.backward()
        if args.release == "after_backward":
            del outputs
    optimizer.step()
    if clear == "after_step":
        optimizer.zero_grad(set_to_none=not args.keep_gradients)

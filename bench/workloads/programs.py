"""Short programs that each use one thing of PyTorch as scripts do: attention, an optimizer, a solver.

The training jobs are broad and alike; these are narrow and different. Sizes are large enough that a workspace
shows and small enough that several fit on any card.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

PROGRAMS: dict[str, Callable[[torch.device], object]] = {}
_STEPS = 3
_Body = Callable[[torch.device], object]


def _program(name: str) -> Callable[[_Body], _Body]:
    def add(body: _Body) -> _Body:
        PROGRAMS[name] = body
        return body

    return add


class Block(nn.Module):
    """A block of a decoder, with the attention that PyTorch chooses."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.first(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        hidden: torch.Tensor = self.down(F.gelu(self.up(self.second(x))))
        return x + hidden


class Decoder(nn.Module):
    """A small language model."""

    def __init__(self, width: int = 512, layers: int = 4, words: int = 16_384) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, 8) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def _tokens(device: torch.device, batch: int = 8, length: int = 512) -> torch.Tensor:
    return torch.randint(16_384, (batch, length), device=device)


def _steps(
    model: Callable[[torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    batch: Callable[[], torch.Tensor],
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    steps: int = _STEPS,
) -> None:
    for _ in range(steps):
        with around():
            loss = model(batch())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


# --- numbers, precision and what training loops do around a step ------------------------------------------


@_program("decoder-fp32")
def _decoder(device: torch.device) -> None:
    model = Decoder().to(device)
    _steps(model, torch.optim.AdamW(model.parameters()), lambda: _tokens(device))


@_program("decoder-bf16-autocast")
def _decoder_autocast(device: torch.device) -> None:
    model = Decoder().to(device)
    _steps(
        model,
        torch.optim.AdamW(model.parameters()),
        lambda: _tokens(device),
        lambda: torch.autocast("cuda", torch.bfloat16),
    )


@_program("decoder-bf16-weights")
def _decoder_bf16(device: torch.device) -> None:
    model = Decoder().to(device, torch.bfloat16)
    _steps(model, torch.optim.AdamW(model.parameters()), lambda: _tokens(device))


@_program("grad-scaler-clip")
def _scaler(device: torch.device) -> None:
    model = Decoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(_STEPS):
        with torch.autocast("cuda", torch.float16):
            loss = model(_tokens(device))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@_program("gradient-accumulation")
def _accumulation(device: torch.device) -> None:
    model = Decoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        for _ in range(3):
            (model(_tokens(device)) / 3).backward()
        optimizer.step()
        optimizer.zero_grad()


@_program("reads-loss")
def _reads_loss(device: torch.device) -> None:
    model = Decoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    total = 0.0
    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss = model(_tokens(device))
        loss.backward()
        optimizer.step()
        total += loss.item()


@_program("evaluation-between")
def _evaluation(device: torch.device) -> None:
    model = Decoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        _steps(model, optimizer, lambda: _tokens(device), steps=1)
        with torch.no_grad():
            model(_tokens(device, 16))
        torch.cuda.empty_cache()


# --- memory savers ----------------------------------------------------------------------------------------


def _checkpointed(device: torch.device, **options: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    model = Decoder().to(device)

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        x = model.words(tokens)
        for block in model.blocks:
            x = checkpoint(block, x, **options)
        logits = model.head(x)
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())

    _steps(loss_of, torch.optim.AdamW(model.parameters()), lambda: _tokens(device))


@_program("checkpoint")
def _checkpoint(device: torch.device) -> None:
    _checkpointed(device, use_reentrant=False)


@_program("checkpoint-reentrant")
def _checkpoint_reentrant(device: torch.device) -> None:
    _checkpointed(device, use_reentrant=True)


@_program("save-on-cpu")
def _save_on_cpu(device: torch.device) -> None:
    model = Decoder().to(device)
    _steps(
        model,
        torch.optim.AdamW(model.parameters()),
        lambda: _tokens(device),
        lambda: torch.autograd.graph.save_on_cpu(pin_memory=True),
    )


@_program("optimizer-in-backward")
def _in_backward(device: torch.device) -> None:
    model = Decoder().to(device)
    optimizers = {p: torch.optim.AdamW([p], foreach=False) for p in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(_STEPS):
        model(_tokens(device)).backward()


def _with_settings(settings: str) -> _Body:
    def run(device: torch.device) -> None:
        torch.cuda.memory._set_allocator_settings(settings)
        model = Decoder().to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        for length in (512, 384, 640, 448, 512):
            _steps(model, optimizer, lambda length=length: _tokens(device, 8, length), steps=1)  # type: ignore[misc]

    return run


for _name, _settings in (
    ("defaults", "backend:native"),
    ("expandable-segments", "expandable_segments:True"),
    ("max-split", "max_split_size_mb:64"),
    ("roundup", "roundup_power2_divisions:4"),
    ("collection", "garbage_collection_threshold:0.6"),
):
    _program(f"lengths-{_name}")(_with_settings(_settings))


# --- attention --------------------------------------------------------------------------------------------


def _attend(device: torch.device, backend: str, dtype: torch.dtype, **options: Any) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    heads, kv_heads = options.pop("heads", 16), options.pop("kv_heads", 16)
    dimension, length = options.pop("dimension", 64), options.pop("length", 1024)
    mask = options.pop("mask", None)
    for _ in range(2):
        q = torch.randn(4, heads, length, dimension, device=device, dtype=dtype, requires_grad=True)
        k, v = (
            torch.randn(4, kv_heads, length, dimension, device=device, dtype=dtype, requires_grad=True)
            for _ in range(2)
        )
        if mask == "float":
            options["attn_mask"] = torch.zeros(4, 1, length, length, device=device, dtype=dtype)
        elif mask == "bool":
            options["attn_mask"] = torch.ones(length, length, device=device, dtype=torch.bool).tril()
        with sdpa_kernel(getattr(SDPBackend, backend)) if backend else nullcontext():
            result = F.scaled_dot_product_attention(q, k, v, **options)
        result.backward(torch.randn_like(result))


def _attention(name: str, backend: str, dtype: torch.dtype, **options: Any) -> None:
    _program(f"attention-{name}")(lambda device: _attend(device, backend, dtype, **dict(options)))


_attention("flash", "FLASH_ATTENTION", torch.bfloat16, is_causal=True)
_attention("flash-128", "FLASH_ATTENTION", torch.bfloat16, dimension=128)
_attention("flash-dropout", "FLASH_ATTENTION", torch.float16, dropout_p=0.1)
_attention("flash-grouped", "FLASH_ATTENTION", torch.bfloat16, kv_heads=4, enable_gqa=True)
_attention("flash-odd", "FLASH_ATTENTION", torch.bfloat16, dimension=80, length=1000)
_attention("efficient", "EFFICIENT_ATTENTION", torch.float32)
_attention("efficient-mask", "EFFICIENT_ATTENTION", torch.float32, mask="float")
_attention("efficient-bf16-mask", "EFFICIENT_ATTENTION", torch.bfloat16, mask="float", length=1000)
_attention("cudnn", "CUDNN_ATTENTION", torch.bfloat16, is_causal=True)
_attention("cudnn-128", "CUDNN_ATTENTION", torch.bfloat16, dimension=128)
_attention("cudnn-grouped", "CUDNN_ATTENTION", torch.bfloat16, kv_heads=4, enable_gqa=True)
_attention("cudnn-mask", "CUDNN_ATTENTION", torch.bfloat16, mask="float")
_attention("cudnn-dropout", "CUDNN_ATTENTION", torch.bfloat16, dropout_p=0.1)
_attention("math", "MATH", torch.float32, is_causal=True)
_attention("math-bf16", "MATH", torch.bfloat16, is_causal=True)
_attention("math-dropout", "MATH", torch.float32, dropout_p=0.1)
_attention("math-grouped", "MATH", torch.float32, kv_heads=4, enable_gqa=True)
_attention("chosen-bf16", "", torch.bfloat16, is_causal=True)
_attention("chosen-fp32-mask", "", torch.float32, mask="bool")
_attention("chosen-bf16-mask", "", torch.bfloat16, mask="bool")
_attention("chosen-256", "", torch.bfloat16, dimension=256)


@_program("attention-module")
def _attention_module(device: torch.device) -> None:
    module = nn.MultiheadAttention(512, 8, batch_first=True, device=device)
    x = torch.randn(8, 512, 512, device=device)
    for need_weights in (True, False):
        module(x, x, x, need_weights=need_weights)[0].sum().backward()


@_program("transformer-encoder-inference")
def _encoder(device: torch.device) -> None:
    layer = nn.TransformerEncoderLayer(512, 8, batch_first=True, device=device)
    model = nn.TransformerEncoder(layer, 3).eval()
    padding = torch.zeros(16, 256, dtype=torch.bool, device=device)
    with torch.no_grad():
        model(torch.randn(16, 256, 512, device=device))
        model(torch.randn(16, 256, 512, device=device), src_key_padding_mask=padding)


@_program("flex-attention-compiled")
def _flex(device: torch.device) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda _b, _h, q, k: q >= k, None, None, 1024, 1024, device=str(device))
    attend = torch.compile(flex_attention)
    for _ in range(2):
        q, k, v = (
            torch.randn(4, 8, 1024, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)
        )
        attend(q, k, v, block_mask=mask).sum().backward()


# --- the compiler and graphs ------------------------------------------------------------------------------


def _compiled(name: str, **options: Any) -> None:
    def run(device: torch.device) -> None:
        model = Decoder(layers=2).to(device)
        step = torch.compile(model, **options)
        _steps(
            step,
            torch.optim.AdamW(model.parameters()),
            lambda: _tokens(device),
            lambda: torch.autocast("cuda", torch.bfloat16),
            steps=5,
        )

    _program(f"compile-{name}")(run)


_compiled("default")
_compiled("reduce-overhead", mode="reduce-overhead")
_compiled("aot-eager", backend="aot_eager")


@_program("compile-optimizer")
def _compile_optimizer(device: torch.device) -> None:
    model = Decoder(layers=2).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3))
    step = torch.compile(optimizer.step)
    for _ in range(_STEPS):
        model(_tokens(device)).backward()
        step()
        optimizer.zero_grad()


@_program("cuda-graph-step")
def _graph(device: torch.device) -> None:
    model = Decoder(layers=2).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    tokens = _tokens(device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            model(tokens).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        model(tokens).backward()
        optimizer.step()
    for _ in range(_STEPS):
        graph.replay()


@_program("graphed-callables")
def _graphed(device: torch.device) -> None:
    layers = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).to(device)
    step = torch.cuda.make_graphed_callables(layers, (torch.randn(512, 1024, device=device),))
    optimizer = torch.optim.SGD(layers.parameters(), 0.1, momentum=0.9)
    for _ in range(_STEPS):
        step(torch.randn(512, 1024, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@_program("side-stream")
def _side_stream(device: torch.device) -> None:
    side = torch.cuda.Stream()
    layer = nn.Linear(4096, 4096, device=device)
    for _ in range(4):
        x = torch.randn(4096, 4096, device=device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            moved = x * 2
            x.record_stream(side)
        del x
        torch.cuda.current_stream().wait_stream(side)
        layer(moved).sum().backward()
        moved.record_stream(torch.cuda.current_stream())
        del moved


@_program("pinned-prefetch")
def _prefetch(device: torch.device) -> None:
    side = torch.cuda.Stream()
    model = nn.Sequential(nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 4096)).to(device)
    host = [torch.randn(2048, 4096).pin_memory() for _ in range(4)]
    with torch.cuda.stream(side):
        following = host[0].to(device, non_blocking=True)
    for index in range(4):
        torch.cuda.current_stream().wait_stream(side)
        batch = following
        batch.record_stream(torch.cuda.current_stream())
        if index < 3:
            with torch.cuda.stream(side):
                following = host[index + 1].to(device, non_blocking=True)
        model(batch).sum().backward()


# --- optimizers -------------------------------------------------------------------------------------------


def _optimizer(name: str, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> None:
    def run(device: torch.device) -> None:
        model = Decoder().to(device)
        _steps(model, make(list(model.parameters())), lambda: _tokens(device, 2))

    _program(f"optimizer-{name}")(run)


_optimizer("adam-fused", lambda p: torch.optim.Adam(p, fused=True))
_optimizer("adam-capturable", lambda p: torch.optim.Adam(p, capturable=True))
_optimizer("adamw-amsgrad", lambda p: torch.optim.AdamW(p, amsgrad=True))
_optimizer("adamw-loop", lambda p: torch.optim.AdamW(p, foreach=False))
_optimizer("sgd-momentum", lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True))
_optimizer("sgd-fused", lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True))
_optimizer("rmsprop", lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.9))
_optimizer("adagrad", lambda p: torch.optim.Adagrad(p))
_optimizer("adadelta", lambda p: torch.optim.Adadelta(p))
_optimizer("adamax", lambda p: torch.optim.Adamax(p))
_optimizer("nadam", lambda p: torch.optim.NAdam(p))
_optimizer("radam", lambda p: torch.optim.RAdam(p))
_optimizer("asgd", lambda p: torch.optim.ASGD(p))
_optimizer("rprop", lambda p: torch.optim.Rprop(p))
_optimizer("adafactor", lambda p: torch.optim.Adafactor(p))


@_program("optimizer-muon")
def _muon(device: torch.device) -> None:
    model = Decoder().to(device)
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    _steps(model, torch.optim.Muon(matrices), lambda: _tokens(device, 2))


@_program("optimizer-lbfgs")
def _lbfgs(device: torch.device) -> None:
    model = nn.Sequential(nn.Linear(1024, 2048), nn.Tanh(), nn.Linear(2048, 1)).to(device)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=5)
    x, y = torch.randn(4096, 1024, device=device), torch.randn(4096, 1, device=device)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(_STEPS):
        optimizer.step(closure)


@_program("optimizer-sparse-adam")
def _sparse_adam(device: torch.device) -> None:
    table = nn.Embedding(200_000, 128, sparse=True, device=device)
    optimizer = torch.optim.SparseAdam(list(table.parameters()))
    for _ in range(_STEPS):
        optimizer.zero_grad()
        table(torch.randint(200_000, (64, 256), device=device)).sum().backward()
        optimizer.step()


# --- layers -----------------------------------------------------------------------------------------------


def _trained(
    name: str, make: Callable[[], nn.Module], *shape: int, dtype: torch.dtype = torch.float32, **flags: Any
) -> None:
    def run(device: torch.device) -> None:
        for flag, value in flags.items():
            setattr(torch.backends.cudnn, flag, value)
        model = make().to(device, dtype)
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, 0.1) if parameters else None
        for _ in range(_STEPS):
            result = model(torch.randn(*shape, device=device, dtype=dtype, requires_grad=True))
            (result[0] if isinstance(result, tuple) else result).sum().backward()
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()

    _program(f"layer-{name}")(run)


_trained("lstm", lambda: nn.LSTM(256, 512, 2, batch_first=True), 64, 128, 256)
_trained("lstm-bf16", lambda: nn.LSTM(256, 512, 2, dropout=0.2), 128, 64, 256, dtype=torch.bfloat16)
_trained("lstm-bidirectional", lambda: nn.LSTM(256, 256, 2, bidirectional=True), 128, 64, 256)
_trained("lstm-projected", lambda: nn.LSTM(256, 512, 1, proj_size=128), 128, 64, 256)
_trained("gru", lambda: nn.GRU(256, 512, 2), 128, 64, 256)
_trained("rnn", lambda: nn.RNN(256, 512, 2), 128, 64, 256)
_trained("conv1d", lambda: nn.Conv1d(128, 256, 9, padding=4), 32, 128, 4096)
_trained("conv2d-benchmark", lambda: nn.Conv2d(64, 128, 3, padding=1), 32, 64, 112, 112, benchmark=True)
_trained(
    "conv2d-deterministic", lambda: nn.Conv2d(64, 128, 3, padding=1), 32, 64, 112, 112, deterministic=True
)
_trained("conv2d-fp16", lambda: nn.Conv2d(64, 128, 3, padding=1), 32, 64, 112, 112, dtype=torch.float16)
_trained("conv2d-depthwise", lambda: nn.Conv2d(256, 256, 7, padding=3, groups=256), 16, 256, 56, 56)
_trained("conv2d-dilated", lambda: nn.Conv2d(64, 64, 3, padding=4, dilation=4), 16, 64, 96, 96)
_trained("conv3d", lambda: nn.Conv3d(16, 32, 3, padding=1), 4, 16, 32, 64, 64)
_trained("conv-transpose2d", lambda: nn.ConvTranspose2d(128, 64, 4, 2, 1), 16, 128, 56, 56)
_trained("conv-transpose3d", lambda: nn.ConvTranspose3d(32, 16, 4, 2, 1), 2, 32, 16, 32, 32)
_trained(
    "norms",
    lambda: nn.Sequential(
        nn.BatchNorm2d(64), nn.GroupNorm(8, 64), nn.InstanceNorm2d(64, affine=True), nn.LayerNorm([64, 64])
    ),
    32,
    64,
    64,
    64,
)
_trained("rms-norm", lambda: nn.RMSNorm(2048), 16, 1024, 2048, dtype=torch.bfloat16)
_trained(
    "pools",
    lambda: nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveMaxPool2d(16), nn.LPPool2d(2, 2)),
    32,
    64,
    128,
    128,
)
_trained("upsample", lambda: nn.Upsample(scale_factor=2, mode="bicubic"), 8, 32, 128, 128)
_trained("unfold", lambda: nn.Unfold(3, padding=1), 8, 32, 128, 128)


@_program("layer-packed-lstm")
def _packed(device: torch.device) -> None:
    model = nn.LSTM(256, 512, 2, batch_first=True).to(device)
    for _ in range(2):
        x = torch.randn(32, 128, 256, device=device)
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.arange(128, 96, -1), batch_first=True)
        model(packed)[0].data.sum().backward()


@_program("layer-embedding-bag")
def _bag(device: torch.device) -> None:
    table = nn.EmbeddingBag(200_000, 128, mode="mean", device=device)
    for _ in range(2):
        table(torch.randint(200_000, (4096, 32), device=device)).sum().backward()


@_program("loss-ctc")
def _ctc(device: torch.device) -> None:
    logits = torch.randn(400, 32, 64, device=device, requires_grad=True)
    targets = torch.randint(1, 64, (32, 60), dtype=torch.int32)
    lengths = torch.full((32,), 400, dtype=torch.int32), torch.full((32,), 60, dtype=torch.int32)
    for chosen in (targets, targets.to(device)):
        F.ctc_loss(logits.log_softmax(2), chosen, *lengths).backward()


@_program("loss-linear-cross-entropy")
def _large_vocabulary(device: torch.device) -> None:
    head = nn.Linear(1024, 128_256, bias=False, device=device, dtype=torch.bfloat16)
    x = torch.randn(2048, 1024, device=device, dtype=torch.bfloat16, requires_grad=True)
    F.cross_entropy(head(x).float(), torch.randint(128_256, (2048,), device=device)).backward()


@_program("grid-sample")
def _grid(device: torch.device) -> None:
    x = torch.randn(8, 32, 128, 128, device=device, requires_grad=True)
    grid = F.affine_grid(torch.randn(8, 2, 3, device=device), [8, 32, 128, 128])
    F.grid_sample(x, grid).sum().backward()


# --- matrix products, solvers, transforms -----------------------------------------------------------------


@_program("fp8-scaled-mm")
def _fp8(device: torch.device) -> None:
    a = torch.randn(4096, 4096, device=device).to(torch.float8_e4m3fn)
    b = torch.randn(4096, 4096, device=device).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=device)
    torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)
    rows, columns = torch.ones(4096, 1, device=device), torch.ones(1, 4096, device=device)
    torch._scaled_mm(a, b, rows, columns, out_dtype=torch.bfloat16)


@_program("grouped-mm")
def _grouped(device: torch.device) -> None:
    a = torch.randn(4096, 1024, device=device, dtype=torch.bfloat16, requires_grad=True)
    b = torch.randn(8, 1024, 2048, device=device, dtype=torch.bfloat16, requires_grad=True)
    ends = torch.arange(512, 4097, 512, device=device, dtype=torch.int32)
    result = torch._grouped_mm(a, b, offs=ends)
    result.backward(torch.randn_like(result))


@_program("int8-mm")
def _int8(device: torch.device) -> None:
    a = torch.randint(-9, 9, (2048, 4096), device=device, dtype=torch.int8)
    torch._int_mm(a, a.t().contiguous())


@_program("matrix-products")
def _products(device: torch.device) -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.complex64):
        a = torch.randn(2048, 2048, device=device, dtype=dtype)
        batched = torch.randn(32, 256, 256, device=device, dtype=dtype)
        torch.addmm(a[0], a, a)
        torch.baddbmm(batched, batched, batched)
        a @ a[0]
        F.linear(a, a, a[0])


@_program("solvers")
def _solvers(device: torch.device) -> None:
    for shape in ((512, 512), (16, 96, 96), (64, 24, 24)):
        a = torch.randn(*shape, device=device)
        positive = a @ a.mT + 10 * torch.eye(shape[-1], device=device)
        linalg = torch.linalg
        for solve in (
            linalg.cholesky,
            linalg.inv,
            linalg.lu,
            linalg.qr,
            linalg.eigh,
            linalg.svd,
            linalg.det,
        ):
            solve(positive)
        linalg.solve(positive, a)
        torch.cholesky_solve(a, linalg.cholesky(positive))
        linalg.lstsq(positive, a)
        torch.cholesky_inverse(linalg.cholesky(positive))


@_program("matrix-exponentials")
def _exponentials(device: torch.device) -> None:
    for shape in ((512, 512), (16, 96, 96)):
        torch.linalg.matrix_exp(torch.randn(*shape, device=device) / 100)


@_program("transforms")
def _transforms(device: torch.device) -> None:
    x = torch.randn(64, 512, 512, device=device)
    for transform in (torch.fft.rfft, torch.fft.rfft2, torch.fft.fft, torch.fft.fft2, torch.fft.fftn):
        transform(x)
    torch.fft.irfft2(torch.fft.rfft2(x))
    torch.fft.fft(torch.randn(64, 100_003, device=device))
    torch.stft(x.flatten(1), 1024, return_complex=True, window=torch.hann_window(1024, device=device))


@_program("sorts-and-scans")
def _sorts(device: torch.device) -> None:
    x = torch.randn(64, 65_536, device=device)
    flat = torch.randint(1000, (4_000_000,), device=device)
    torch.sort(x)
    torch.sort(x, dim=0)
    torch.sort(flat)
    torch.argsort(x.double(), stable=True)
    torch.topk(x, 50)
    torch.topk(flat, 1000)
    torch.kthvalue(x, 5)
    torch.median(x)
    torch.median(x, dim=1)
    torch.cumsum(x, 1)
    torch.cumsum(flat, 0)
    torch.logcumsumexp(x, 1)
    torch.cummax(x, 1)
    torch.cumprod(flat.float(), 0)
    torch.searchsorted(x[0].sort()[0], x)
    torch.bucketize(x, torch.linspace(-1, 1, 100, device=device))
    torch.randperm(3_000_000, device=device)
    torch.randperm(1000, device=device)
    torch.multinomial(torch.rand(64, 4096, device=device), 100)
    torch.multinomial(torch.rand(64, 4096, device=device), 100, replacement=True)


@_program("counts-of-values")
def _counts(device: torch.device) -> None:
    flat = torch.arange(4_000_000, device=device) % 1000
    flat.nonzero()
    flat[flat < 500]
    torch.where(flat > 900)
    flat.unique()
    flat.unique(return_inverse=True, return_counts=True)
    torch.unique_consecutive(flat)
    torch.bincount(flat)
    torch.histc(flat.float(), 100)
    flat.masked_select(flat == 3)
    torch.repeat_interleave(torch.ones(1000, device=device, dtype=torch.long) * 7)
    torch.isin(flat, torch.arange(10, device=device))


@_program("indexing")
def _indexing(device: torch.device) -> None:
    table = torch.randn(100_000, 128, device=device, requires_grad=True)
    index = torch.randint(100_000, (200_000,), device=device)
    table[index].sum().backward()
    table.index_select(0, index).sum().backward()
    F.embedding(index, table).sum().backward()
    torch.gather(table, 1, torch.randint(128, (100_000, 8), device=device)).sum().backward()
    target = torch.zeros(100_000, 128, device=device)
    values = torch.randn(200_000, 128, device=device)
    target.index_add_(0, index, values)
    target.index_put_((index,), values, accumulate=True)
    target.scatter_reduce_(0, index[:, None].expand(-1, 128), values, "amax")
    target.index_copy_(0, index, values)
    target.put_(index, values[:, 0].contiguous(), accumulate=True)


@_program("reductions")
def _reductions(device: torch.device) -> None:
    x = torch.randn(16_777_216, device=device)
    for view in (x, x.view(4096, 4096), x.view(16, 1024, 1024), x.view(4, 4_194_304)):
        for dimension in range(view.ndim):
            view.sum(dimension)
            view.mean(dimension)
            view.var(dimension)
            view.argmax(dimension)
            view.norm(dim=dimension)
            view.logsumexp(dimension)
            view.prod(dimension)
        view.sum()
        view.max()
        view.var()
        view.half().sum()
        view.double().sum()


@_program("sparse-matrices")
def _sparse(device: torch.device) -> None:
    index = torch.randint(8192, (2, 100_000), device=device)
    coo = torch.sparse_coo_tensor(index, torch.randn(100_000, device=device), (8192, 8192))
    dense = torch.randn(8192, 256, device=device)
    torch.sparse.mm(coo, dense)
    coo = coo.coalesce()
    torch.sparse.mm(coo, dense)
    csr = coo.to_sparse_csr()
    csr @ dense
    torch.sparse.mm(csr, csr)
    torch.sparse.sampled_addmm(csr, dense, dense.t())


@_program("semi-structured")
def _semi(device: torch.device) -> None:
    from torch.sparse import to_sparse_semi_structured

    pattern = torch.tensor([0, 0, 1, 1], device=device, dtype=torch.float16).tile(2048, 512)
    sparse = to_sparse_semi_structured(pattern)
    torch.mm(sparse, torch.randn(2048, 512, device=device, dtype=torch.float16))


# --- gradients of other kinds -----------------------------------------------------------------------------


@_program("functional-gradients")
def _functional(device: torch.device) -> None:
    from torch.func import functional_call, grad, jacrev, vmap

    model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 16)).to(device)
    parameters = dict(model.named_parameters())

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(model, weights, (x,)).square().sum()

    grad(loss)(parameters, torch.randn(4096, 256, device=device))
    vmap(grad(loss), in_dims=(None, 0))(parameters, torch.randn(256, 256, device=device))
    jacrev(lambda x: model(x))(torch.randn(64, 256, device=device))


@_program("gradient-penalty")
def _penalty(device: torch.device) -> None:
    model = nn.Sequential(nn.Linear(1024, 2048), nn.Softplus(), nn.Linear(2048, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(_STEPS):
        x = torch.randn(4096, 1024, device=device, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slope.norm(dim=1).sub(1).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@_program("meta-learning")
def _meta(device: torch.device) -> None:
    model = nn.Sequential(nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 512)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        x = torch.randn(1024, 512, device=device)
        weights = dict(model.named_parameters())
        for _ in range(3):
            inner = F.mse_loss(torch.func.functional_call(model, weights, (x,)), x)
            slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            weights = {n: w - 0.1 * s for (n, w), s in zip(weights.items(), slopes, strict=True)}
        F.mse_loss(torch.func.functional_call(model, weights, (x,)), x).backward()
        optimizer.step()
        optimizer.zero_grad()


@_program("forward-mode")
def _forward_mode(device: torch.device) -> None:
    model = nn.Sequential(nn.Linear(1024, 2048), nn.GELU(), nn.Linear(2048, 1024)).to(device)
    x = torch.randn(2048, 1024, device=device)
    torch.func.jvp(model, (x,), (torch.randn_like(x),))


# --- several processes, of which there is one -------------------------------------------------------------


@contextmanager
def _alone(device: torch.device) -> Iterator[None]:
    import torch.distributed as dist

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=device)
    yield
    dist.destroy_process_group()


@_program("ddp")
def _ddp(device: torch.device) -> None:
    with _alone(device):
        model = nn.parallel.DistributedDataParallel(Decoder().to(device))
        _steps(model, torch.optim.AdamW(model.parameters()), lambda: _tokens(device))


@_program("ddp-view")
def _ddp_view(device: torch.device) -> None:
    with _alone(device):
        model = nn.parallel.DistributedDataParallel(
            Decoder().to(device), gradient_as_bucket_view=True, static_graph=True
        )
        _steps(model, torch.optim.AdamW(model.parameters()), lambda: _tokens(device))


@_program("fsdp2")
def _fsdp2(device: torch.device) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with _alone(device):
        model = Decoder().to(device)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        _steps(model, torch.optim.AdamW(model.parameters()), lambda: _tokens(device))


@_program("fsdp1")
def _fsdp1(device: torch.device) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    with _alone(device):
        model = Decoder().to(device)
        for index, block in enumerate(model.blocks):
            model.blocks[index] = FullyShardedDataParallel(block, use_orig_params=True)
        wrapped = FullyShardedDataParallel(model, use_orig_params=True)
        _steps(wrapped, torch.optim.AdamW(wrapped.parameters()), lambda: _tokens(device))


@_program("zero-optimizer")
def _zero(device: torch.device) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    with _alone(device):
        model = nn.parallel.DistributedDataParallel(Decoder().to(device))
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
        _steps(model, optimizer, lambda: _tokens(device))


def _late_collectives(device: torch.device, pause: int, kernels: int) -> None:
    """Asynchronous collectives whose tensors the script has dropped, while the GPU is behind."""
    import torch.distributed as dist

    with _alone(device):
        small = torch.ones(16, device=device)
        dist.all_reduce(small)
        torch.cuda.synchronize()
        futures = []
        if pause:
            torch.cuda._sleep(pause)
        for _ in range(40):
            x = torch.ones(4 << 20, device=device)
            out = torch.empty_like(x)
            futures.append(dist.all_gather_into_tensor(out, x, async_op=True).get_future())
            del x, out
            for _ in range(kernels):
                small.add_(1)
        for future in futures:
            future.wait()


@_program("collectives-idle")
def _collectives_idle(device: torch.device) -> None:
    _late_collectives(device, 0, 5)


# About two seconds of the GPU.
_LONG = 3_000_000_000


@_program("collectives-behind")
def _collectives_behind(device: torch.device) -> None:
    _late_collectives(device, _LONG, 5)


@_program("collectives-full-queue")
def _collectives_queue(device: torch.device) -> None:
    _late_collectives(device, _LONG, 100)


# --- libraries --------------------------------------------------------------------------------------------


@_program("lora")
def _lora(device: torch.device) -> None:
    import peft
    import transformers

    config = transformers.Qwen3Config(
        hidden_size=512, intermediate_size=1536, num_hidden_layers=4, num_attention_heads=8
    )
    config.num_key_value_heads, config.head_dim = 4, 64
    model = peft.get_peft_model(
        transformers.Qwen3ForCausalLM(config).to(device, torch.bfloat16),
        peft.LoraConfig(target_modules=["q_proj", "v_proj"]),
    )
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    for _ in range(_STEPS):
        tokens = _tokens(device, 4)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@_program("mixture-of-experts")
def _experts(device: torch.device) -> None:
    import transformers

    config = transformers.MixtralConfig(
        vocab_size=16_384, hidden_size=512, intermediate_size=1024, num_hidden_layers=2
    )
    config.num_attention_heads, config.num_key_value_heads = 8, 4
    model = transformers.MixtralForCausalLM(config).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(_STEPS):
        tokens = _tokens(device, 4)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@_program("generation")
def _generation(device: torch.device) -> None:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=16_384, hidden_size=512, intermediate_size=1536, num_hidden_layers=4
    )
    config.num_attention_heads = config.num_key_value_heads = 8
    config.eos_token_id = None
    model = transformers.LlamaForCausalLM(config).to(device, torch.bfloat16).eval()
    model.generate(_tokens(device, 4, 128), max_new_tokens=16, do_sample=False, pad_token_id=0)


@_program("trainer")
def _trainer(_: torch.device) -> None:
    import tempfile

    import transformers

    config = transformers.GPT2Config(vocab_size=16_384, n_embd=512, n_layer=4, n_head=8)
    model = transformers.GPT2LMHeadModel(config)
    data = [{"input_ids": torch.arange(512), "labels": torch.arange(512)} for _ in range(32)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, per_device_train_batch_size=8, max_steps=4, bf16=True, report_to=[], save_strategy="no"
        )
        transformers.Trainer(model, arguments, train_dataset=data).train()


@_program("timm-vit")
def _timm(device: torch.device) -> None:
    import timm

    model = timm.create_model("vit_small_patch16_224").to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(_STEPS):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(torch.randn(64, 3, 224, 224, device=device)).float().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@_program("unet")
def _unet(device: torch.device) -> None:
    def block(channels_in: int, channels: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.GroupNorm(8, channels),
            nn.SiLU(),
        )

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = (3, 32, 64, 128, 256)
            self.down = nn.ModuleList(block(a, b) for a, b in pairwise(sizes))
            self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(sizes[1:]))
            self.join = nn.ModuleList(block(2 * a, a) for a in sizes[1:-1])
            self.out = nn.Conv2d(32, 1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = []
            for index, down in enumerate(self.down):
                x = down(x if index == 0 else F.max_pool2d(x, 2))
                kept.append(x)
            for up, join, skip in zip(
                reversed(self.up), reversed(self.join), reversed(kept[:-1]), strict=True
            ):
                x = join(torch.cat([up(x), skip], 1))
            result: torch.Tensor = self.out(x)
            return F.binary_cross_entropy_with_logits(result, torch.ones_like(result))

    model = UNet().to(device)
    _steps(
        model,
        torch.optim.Adam(model.parameters()),
        lambda: torch.randn(8, 3, 256, 256, device=device),
        lambda: torch.autocast("cuda", torch.float16),
    )

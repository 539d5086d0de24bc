"""Training jobs of models from libraries, on random data, for traces of projects that have nothing in common.

    python bench/accuracy/libraries.py PROJECT MODEL OPTIMIZER BATCH [--iterations 5] [--zero-grad 0]

The models have random weights, and sizes that a CPU trains in seconds. Each project is a library of its own,
so that an estimate can be held against projects that its interval was not made from.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from workloads.vision_operators import define_vision_operators

Data = Callable[[int], tuple[torch.Tensor, torch.Tensor]]
_LEARNING_RATE = 1e-3
_TOKENS, _WORDS, _CLASSES = 96, 4000, 100


@dataclass(frozen=True)
class LibraryJob:
    """A training job of a library's model.

    Attributes:
        project: The library.
        model: One of its models.
        optimizer: A class of ``torch.optim``.
        batch: Samples an iteration.
        zero_grad: 0 at the start of an iteration, 2 after the step.
        iterations: How many.
    """

    project: str
    model: str
    optimizer: str
    batch: int
    zero_grad: int = 0
    iterations: int = 5

    @property
    def arguments(self) -> list[str]:
        """What names the job on the command line."""
        names = [self.project, self.model, self.optimizer, str(self.batch)]
        return [*names, "--iterations", str(self.iterations), "--zero-grad", str(self.zero_grad)]


JOBS = (
    LibraryJob("timm", "vit_tiny_patch16_224", "AdamW", 4),
    LibraryJob("timm", "convnext_atto", "AdamW", 4, zero_grad=2),
    LibraryJob("timm", "efficientnet_b0", "RMSprop", 4),
    LibraryJob("timm", "mixer_s32_224", "SGD", 8),
    LibraryJob("vit_pytorch", "ViT", "Adam", 8),
    LibraryJob("vit_pytorch", "SimpleViT", "AdamW", 8, zero_grad=2),
    LibraryJob("segmentation_models_pytorch", "Unet", "Adam", 4),
    LibraryJob("segmentation_models_pytorch", "FPN", "SGD", 4, zero_grad=2),
    LibraryJob("diffusers", "UNet2DModel", "AdamW", 8),
    LibraryJob("diffusers", "AutoencoderKL", "Adam", 4, zero_grad=2),
    LibraryJob("x_transformers", "Decoder", "AdamW", 8),
    LibraryJob("x_transformers", "Encoder", "Adam", 8, zero_grad=2),
    LibraryJob("torch", "Transformer", "Adam", 8),
    LibraryJob("torch", "TransformerEncoder", "AdamW", 16, zero_grad=2),
    LibraryJob("torch", "MLP", "Adam", 64),
    LibraryJob("torch", "DCGAN", "Adam", 32),
)


def train(job: LibraryJob, device: torch.device, after: Callable[[int], None] = lambda _: None) -> None:
    """Run the job's iterations.

    Args:
        job: What to run.
        device: Where.
        after: Called with the number of each finished iteration.
    """
    torch.manual_seed(0)
    model, data, loss_of = _BUILDERS[job.project](job.model)
    model = model.to(device).train()
    optimizer = getattr(torch.optim, job.optimizer)(model.parameters(), lr=_LEARNING_RATE)
    for iteration in range(job.iterations):
        inputs, targets = (each.to(device) for each in data(job.batch))
        if job.zero_grad == 0:
            optimizer.zero_grad()
        loss = loss_of(model, inputs, targets)
        loss.backward()
        optimizer.step()
        if job.zero_grad == 2:
            optimizer.zero_grad()
        after(iteration)


Built = tuple[torch.nn.Module, Data, Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]]


def _images(side: int, channels: int = 3) -> Data:
    return lambda batch: (torch.randn(batch, channels, side, side), torch.randint(_CLASSES, (batch,)))


def _texts(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    text = torch.randint(_WORDS, (batch, _TOKENS + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def _classified(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(inputs), targets)


def _words(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def _restored(model: Any, inputs: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(inputs), inputs)


def _timm(name: str) -> Built:
    import timm

    return timm.create_model(name, num_classes=_CLASSES), _images(224), _classified


def _vit_pytorch(name: str) -> Built:
    import vit_pytorch

    sizes = {"image_size": 128, "patch_size": 16, "dim": 256, "depth": 4, "heads": 8, "mlp_dim": 512}
    model = getattr(vit_pytorch, name)(num_classes=_CLASSES, **sizes)
    return model, _images(128), _classified


def _segmentation(name: str) -> Built:
    import segmentation_models_pytorch

    made = getattr(segmentation_models_pytorch, name)(
        encoder_name="resnet18", encoder_weights=None, classes=5
    )

    def data(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(batch, 3, 128, 128), torch.randint(5, (batch, 128, 128))

    return made, data, _classified


def _diffusers(name: str) -> Built:
    import diffusers

    if name == "UNet2DModel":
        model = diffusers.UNet2DModel(
            sample_size=32,
            block_out_channels=(64, 128),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )
        return model, _images(32), lambda net, x, t: (net(x, t).sample - x).pow(2).mean()
    model = diffusers.AutoencoderKL(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )
    return model, _images(64), lambda net, x, _: (net(x).sample - x).pow(2).mean()


def _x_transformers(name: str) -> Built:
    import x_transformers

    layers = getattr(x_transformers, name)(dim=256, depth=4, heads=8)
    model = x_transformers.TransformerWrapper(num_tokens=_WORDS, max_seq_len=_TOKENS, attn_layers=layers)
    return model, _texts, _words


def _torch(name: str) -> Built:
    nn = torch.nn
    if name == "MLP":
        layers = [part for _ in range(4) for part in (nn.Linear(1024, 1024), nn.ReLU())]
        return nn.Sequential(nn.Flatten(), *layers, nn.Linear(1024, _CLASSES)), _images(32, 1), _classified
    if name == "DCGAN":
        widths = (3, 64, 128, 256)
        down = [
            part
            for first, second in pairwise(widths)
            for part in (nn.Conv2d(first, second, 4, 2, 1), nn.BatchNorm2d(second), nn.LeakyReLU(0.2))
        ]
        up = [
            part
            for first, second in pairwise(widths[::-1])
            for part in (nn.ConvTranspose2d(first, second, 4, 2, 1), nn.BatchNorm2d(second), nn.ReLU())
        ]
        return nn.Sequential(*down, *up), _images(64), _restored
    return _Words(name), _texts, _words


class _Words(torch.nn.Module):
    """A language model of torch's own layers."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(_WORDS, 256)
        if name == "Transformer":
            self.layers = torch.nn.Transformer(256, 8, 2, 2, 512, batch_first=True)
        else:
            layer = torch.nn.TransformerEncoderLayer(256, 8, 512, batch_first=True)
            self.layers = torch.nn.TransformerEncoder(layer, 4)
        self.head = torch.nn.Linear(256, _WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next words."""
        hidden = self.embedding(tokens)
        both = (hidden, hidden) if isinstance(self.layers, torch.nn.Transformer) else (hidden,)
        return self.head(self.layers(*both))


_BUILDERS: dict[str, Callable[[str], Built]] = {
    "timm": _timm,
    "vit_pytorch": _vit_pytorch,
    "segmentation_models_pytorch": _segmentation,
    "diffusers": _diffusers,
    "x_transformers": _x_transformers,
    "torch": _torch,
}


def importable() -> Iterator[LibraryJob]:
    """Yield the jobs whose libraries are installed."""
    from importlib.util import find_spec

    yield from (job for job in JOBS if find_spec(job.project) is not None)


def main() -> None:
    """Run one job on the GPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("project", choices=sorted(_BUILDERS))
    parser.add_argument("model")
    parser.add_argument("optimizer")
    parser.add_argument("batch", type=int)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--zero-grad", type=int, default=0, choices=(0, 2))
    options = parser.parse_args()
    define_vision_operators()
    train(LibraryJob(**vars(options)), torch.device("cuda"))


if __name__ == "__main__":
    main()

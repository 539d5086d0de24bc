"""Forward passes of the models of the occupancy experiments: of torchvision, of transformers, our own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from workloads.job import Scale
from workloads.weights import uninitialised_weights

_Build = Callable[[int, int], torch.nn.Module]


@dataclass(frozen=True)
class Inference:
    """A forward pass in evaluation mode.

    Attributes:
        model: A key of ``CLASSIFIERS``.
        batch: Samples.
        channels: Channels of the images.
        length: Tokens or time steps of a sequence.
    """

    model: str
    batch: int
    channels: int = 3
    length: int = 64


class LeNet(torch.nn.Sequential):
    """LeNet-5 on 32 x 32, behind a pool that takes images of any size."""

    def __init__(self, channels: int) -> None:
        nn = torch.nn
        super().__init__(
            nn.AdaptiveAvgPool2d(32),
            nn.Conv2d(channels, 6, 5),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.Tanh(),
            nn.Linear(120, 84),
            nn.Tanh(),
            nn.Linear(84, 10),
        )


def _torchvision(constructor: str) -> _Build:
    def build(channels: int, pixels: int) -> torch.nn.Module:
        import torchvision

        sized = {"image_size": pixels} if constructor.startswith("vit") else {}
        sized = {"input_size": (pixels, pixels)} if constructor.startswith("maxvit") else sized
        model: torch.nn.Module = getattr(torchvision.models, constructor)(**sized)
        return _with_channels(model, channels)

    return build


def _vit(width: int, heads: int) -> _Build:
    def build(channels: int, pixels: int) -> torch.nn.Module:
        from torchvision.models import VisionTransformer

        model = VisionTransformer(
            image_size=pixels,
            patch_size=16,
            num_layers=12,
            num_heads=heads,
            hidden_dim=width,
            mlp_dim=4 * width,
        )
        return _with_channels(model, channels)

    return build


def _with_channels(model: torch.nn.Module, channels: int) -> torch.nn.Module:
    """The first convolution takes this many channels."""
    name, first = next((n, m) for n, m in model.named_modules() if isinstance(m, torch.nn.Conv2d))
    if first.in_channels == channels:
        return model
    parent, _, attribute = name.rpartition(".")
    replacement = torch.nn.Conv2d(
        channels,
        first.out_channels,
        first.kernel_size,
        first.stride,
        first.padding,
        bias=first.bias is not None,
    )
    setattr(model.get_submodule(parent), attribute, replacement)
    return model


def _hub(class_name: str, **numbers: Any) -> _Build:
    def build(_channels: int, _pixels: int) -> torch.nn.Module:
        import transformers

        config_class: Any = getattr(transformers, class_name.replace("Model", "Config"))
        model_class: Any = getattr(transformers, class_name)
        model: torch.nn.Module = model_class(config_class(**numbers))
        return model

    return build


# What a model is fed: images, vectors in time, tokens, or images and tokens.
CLASSIFIERS: dict[str, tuple[str, _Build]] = {
    "LeNet": ("images", lambda channels, _: LeNet(channels)),
    "AlexNet": ("images", _torchvision("alexnet")),
    "VGG-11": ("images", _torchvision("vgg11")),
    "VGG-13": ("images", _torchvision("vgg13")),
    "VGG-16": ("images", _torchvision("vgg16")),
    "ResNet-18": ("images", _torchvision("resnet18")),
    "ResNet-34": ("images", _torchvision("resnet34")),
    "ResNet-50": ("images", _torchvision("resnet50")),
    "ConvNeXt-B": ("images", _torchvision("convnext_base")),
    "ViT-T": ("images", _vit(192, 3)),
    "ViT-S": ("images", _vit(384, 6)),
    "Swin-S": ("images", _torchvision("swin_s")),
    "MaxViT-T": ("images", _torchvision("maxvit_t")),
    "RNN": ("vectors", lambda *_: torch.nn.RNN(128, 256, 2, batch_first=True)),
    "LSTM": ("vectors", lambda *_: torch.nn.LSTM(128, 256, 2, batch_first=True)),
    "BERT": ("tokens", _hub("BertModel")),
    "DistilBERT": ("tokens", _hub("DistilBertModel")),
    "GPT-2": ("tokens", _hub("GPT2Model")),
    "CLIP ViT-B/32": ("both", _hub("CLIPModel", vision_config={"patch_size": 32})),
    "CLIP ViT-B/16": ("both", _hub("CLIPModel", vision_config={"patch_size": 16})),
}


def prepare_inference(
    inference: Inference, scale: Scale | None = None
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The model in evaluation mode and its keyword or only argument, on the host.

    Returns:
        The model, and its inputs: under their names, or under the empty name where there is one.
    """
    scale = scale or Scale()
    kind, build = CLASSIFIERS[inference.model]
    pixels = 224
    with uninitialised_weights():
        model = build(inference.channels, pixels).eval()
    batch, length = scale.count(inference.batch), scale.count(inference.length, at_least=8)
    if kind == "images":
        return model, {"": torch.zeros(batch, inference.channels, pixels, pixels)}
    if kind == "vectors":
        return model, {"": torch.zeros(batch, length, 128)}
    ids = torch.randint(1000, (batch, length))
    if kind == "tokens":
        return model, {"input_ids": ids}
    return model, {"input_ids": ids, "pixel_values": torch.zeros(batch, 3, pixels, pixels)}

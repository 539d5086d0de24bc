"""Image classification: CIFAR-10 at 86 x 86 with torchvision's models, as published."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from workloads.job import Job, Scale
from workloads.loader import loader

# The name in the published data: torchvision's constructor, classes.
CNNS = {
    "VGG16": ("vgg16", 1000),
    "VGG19": ("vgg19", 1000),
    "ResNet50": ("resnet50", 1000),
    "ResNet101": ("resnet101", 1000),
    "ResNet152": ("resnet152", 1000),
    "MobileNetV2": ("mobilenet_v2", 1000),
    "MobeNetV3Small": ("mobilenet_v3_small", 10),
    "MobeNetV3Large": ("mobilenet_v3_large", 10),
    "MnasNet": ("mnasnet1_0", 10),
    "ConvNeXtTiny": ("convnext_tiny", 1000),
    "ConvNeXtBase": ("convnext_base", 1000),
    "RegNetX400MF": ("regnet_x_400mf", 1000),
    "RegNetY400MF": ("regnet_y_400mf", 1000),
}
# What stands in for a network where the host computes it.
_SMALLEST_KIN = {
    "vgg16": "vgg11",
    "vgg19": "vgg11",
    "resnet101": "resnet18",
    "resnet152": "resnet18",
    "convnext_base": "convnext_tiny",
}


_OF_TIMM = "timm/"  # before the names of that package's models
_CLASSES_OF_TIMM = 1000


def is_cnn(name: str) -> bool:
    """Whether a name is that of a network here."""
    return name in CNNS or name.startswith(_OF_TIMM)


def build(name: str, scale: Scale) -> torch.nn.Module:
    """The network on the host, in train mode."""
    if name.startswith(_OF_TIMM):
        import timm

        network: torch.nn.Module = timm.create_model(name.removeprefix(_OF_TIMM))
        return network.train()
    import torchvision

    constructor, classes = CNNS[name]
    if scale.divisor != 1:
        constructor = _SMALLEST_KIN.get(constructor, constructor)
    model: torch.nn.Module = getattr(torchvision.models, constructor)(num_classes=classes)
    if scale.divisor != 1 and constructor.startswith("vgg"):
        model.avgpool = torch.nn.AdaptiveAvgPool2d(1)
        model.classifier = torch.nn.Linear(512, classes)
    return model.train()


def host_batch(job: Job, scale: Scale) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels as a DataLoader would bring them."""
    batch, pixels = scale.count(job.batch, at_least=2), scale.pixels(job.pixels)
    images = torch.zeros(batch, 3, pixels, pixels)
    classes = CNNS[job.model][1] if job.model in CNNS else _CLASSES_OF_TIMM
    return images, torch.randint(classes, (batch,))


def train(
    job: Job,
    model: torch.nn.Module,
    make_optimizer: Callable[[Any], torch.optim.Optimizer],
    batch: tuple[torch.Tensor, torch.Tensor],
    device: torch.device,
    forward_mode: Callable[[], AbstractContextManager[Any]],
    after_iteration: Callable[[int], None],
) -> None:
    """The published loop: the optimizer is made after the model has moved."""
    memory_format = torch.channels_last if job.channels_last else torch.preserve_format
    if job.optimizer_built == "before":
        optimizer = make_optimizer(model.parameters())
    model = model.to(device, memory_format=memory_format)
    if job.optimizer_built != "before":
        optimizer = make_optimizer(model.parameters())
    criterion = torch.nn.CrossEntropyLoss()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7)
    if job.channels_last:
        batch = (batch[0].contiguous(memory_format=torch.channels_last), batch[1])
    # What the last iteration held of its batch on the device is let go here.
    for iteration, (inputs, labels) in enumerate(loader(batch, job.iterations)):
        if job.zero_grad == 0:
            optimizer.zero_grad()
        inputs, labels = inputs.to(device), labels.to(device)
        with forward_mode():
            outputs = model(inputs)
            loss = criterion(outputs, labels)
        if job.zero_grad == 1:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # Held until the next iteration, as in the published loop.
        _best, _predicted = torch.max(outputs, 1)
        if job.zero_grad == 2:
            optimizer.zero_grad()
        scheduler.step()
        after_iteration(iteration)

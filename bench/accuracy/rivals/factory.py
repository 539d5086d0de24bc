"""Models by name, for rivals that take an entry point. They are built as the published jobs build them.

Rivals call it on the meta device, where libraries cannot be imported: all of that happens here, before.
"""

from __future__ import annotations

import importlib

import torch
import torchvision  # noqa: F401
import transformers

from workloads import TRANSFORMERS, cnn, transformer
from workloads.job import Scale
from workloads.vision_operators import define_vision_operators

define_vision_operators()
for _configuration, _ in TRANSFORMERS.values():
    _module: str = getattr(transformers, _configuration).__module__
    importlib.import_module(_module.replace("configuration_", "modeling_"))


def model(name: str) -> torch.nn.Module:
    """The network of a published job, in train mode."""
    return cnn.build(name, Scale()) if cnn.is_cnn(name) else transformer.build(name, Scale())

"""The GPU that a training process sees, where its user named none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xmem.devices.gpus import find_device
from xmem.errors import ConfigError


def gpu_or_own(gpu: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with the GPU: the one that is named, else the first that torch sees.

    A card that is not known by name counts with the memory that CUDA reports.

    Raises:
        ConfigError: None is named, and torch sees none.
    """
    if gpu is not None or options.get("capacity") is not None:
        return {"gpu": gpu, **options}
    import torch

    if not torch.cuda.is_available():
        raise ConfigError("torch sees no GPU here", "name the one of the job with gpu=")
    card = torch.cuda.get_device_properties(0)
    try:
        find_device(card.name)
    except ConfigError:
        return {"capacity": card.total_memory, **options}
    return {"gpu": card.name, **options}

"""The target of an estimate, as far as policies depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from xmem.cudnn.workspaces import Workspaces
from xmem.devices.description import Device
from xmem.records import dataclass


@dataclass(frozen=True)
class RunSettings:
    """A script's PyTorch settings that change what CUDA allocates; the defaults are PyTorch's.

    Attributes:
        cudnn_enabled: ``torch.backends.cudnn.enabled``.
        cudnn_allow_tf32: Convolutions in float32 may use TF32.
        cudnn_benchmark: Convolutions are timed, with all their workspaces, at the first use of a shape.
        cudnn_deterministic: Convolutions use deterministic engines only.
        matmul_allow_tf32: Matrix products in float32 may use TF32.
        deterministic_algorithms: ``torch.use_deterministic_algorithms``.
        autocast: The dtype that the model was called under, such as ``bfloat16``; None without autocast.
        channels_last: Whether the model has weights that are channels-last.
        environment: Names and values of the environment variables that PyTorch's libraries read.
    """

    cudnn_enabled: bool = True
    cudnn_allow_tf32: bool = True
    cudnn_benchmark: bool = False
    cudnn_deterministic: bool = False
    matmul_allow_tf32: bool = False
    deterministic_algorithms: bool = False
    autocast: str | None = None
    channels_last: bool = False
    environment: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, noted: Mapping[str, Any]) -> RunSettings:
        """Build from what the capture noted as ``settings``, with PyTorch's defaults for the rest."""
        flags = {
            entry.name: noted[entry.name]
            for entry in fields(cls)
            if isinstance(entry.default, bool) and isinstance(noted.get(entry.name), bool)
        }
        autocast, environment = noted.get("autocast"), noted.get("environment")
        variables = environment.items() if isinstance(environment, dict) else ()
        return cls(
            **flags,
            autocast=autocast if isinstance(autocast, str) else None,
            environment=tuple(sorted((name, value) for name, value in variables if isinstance(value, str))),
        )

    def variable(self, name: str) -> str | None:
        """Return the value of an environment variable, None if it is not set."""
        return dict(self.environment).get(name)


@dataclass(frozen=True)
class Target:
    """The target of an estimate, as far as policies depend on it. Runs moved to equal targets are equal.

    Attributes:
        compute_capability: CUDA compute capability, (8, 6) for an RTX 3060.
        torch_version: (major, minor) of the PyTorch that will run the job.
        settings: Settings of the script.
        gpu: Slug of the GPU, empty where none is named; two targets with one slug have one description.
        device: Its description, such as the number of multiprocessors; None where no GPU is named, and for
            traces of GPUs that only built-in policies correct. Its memory may be limited below the GPU's: no
            policy may depend on that.
        convolutions: Source of cuDNN's workspaces there, None to count none.
    """

    compute_capability: tuple[int, int]
    torch_version: tuple[int, int]
    settings: RunSettings = RunSettings()
    gpu: str = ""
    device: Device | None = field(default=None, compare=False, repr=False)
    convolutions: Workspaces | None = None

"""Part 4: the device as CUDA, cuDNN and the driver see it, and the size of its context."""

from __future__ import annotations

import ctypes
import platform
import tomllib
from pathlib import Path
from typing import Any

import torch

from xmem_measure.meter import loaded_library
from xmem_measure.parts.cudnn import device_json
from xmem_measure.session import Session

# Prefixes of what is left out: results tell the kind of card, not which one it is.
_LEFT_OUT = ("_", "uuid", "pci_")
# The product's table of attribute numbers: data of the same checkout, no import.
ATTRIBUTE_NUMBERS = Path(__file__).resolve().parents[4] / "python/xmem/data/cuda_attributes.toml"


def run(_config: dict[str, Any], session: Session) -> dict[str, Any]:
    """Ask everything that can be asked; what a library refuses is left out and named in ``refused``."""
    session.start()
    # A convolutional network and a step of Adam load the kernels that a first job would.
    with session.meter.watching():
        _load_kernels(session.meter.device)
    usage = session.meter.usage()
    session.moment("kernels")
    result: dict[str, Any] = {
        "reserved_bytes": usage.reserved_bytes,
        "refused": {},
        # What a driver depends on; a kernel's full name may tell whose machine it is.
        "host": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
    }
    if session.meter.device.type != "cuda":
        return result
    properties = torch.cuda.get_device_properties(0)
    result["properties"] = {
        name: value if isinstance(value, int | float | str) else str(value)
        for name in dir(properties)
        if not name.startswith(_LEFT_OUT) and not callable(value := getattr(properties, name))
    }
    for name, ask in {"attributes": _attributes, "versions": _versions, "cudnn_device": device_json}.items():
        try:
            result[name] = ask()
        except (OSError, AttributeError, RuntimeError, ValueError) as error:
            result["refused"][name] = str(error)
    return result


def _load_kernels(device: torch.device) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 16 * 16, 10),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    images = torch.zeros(8, 3, 32, 32, device=device)
    labels = torch.zeros(8, dtype=torch.long, device=device)
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()


def _attributes() -> dict[str, int]:
    """Every attribute that CUDA's runtime knows, by the names of the product's table."""
    if not ATTRIBUTE_NUMBERS.exists():
        raise ValueError(f"{ATTRIBUTE_NUMBERS} is not there: run the kit from a checkout")
    runtime = loaded_library("libcudart.so", "cudaDeviceGetAttribute")
    found = {}
    for name, number in tomllib.loads(ATTRIBUTE_NUMBERS.read_text(encoding="utf-8")).items():
        value = ctypes.c_int()
        if runtime.cudaDeviceGetAttribute(ctypes.byref(value), ctypes.c_int(number), ctypes.c_int(0)) == 0:
            found[name] = value.value
        else:
            # The error must not meet the next call of somebody else.
            runtime.cudaGetLastError()
    return found


def _versions() -> dict[str, int]:
    """As the libraries number themselves."""
    runtime, versions = loaded_library("libcudart.so", "cudaDeviceGetAttribute"), {}
    for name in ("cudaRuntimeGetVersion", "cudaDriverGetVersion"):
        number = ctypes.c_int()
        getattr(runtime, name)(ctypes.byref(number))
        versions[name] = number.value
    versions["cudnnGetVersion"] = torch.backends.cudnn.version() or 0
    cublas = loaded_library("libcublas.so", "cublasGetProperty")
    for field, name in enumerate(("cublas_major", "cublas_minor", "cublas_patch")):
        number = ctypes.c_int()
        cublas.cublasGetProperty(ctypes.c_int(field), ctypes.byref(number))
        versions[name] = number.value
    return versions


def probe(_config: dict[str, Any], session: Session) -> dict[str, Any]:
    """Which GPU this is: needed before anything can be said to be measured on it."""
    session.start()
    if session.meter.device.type != "cuda":
        return {"gpu": "dry run", "uuid": "", "total_memory_bytes": 0}
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "uuid": f"GPU-{properties.uuid}",
        "total_memory_bytes": properties.total_memory,
    }

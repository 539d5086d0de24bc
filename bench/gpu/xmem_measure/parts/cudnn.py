"""cuDNN's own description of the device, which its heuristics take without the device too."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import torch

from xmem_measure.meter import loaded_library

# cudnn_graph.h
_DEVICEPROP_DESCRIPTOR = 38
_DEVICEPROP_DEVICE_ID = 2700
_DEVICEPROP_JSON = 2702
_TYPE_INT32 = 23
_TYPE_CHAR = 24
_LONGEST_JSON = 1 << 16


def device_json() -> dict[str, Any]:
    """The description that cuDNN makes of the current device.

    Raises:
        OSError: cuDNN cannot be loaded.
        RuntimeError: cuDNN is older than 9.8, or refuses.
    """
    torch.backends.cudnn.version()
    library = loaded_library("libcudnn", "cudnnBackendCreateDescriptor")
    descriptor = ctypes.c_void_p()
    device = ctypes.c_int32(0)
    text = ctypes.create_string_buffer(_LONGEST_JSON)
    length = ctypes.c_int64()

    def check(name: str, *arguments: Any) -> None:
        status = getattr(library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} returned {status}: cuDNN 9.8 and newer describe a device")

    check("cudnnBackendCreateDescriptor", ctypes.c_int(_DEVICEPROP_DESCRIPTOR), ctypes.byref(descriptor))
    try:
        one = ctypes.c_int64(1)
        attribute, kind = ctypes.c_int(_DEVICEPROP_DEVICE_ID), ctypes.c_int(_TYPE_INT32)
        check("cudnnBackendSetAttribute", descriptor, attribute, kind, one, ctypes.byref(device))
        check("cudnnBackendFinalize", descriptor)
        attribute, kind = ctypes.c_int(_DEVICEPROP_JSON), ctypes.c_int(_TYPE_CHAR)
        longest = ctypes.c_int64(_LONGEST_JSON)
        check("cudnnBackendGetAttribute", descriptor, attribute, kind, longest, ctypes.byref(length), text)
    finally:
        library.cudnnBackendDestroyDescriptor(descriptor)
    description: dict[str, Any] = json.loads(text.raw[: length.value].rstrip(b"\0"))
    return description

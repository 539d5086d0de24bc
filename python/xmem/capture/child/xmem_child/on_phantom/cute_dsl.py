"""CUTLASS's Python language (CuTe DSL): its compiled code has to find the phantom GPU's CUDA runtime.

What it compiles calls functions of ``libcute_dsl_runtime.so``, which has a CUDA runtime of its own linked
in, and that asks the driver for private tables. The phantom's library has the same functions
(``csrc/phantom/libraries/cute_dsl.cpp``), so it goes before that one in the list of libraries in which
compiled code looks for them. The Python package that it asks for devices, ``cuda.bindings.runtime``, has
another one linked in: what the language calls of it goes to the phantom. Upstream: nvidia-cutlass-dsl 4.8.1,
cuda-bindings 13.5.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from ..following_imports import after_import

_NAME = "xmem_phantom"


def serve_cute_dsl() -> None:
    """Put the phantom's library first, once the language is imported."""
    preloaded = os.environ.get("LD_PRELOAD", "").split(os.pathsep)
    library = next((path for path in preloaded if _NAME in Path(path).name), None)
    if library is not None:
        after_import("cutlass.base_dsl.env_manager", functools.partial(_put_first, library))
        after_import("cutlass.base_dsl", lambda _: after_import("cuda.bindings.runtime", _answer))


def _put_first(library: str, module: ModuleType) -> None:
    find = module.get_prefix_dsl_libs

    @functools.wraps(find)
    def found(*arguments: Any) -> Any:
        libraries = find(*arguments)
        return os.pathsep.join((library, libraries)) if libraries else libraries

    module.get_prefix_dsl_libs = found  # type: ignore[attr-defined]


def _answer(module: Any) -> None:
    """Let functions of ``cuda.bindings.runtime`` ask the phantom; they return an error and an answer."""
    phantom, error = ctypes.CDLL(None), module.cudaError_t

    def number(name: str) -> tuple[Any, int]:
        value = ctypes.c_int()
        return error(getattr(phantom, name)(ctypes.byref(value))), value.value

    def unload(library: Any) -> tuple[Any]:
        return (error(phantom.cudaLibraryUnload(ctypes.c_void_p(int(library)))),)

    module.cudaGetDeviceCount = lambda: number("cudaGetDeviceCount")
    module.cudaGetDevice = lambda: number("cudaGetDevice")
    module.cudaDeviceSynchronize = lambda: (error(phantom.cudaDeviceSynchronize()),)
    module.cudaLibraryUnload = unload

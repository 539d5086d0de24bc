"""CUTLASS's Python language: its compiled code and its Python side find the phantom GPU's CUDA runtime."""

from __future__ import annotations

import textwrap
from pathlib import Path

from xmem.capture import PhantomMachine, capture
from xmem.devices.gpus import find_device

# What compiled code calls, with the library's own names.
LIBRARY = """
import ctypes, json
from ctypes import CFUNCTYPE, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
phantom = ctypes.CDLL(None)
image = b'.version 8.0\\n.target sm_80\\n.address_size 64\\n.visible .entry nothing() { ret; }\\0'
said, tried = [], []

@CFUNCTYPE(c_int, c_void_p)
def load(library):
    tried.append("load")
    return phantom._cudaLibraryLoadData(c_void_p(library), image, None, None, 0, None, None, 0)

@CFUNCTYPE(c_int, c_void_p, c_int)
def load_to_device(library, device):
    tried.append(device)
    return FAILS_ON.get(device, 0)

@CFUNCTYPE(None, c_char_p, c_char_p)
def raise_error(kind, message):
    said.append([kind.decode(), message.decode()])

library = c_void_p()
first = phantom.cuda_dialect_init_library_once(byref(library), load, load_to_device, raise_error)
again = phantom.cuda_dialect_init_library_once(byref(library), load, load_to_device, raise_error)
"""


def test_a_library_is_loaded_once_and_launched(phantom):
    ran = phantom.run(
        "FAILS_ON = {1: 209}\n"
        + LIBRARY
        + textwrap.dedent("""
        kernel, threads = c_void_p(), c_int()
        assert phantom._cudaLibraryGetKernel(byref(kernel), library, b"nothing") == 0
        assert phantom._cuKernelGetAttribute(byref(threads), 0, kernel, 0) == 0
        sizes = [c_uint(size) for size in (2, 1, 1, 64, 1, 1)]
        errors = [phantom._cudaLaunchKernel(kernel, *sizes, None, c_size_t(0), None)]
        sizes[3] = c_uint(4096)  # threads in a block
        errors.append(phantom._cudaLaunchKernel(kernel, *sizes, None, c_size_t(0), None))
        phantom.cuda_dialect_unload_library_once(byref(library))
        print(json.dumps([first, again, tried, said, threads.value > 0, errors, library.value]))
        """),
        devices=2,
    )
    # It goes on without a device that it cannot be loaded to.
    assert ran.result == [0, 0, ["load", 0, 1], [], True, [0, 9], None]


def test_a_library_for_no_device_raises(phantom):
    ran = phantom.run(
        "FAILS_ON = {0: 209}\n" + LIBRARY + "print(json.dumps([first, again, said[0], library.value]))",
    )
    message = "CUDA Error: cudaErrorNoKernelImageForDevice: no kernel image is available for execution on the device"
    assert ran.result == [-1, -1, ["RuntimeError", message], None]


def test_a_capture_puts_the_phantom_before_the_runtime_of_the_language(phantom, tmp_path):
    """With stand-ins for the packages, which hold what is replaced."""
    language, bindings = tmp_path / "cutlass" / "base_dsl", tmp_path / "cuda" / "bindings"
    for folder in (language, bindings):
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder.parent / "__init__.py").touch()
    (language / "env_manager.py").write_text(
        "def get_prefix_dsl_libs(prefix):\n    return '/there/libcute_dsl_runtime.so' if prefix else None\n"
    )
    (bindings / "runtime.py").write_text(
        "import enum\n\nclass cudaError_t(enum.IntEnum):\n    cudaSuccess = 0\n\n"
        "def cudaGetDeviceCount():\n    raise RuntimeError('cudaErrorSymbolNotFound')\n"
    )
    script, output = tmp_path / "script.py", tmp_path / "said.txt"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import torch
        from cutlass.base_dsl import env_manager
        from cuda.bindings import runtime
        torch.zeros(1, device="cuda")
        said = [env_manager.get_prefix_dsl_libs("CUTE_DSL"), env_manager.get_prefix_dsl_libs("")]
        said += [runtime.cudaGetDeviceCount(), runtime.cudaDeviceSynchronize()]
        open({str(output)!r}, "w").write(repr(said))
        """)
    )
    machine = PhantomMachine(device=find_device("h100"), count=3)
    capture(
        [phantom.python, str(script)], tmp_path / "trace.json", mode="phantom", machine=machine, timeout_s=240
    )
    libraries, none, count, waited = eval(output.read_text().replace("<cudaError_t.cudaSuccess: 0>", "0"))
    first, _, second = libraries.partition(":")
    assert Path(first).name == "libxmem_phantom.so"
    assert second == "/there/libcute_dsl_runtime.so"
    assert (none, count, waited) == (None, (0, 3), (0,))

"""Which of the compiled architectures runs on which card, and what of torch depends on it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from xmem.capture import PhantomMachine, capture
from xmem.devices.gpus import find_device
from xmem.errors import CaptureError

from ..conftest import PYTHONS, torch_version

CHILD = Path(__file__).parents[3] / "python" / "xmem" / "capture" / "child"

# Calls CUB or thrust, which look for the kernels' architecture among those that they were compiled for.
OPERATORS = """
import json, torch

def embedding():
    table = torch.nn.Embedding(1000, 64).cuda()
    table(torch.randint(1000, (8, 1024), device="cuda")).sum().backward()

x = torch.randn(100000, device="cuda")
ten = torch.arange(10, device="cuda")
operators = {
    "embedding": embedding,
    "sort": lambda: x.sort(),
    "short sort": lambda: x[:64].sort(),
    "segmented sort": lambda: x.view(100, 1000).argsort(-1),
    "topk": lambda: x.topk(50),
    "cumsum": lambda: x.cumsum(0),
    "nonzero": lambda: x.nonzero(),
    "unique": lambda: ten.unique(),
    "median": lambda: x.median(),
    "multinomial": lambda: torch.multinomial(x.softmax(0), 4),
    "index_put": lambda: x.index_put_((ten,), torch.ones(10, device="cuda"), accumulate=True),
    "bincount": lambda: torch.bincount(torch.zeros(100, dtype=torch.int, device="cuda")),
    "randperm": lambda: torch.randperm(50000, device="cuda"),
    "cross_entropy": lambda: torch.nn.functional.cross_entropy(x.view(100, 1000), torch.zeros(100, dtype=torch.long, device="cuda")),
    "searchsorted": lambda: torch.searchsorted(x, x),
}
failed = {}
for name, operator in operators.items():
    try:
        operator()
    except Exception as error:
        failed[name] = str(error).splitlines()[0]
print(json.dumps(failed))
"""


@pytest.mark.parametrize("gpu", ["rtx-3060", "rtx-4090", "l4", "l40s", "a100-40gb", "h100", "t4"])
def test_kernels_are_of_an_architecture_that_was_compiled(phantom, gpu):
    assert phantom.run(OPERATORS, gpu=gpu).result == {}


def test_a_card_before_the_first_architecture_runs_no_kernel(phantom):
    ran = phantom.run(OPERATORS, gpu="v100-16gb")
    if torch_version(phantom) < (2, 7):  # has code for it
        assert ran.result == {}
    else:
        assert ran.returncode != 0
        assert "CUDA error: no kernel image is available for execution on the device" in ran.stderr


TRAINING = """
import torch
print("it runs")
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.randn(2, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("python", PYTHONS)
def test_a_build_of_torch_without_code_for_the_card_is_refused_before_the_script_runs(
    python, tmp_path, capfd
):
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    torch_text = (
        next(Path(python).parents[1].glob("lib/python*/site-packages/torch/version.py"))
    ).read_text()
    gpu, says = ("v100-16gb", ["7.0", "sm_75", "CUDA 12.6", "cu126"])
    if "+cu12" in torch_text:
        gpu, says = ("rtx-5090", ["12.0", "sm_90", "CUDA 12.8 or newer"])
    machine = PhantomMachine(device=find_device(gpu))
    with pytest.raises(CaptureError, match="no code for the") as refused:
        capture([python, str(script)], tmp_path / "trace.json", mode="phantom", machine=machine)
    message = str(refused.value)
    assert all(words in message for words in says), message
    assert "it runs" not in capfd.readouterr().out


def test_the_child_knows_the_rule_of_the_driver(phantom):
    cases = [
        ("sm_86", 89, True),
        ("sm_86", 86, True),
        ("sm_90", 89, False),
        ("sm_75", 70, False),
        ("sm_80", 90, False),
        ("sm_90a", 90, True),
        ("sm_100a", 103, False),
        ("sm_100f", 103, True),
        ("sm_100", 103, True),
        ("sm_87", 89, False),
        ("sm_86", 87, False),
        ("compute_80", 120, True),
        ("compute_90", 89, False),
        ("compute_90a", 100, False),
        ("compute_100f", 120, False),
        ("compute_100f", 103, True),
    ]
    code = f"""
        import json, sys
        sys.path.insert(0, {str(CHILD)!r})
        from xmem_child.on_phantom.architectures import runs_on
        print(json.dumps([runs_on(entry, capability) for entry, capability, _ in {cases!r}]))
        """
    assert phantom.run(code).result == [runs for _, _, runs in cases]


def fat_binary(*entries: tuple[int, int]) -> bytes:
    """Of kinds (1: PTX, 2: cubin) and architectures, with nothing in them."""
    body = b"".join(
        struct.pack("<HHIQIIHHIIIQ16x", kind, 0x101, 64, 8, 0, 64, 7, 1, architecture, 0, 0, 0x11) + bytes(8)
        for kind, architecture in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_modules_are_chosen_by_the_same_rule(phantom):
    """The library's own functions: what is loaded, and what its kernels say of themselves."""
    images = [
        fat_binary((2, 80), (2, 86), (2, 90)),
        fat_binary((2, 75), (1, 80)),
        fat_binary((2, 90), (1, 90)),
        fat_binary((2, 75)).replace(struct.pack("<HHI", 2, 0x101, 64), struct.pack("<HHI", 2, 0x101, 0)),
    ]
    code = f"""
        import ctypes, json
        from ctypes import byref, c_int, c_void_p
        cuda = ctypes.CDLL("libcuda.so.1")
        assert cuda.cuInit(0) == 0
        context = c_void_p()
        assert cuda.cuDevicePrimaryCtxRetain(byref(context), 0) == 0 == cuda.cuCtxSetCurrent(context)
        found = []
        for image in {images!r}:
            library, kernel, versions = c_void_p(), c_void_p(), []
            error = cuda.cuLibraryLoadData(byref(library), image, None, None, 0, None, None, 0)
            assert error == cuda.cuModuleLoadData(byref(c_void_p()), image)
            if error == 0:
                assert cuda.cuLibraryGetKernel(byref(kernel), library, b"any") == 0
                for attribute in (6, 5):  # binary, PTX
                    value = c_int()
                    assert cuda.cuFuncGetAttribute(byref(value), attribute, kernel) == 0
                    versions.append(value.value)
            found.append([error, versions])
        print(json.dumps(found))
        """
    assert phantom.run(code, gpu="rtx-4090").result == [
        [0, [86, 86]],
        [0, [89, 80]],
        [209, []],
        [0, [89, 89]],  # it cannot be read: taken as compiled for the card
    ]


def test_errors_have_their_names_and_messages(phantom):
    code = """
        import ctypes, json
        cuda = ctypes.CDLL("libcuda.so.1")
        for name in ("cudaGetErrorName", "cudaGetErrorString"):
            getattr(cuda, name).restype = ctypes.c_char_p

        def of_driver(name, error):
            text = ctypes.c_char_p()
            status = getattr(cuda, name)(error, ctypes.byref(text))
            return [status, text.value and text.value.decode()]

        numbers = [0, 1, 98, 100, 209, 400, 701, 915, 12345]
        print(json.dumps([
            [cuda.cudaGetErrorName(error).decode(), cuda.cudaGetErrorString(error).decode(),
             *of_driver("cuGetErrorName", error), *of_driver("cuGetErrorString", error)]
            for error in numbers
        ]))
        """
    image = "no kernel image is available for execution on the device"
    resources = "one or more resources are insufficient or non-applicable for the operation"
    unknown = "unrecognized error code"
    assert phantom.run(code).result == [
        ["cudaSuccess", "no error", 0, "CUDA_SUCCESS", 0, "no error"],
        ["cudaErrorInvalidValue", "invalid argument", 0, "CUDA_ERROR_INVALID_VALUE", 0, "invalid argument"],
        ["cudaErrorInvalidDeviceFunction", "invalid device function", 1, None, 1, None],
        [
            "cudaErrorNoDevice",
            "no CUDA-capable device is detected",
            0,
            "CUDA_ERROR_NO_DEVICE",
            0,
            "no CUDA-capable device is detected",
        ],
        ["cudaErrorNoKernelImageForDevice", image, 0, "CUDA_ERROR_NO_BINARY_FOR_GPU", 0, image],
        [
            "cudaErrorInvalidResourceHandle",
            "invalid resource handle",
            0,
            "CUDA_ERROR_INVALID_HANDLE",
            0,
            "invalid resource handle",
        ],
        [
            "cudaErrorLaunchOutOfResources",
            "too many resources requested for launch",
            0,
            "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
            0,
            "too many resources requested for launch",
        ],
        [
            "cudaErrorInvalidResourceConfiguration",
            resources,
            0,
            "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",
            0,
            resources,
        ],
        [unknown, unknown, 1, None, 1, None],
    ]

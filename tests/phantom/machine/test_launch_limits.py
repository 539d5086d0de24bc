"""Launches that the device could never run fail, so that a job fails on them at the size at which it would on a GPU."""

from __future__ import annotations

import pytest

# Launches a kernel once for each of the argument's rows: grid x, y, z, block x, y, z, dynamic shared bytes.
LAUNCHES = r"""
import ctypes, glob, json, os, sys
import torch
from ctypes import byref, c_char_p, c_size_t, c_uint, c_void_p
torch.zeros(1, device="cuda")
major, minor = torch.cuda.get_device_capability()
folder = os.path.dirname(os.path.dirname(torch.__file__))
nvrtc = ctypes.CDLL(sorted(glob.glob(folder + "/nvidia/*/lib/libnvrtc.so.1*"))[0])
cuda = ctypes.CDLL("libcuda.so.1")
program, size, module, kernel = c_void_p(), c_size_t(), c_void_p(), c_void_p()
source = b'extern "C" __global__ void nothing() {}'
assert nvrtc.nvrtcCreateProgram(byref(program), source, b"k.cu", 0, None, None) == 0
option = f"--gpu-architecture=sm_{major}{minor}".encode()
assert nvrtc.nvrtcCompileProgram(program, 1, (c_char_p * 1)(option)) == 0
assert nvrtc.nvrtcGetCUBINSize(program, byref(size)) == 0
cubin = ctypes.create_string_buffer(size.value)
assert nvrtc.nvrtcGetCUBIN(program, cubin) == 0
assert cuda.cuModuleLoadData(byref(module), cubin) == 0
assert cuda.cuModuleGetFunction(byref(kernel), module, b"nothing") == 0

print(json.dumps([
    cuda.cuLaunchKernel(kernel, *map(c_uint, sizes), None, None, None) for sizes in json.loads(sys.argv[1])
]))
"""
FINE = 0
INVALID_VALUE = 1


def test_a_launch_beyond_the_limits_of_the_device_fails(phantom):
    cases = [
        ([2**31 - 1, 65535, 65535, 1024, 1, 1, 0], FINE),
        ([2**31, 1, 1, 32, 1, 1, 0], INVALID_VALUE),
        ([1, 65536, 1, 32, 1, 1, 0], INVALID_VALUE),
        ([1, 1, 65536, 32, 1, 1, 0], INVALID_VALUE),
        ([1, 1, 1, 1025, 1, 1, 0], INVALID_VALUE),
        ([1, 1, 1, 32, 32, 2, 0], INVALID_VALUE),  # 2,048 threads
        ([1, 1, 1, 4, 4, 64, 0], FINE),
        ([1, 1, 1, 1, 1, 65, 0], INVALID_VALUE),
        ([1, 1, 1, 32, 1, 1, 101376], FINE),  # what a block of compute capability 8.9 can have
        ([1, 1, 1, 32, 1, 1, 101377], INVALID_VALUE),
    ]
    ran = phantom.run(LAUNCHES, str([launch for launch, _ in cases]), gpu="rtx-4090")
    assert ran.result == [answer for _, answer in cases]


@pytest.mark.parametrize(("batch", "is_launched"), [(65535, True), (65536, False)])
def test_flash_attention_has_no_more_sequences_than_a_grid_has_rows(phantom, batch, is_launched):
    ran = phantom.run(
        f"""
        import json, torch
        import torch.nn.functional as F
        from torch.nn.attention import SDPBackend, sdpa_kernel
        q = torch.empty({batch}, 1, 64, 32, dtype=torch.float16, device="cuda")
        try:
            with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                F.scaled_dot_product_attention(q, q, q)
            outcome = ""
        except RuntimeError as error:
            outcome = str(error)
        q.add_(1)  # the failure is of that launch alone
        print(json.dumps(outcome))
        """,
        gpu="rtx-4090",
    )
    if is_launched:
        assert ran.result == ""
    else:
        assert "invalid configuration argument" in ran.result

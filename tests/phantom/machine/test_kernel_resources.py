"""What kernels need: what the phantom says of them, against NVIDIA's own tool and against recordings."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ..conftest import torch_version

KERNELS = r"""
__constant__ float table[64];
extern "C" __global__ void plain(float* a) { a[threadIdx.x] += 1; }
extern "C" __global__ void shares(float* a) {
  __shared__ float part[300];
  part[threadIdx.x] = a[threadIdx.x] + table[threadIdx.x % 64];
  __syncthreads();
  a[threadIdx.x] = part[255 - threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(192, 2) bounded(float* a, int n) {
  float kept[96];
  for (int i = 0; i < 96; ++i) kept[i] = a[i * n];
  for (int i = 0; i < 96; ++i) a[i * n + 1] = kept[95 - i] * kept[i];
}
extern "C" __global__ void spills(float* a, int n) {
  float kept[500];
  for (int i = 0; i < 500; ++i) kept[i] = a[i];
  for (int i = 0; i < n; ++i) a[i] = kept[(i * 7) % n];
}
"""

# Compiles for the card and asks of each kernel: threads, static shared, constant, local, registers, then how many
# blocks of 96 and of 192 threads fit, without and with 20,000 bytes of dynamic shared memory.
PROGRAM = f"""
import ctypes, glob, json, os, sys
import torch
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
torch.zeros(1, device="cuda")
major, minor = torch.cuda.get_device_capability()
folder = os.path.dirname(os.path.dirname(torch.__file__))
nvrtc = ctypes.CDLL(sorted(glob.glob(folder + "/nvidia/*/lib/libnvrtc.so.1*"))[0])
program = c_void_p()
assert nvrtc.nvrtcCreateProgram(byref(program), {KERNELS!r}.encode(), b"k.cu", 0, None, None) == 0
option = f"--gpu-architecture=sm_{{major}}{{minor}}".encode()
assert nvrtc.nvrtcCompileProgram(program, 1, (c_char_p * 1)(option)) == 0
size = c_size_t()
assert nvrtc.nvrtcGetCUBINSize(program, byref(size)) == 0
cubin = ctypes.create_string_buffer(size.value)
assert nvrtc.nvrtcGetCUBIN(program, cubin) == 0
open(sys.argv[1], "wb").write(cubin.raw)
cuda = ctypes.CDLL("libcuda.so.1")
module, found = c_void_p(), {{}}
assert cuda.cuModuleLoadData(byref(module), cubin) == 0
for name in ("plain", "shares", "bounded", "spills"):
    kernel, value = c_void_p(), c_int()
    assert cuda.cuModuleGetFunction(byref(kernel), module, name.encode()) == 0
    row = []
    for attribute in (0, 1, 2, 3, 4):
        assert cuda.cuFuncGetAttribute(byref(value), attribute, kernel) == 0
        row.append(value.value)
    for threads, shared in ((96, 0), (192, 0), (192, 20000)):
        query = cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor
        assert query(byref(value), kernel, threads, c_size_t(shared)) == 0
        row.append(value.value)
    found[name] = row
print(json.dumps(found))
"""


def resource_usage(python: str, cubin: Path) -> dict[str, dict[str, int]]:
    """What ``cuobjdump -res-usage`` says, with the tool that Triton brings."""
    tools = sorted(
        Path(python).parents[1].glob("lib/python*/site-packages/triton/backends/nvidia/bin/cuobjdump")
    )
    if not tools:
        pytest.skip("no cuobjdump here")
    text = subprocess.run([tools[0], "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    return {
        name: {key: int(value) for key, value in re.findall(r"(\w+)(?:\[\d\])?:(\d+)", line)}
        | {f"CONSTANT{bank}": int(value) for bank, value in re.findall(r"CONSTANT\[(\d)\]:(\d+)", text)}
        for name, line in re.findall(r"Function (\w+):\n\s*(.*)", text)
    }


@pytest.mark.parametrize("gpu", ["t4", "a100-40gb", "rtx-4090", "h100"])
def test_code_loaded_at_run_time_says_what_cuobjdump_says(phantom, gpu, tmp_path):
    cubin = tmp_path / "kernels.cubin"
    found: dict[str, Any] = phantom.run(PROGRAM, str(cubin), gpu=gpu).result
    printed = resource_usage(phantom.python, cubin)
    reserved = 1024 if gpu == "h100" else 0  # which the section begins with, from Hopper on
    for name, (_, shared, constant, local, registers, *_blocks) in found.items():
        assert registers == max(printed[name]["REG"], 16)
        assert shared == max(printed[name]["SHARED"] - reserved, 0)
        assert local == printed[name]["STACK"]
        assert constant == 256
    assert found["shares"][1] == 1200
    assert found["spills"][3] >= 2000
    assert found["bounded"][0] == 192
    assert found["plain"][0] == 1024
    # Little is needed: warps limit, of which 96 threads are 3 and 192 are 6.
    warps, shared_bytes, reserved_bytes = {
        "t4": (32, 65536, 0),
        "a100-40gb": (64, 167936, 1024),
        "rtx-4090": (48, 102400, 1024),
        "h100": (64, 233472, 1024),
    }[gpu]
    most = {"t4": 16, "a100-40gb": 32, "rtx-4090": 24, "h100": 32}[gpu]
    by_shared = shared_bytes // (-(-(20000 + reserved_bytes) // 256) * 256)
    assert found["plain"][5:] == [min(warps // 3, most), warps // 6, min(warps // 6, by_shared)]
    assert 2 <= found["bounded"][6] <= warps // 6  # two blocks are promised


REGISTERED = """
import ctypes, json
import torch
log = ctypes.CDLL(None)
x = torch.zeros(1 << 20, device="cuda")
log.xmem_phantom_log_launches(1)
operators = {
    "fill": lambda: x.fill_(1.0),
    "reduce": lambda: x.view(1024, 1024).mean(1),
    "norm": lambda: torch.nn.functional.layer_norm(x.view(1024, 1024).bfloat16(), (1024,)),
    "index": lambda: torch.nn.functional.embedding(torch.zeros(4096, dtype=torch.long, device="cuda"), x.view(2048, 512)),
    "sort": lambda: x.sort(),
    "softmax": lambda: x.view(1024, 1024).softmax(1),
    "product": lambda: x.view(1024, 1024) @ x.view(1024, 1024),
}
for run in operators.values():
    run()
log.xmem_phantom_log_launches(0)
x.fill_(2.0)
table = log.xmem_phantom_launch_table
table.restype = ctypes.c_size_t
room = table(None, ctypes.c_size_t(0))
text = ctypes.create_string_buffer(room)
table(text, ctypes.c_size_t(room))
print(json.dumps([json.loads(text.raw), log.xmem_phantom_launches(None, ctypes.c_size_t(0))]))
"""


@pytest.mark.parametrize("gpu", ["t4", "a100-40gb", "rtx-3060", "rtx-4090", "h100", "b200", "rtx-5090"])
def test_the_code_of_every_kernel_of_pytorch_is_found(phantom, gpu):
    """Of all packings (LZ4, zstd), chosen for cards with and without an image of their own."""
    ran = phantom.run(REGISTERED, gpu=gpu)
    if ran.returncode != 0 and "no kernel image" in ran.stderr:
        pytest.skip("this release has no code for the card")
    table, launches = ran.result
    kernels = [row for row in table if row[0] == 0]
    assert launches >= len(table) >= 8
    for _, name, *numbers in kernels:
        grid, block, _dynamic, static, registers, local, _cluster = (
            numbers[:3],
            numbers[3:6],
            *numbers[6:],
        )
        assert name
        assert 16 <= registers <= 255, name
        assert 0 <= static <= 48 << 10
        assert local >= 0
        assert min(*grid, *block) >= 1
    assert [row[1] for row in table if row[0] == 1] in (["cublasSgemm_v2"], ["cublasGemmEx"])
    product = next(row[2] for row in table if row[0] == 1)
    assert (product["m"], product["n"], product["k"], product["layout"]) == (1024, 1024, 1024, "nn")


# Recorded on the cards themselves, by PyTorch's profiler with torch 2.6.0: registers, static and dynamic
# shared memory, threads (AMD-AGI/TraceLens, tests/traces/h100).
H100 = {
    "vectorized_layer_norm_kernel<c10::BFloat16, float>": (34, 24, (32, 4, 1)),
    "FillFunctor<float>": (16, 0, (128, 1, 1)),
    "indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>": (32, 0, (128, 1, 1)),  # asserts
    "reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float": (32, 16, (32, 16, 1)),
}


def test_kernels_are_as_an_h100_recorded_them(phantom):
    if torch_version(phantom) != (2, 6):
        pytest.skip("recorded with torch 2.6.0")
    table, _ = phantom.run(REGISTERED, gpu="h100").result
    for part, (registers, shared, block) in H100.items():
        rows = [row for row in table if row[0] == 0 and part in row[1]]
        assert rows, part
        for row in rows:
            assert (row[10], row[9] + row[8], tuple(row[5:8])) == (registers, shared, block), part

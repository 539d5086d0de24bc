"""The driver: virtual memory, pools, memory shared between processes, code loaded at run time."""

from __future__ import annotations

import shutil
import subprocess
import textwrap

import pytest

from nightly import most_nightly

# The arguments are those of cuda.h; "u64" is a CUdeviceptr or an allocation handle.
DRIVER = """
import ctypes, json
from ctypes import byref, c_int, c_size_t, c_uint64 as u64, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
MiB = 1 << 20

class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]

class Properties(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("location", Location), ("win32", c_void_p), ("flags", u64)]

class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]

def call(name, *arguments):
    error = getattr(cuda, name)(*arguments)
    assert error == 0, (name, error)

def used():
    free, total = c_size_t(), c_size_t()
    call("cuMemGetInfo_v2", byref(free), byref(total))
    return (total.value - free.value) // MiB

call("cuInit", 0)
context = c_void_p()
call("cuDevicePrimaryCtxRetain", byref(context), 0)
call("cuCtxSetCurrent", context)
on_device = Properties(type=1, location=Location(1, 0))
"""


def test_memory_stays_until_neither_handle_nor_mapping_holds_it(phantom):
    ran = phantom.run(
        DRIVER
        + textwrap.dedent("""
        seen = [used()]
        address, first, second, again = u64(), u64(), u64(), u64()
        call("cuMemAddressReserve", byref(address), c_size_t(1024 * MiB), c_size_t(0), u64(0), u64(0))
        seen.append(used())
        for handle in (first, second):
            call("cuMemCreate", byref(handle), c_size_t(20 * MiB), byref(on_device), u64(0))
        seen.append(used())
        call("cuMemMap", address, c_size_t(20 * MiB), c_size_t(0), first, u64(0))
        call("cuMemMap", u64(address.value + 20 * MiB), c_size_t(20 * MiB), c_size_t(0), second, u64(0))
        access = Access(Location(1, 0), 3)
        call("cuMemSetAccess", address, c_size_t(40 * MiB), byref(access), c_size_t(1))
        call("cuMemRelease", first)
        seen.append(used())  # still mapped
        call("cuMemRetainAllocationHandle", byref(again), c_void_p(address.value + 5))
        base, size = u64(), c_size_t()
        call("cuMemGetAddressRange_v2", byref(base), byref(size), u64(address.value + 21 * MiB))
        where = [(base.value - address.value) // MiB, size.value // MiB]
        call("cuMemUnmap", address, c_size_t(20 * MiB))
        seen.append(used())  # the retained handle holds it
        call("cuMemRelease", again)
        seen.append(used())
        wrong = [
            cuda.cuMemAddressFree(address, c_size_t(1024 * MiB)),  # something is mapped
            cuda.cuMemUnmap(u64(address.value + 20 * MiB), c_size_t(10 * MiB)),  # a part of a mapping
            cuda.cuMemMap(address, c_size_t(30 * MiB), c_size_t(0), second, u64(0)),  # more than there is
            cuda.cuMemRelease(first),  # gone
            cuda.cuMemCreate(byref(first), c_size_t(100 << 30), byref(on_device), u64(0)),
        ]
        call("cuMemUnmap", u64(address.value + 20 * MiB), c_size_t(20 * MiB))
        call("cuMemRelease", second)
        call("cuMemAddressFree", address, c_size_t(1024 * MiB))
        seen.append(used())
        print(json.dumps([[mib - seen[0] for mib in seen], where, wrong]))
        """)
    )
    seen, where, wrong = ran.result
    assert seen == [0, 0, 40, 40, 40, 20, 0]
    assert where == [20, 20]
    assert wrong == [1, 1, 1, 1, 2]


def test_functions_by_name_have_the_interface_of_the_callers_version(phantom):
    ran = phantom.run(
        DRIVER
        + textwrap.dedent("""
        def form(name, version):
            found, status = c_void_p(), c_int()
            error = cuda.cuGetProcAddress_v2(name, byref(found), version, u64(0), byref(status))
            names = [name.decode() + suffix for suffix in ("", "_v2", "_v3", "_v4", "WithFlags")]
            addresses = {ctypes.cast(getattr(cuda, n), c_void_p).value: n for n in names if hasattr(cuda, n)}
            return addresses[found.value] if error == 0 else error
        print(json.dumps([
            form(b"cuCtxCreate", 12000), form(b"cuCtxCreate", 13000),
            form(b"cuStreamGetCaptureInfo", 12000), form(b"cuStreamGetCaptureInfo", 12030),
            form(b"cuGraphInstantiate", 12000), form(b"cuMemAlloc", 12000), form(b"cuNoSuchFunction", 12000),
        ]))
        """)
    )
    assert ran.result == [
        "cuCtxCreate_v3",
        "cuCtxCreate_v4",
        "cuStreamGetCaptureInfo_v2",
        "cuStreamGetCaptureInfo_v3",
        "cuGraphInstantiateWithFlags",
        "cuMemAlloc_v2",
        500,
    ]


def test_expandable_segments_grow_and_shrink(phantom):
    ran = phantom.run(
        """
        import json, torch
        def held():
            free, total = torch.cuda.mem_get_info()
            return [torch.cuda.memory_reserved() >> 20, (total - free >> 20) - 146]
        def mib(n):
            return torch.empty(n << 20, dtype=torch.uint8, device="cuda")
        a, b, c = mib(30), mib(50), mib(300)
        seen = [held()]
        del b
        d = mib(70)  # the gap is too small
        seen.append(held())
        torch.cuda.empty_cache()  # whole pages of the gap are unmapped
        seen.append(held())
        kept = []
        try:
            while True:
                kept.append(mib(1024))
        except torch.OutOfMemoryError:
            pass
        segments = [[s["total_size"] >> 20, s["is_expandable"]] for s in torch.cuda.memory_snapshot()]
        print(json.dumps([seen, len(kept), segments]))
        """,
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )
    seen, kept, segments = ran.result
    assert seen == [[380, 380], [460, 460], [420, 420]]  # pages of 20 MiB: 40 of the 50 go
    assert kept == 11
    assert all(expandable for _, expandable in segments)
    assert sum(mib for mib, _ in segments) == 11680  # 11 * 1024 + 400, in pages of 20
    assert ran.refused() == {}


def test_stream_ordered_allocator(phantom):
    ran = phantom.run(
        """
        import json, torch
        def held():
            free, total = torch.cuda.mem_get_info()
            return [torch.cuda.memory_allocated() >> 20, (total - free >> 20) - 146]
        kept = [torch.empty(n << 20, dtype=torch.uint8, device="cuda") for n in (1, 30, 50, 300)]
        seen = [held()]
        del kept
        seen.append(held())
        torch.cuda.empty_cache()
        seen.append(held())
        kept = []
        try:
            while True:
                kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            pass
        print(json.dumps([seen, len(kept)]))
        """,
        PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync",
    )
    assert ran.result == [[[381, 416], [0, 416], [0, 0]], 11]  # chunks of 32 MiB


@pytest.mark.parametrize(
    "configuration", most_nightly(["expandable_segments:True", "expandable_segments:False"])
)
def test_a_tensor_of_another_process_takes_no_memory(phantom, configuration):
    ran = phantom.run(
        """
        import json, torch
        import torch.multiprocessing as mp

        def child(tensors, results):
            x = tensors.get()
            free, total = torch.cuda.mem_get_info()
            results.put([x.is_cuda, x.numel() >> 20, torch.cuda.memory_reserved(), total - free >> 20])
            del x
            torch.cuda.ipc_collect()

        if __name__ == "__main__":
            mp.set_start_method("spawn")
            tensors, results = mp.Queue(), mp.Queue()
            process = mp.Process(target=child, args=(tensors, results))
            process.start()
            x = torch.zeros(100 << 20, dtype=torch.uint8, device="cuda")
            tensors.put(x)
            seen = results.get(timeout=100)
            process.join()
            free, total = torch.cuda.mem_get_info()
            print(json.dumps([seen, total - free >> 20]))
        """,
        PYTORCH_CUDA_ALLOC_CONF=configuration,
    )
    seen, after = ran.result
    assert seen == [True, 100, 0, 100 + 2 * 146]
    assert after == 100 + 146  # the child's context went with it


def test_kernels_compiled_at_run_time(phantom):
    ran = phantom.run(
        """
        import json, torch
        x = torch.ones(10, device="cuda")
        twice = torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x + x; }")
        print(json.dumps([twice(x).shape[0], torch.special.bessel_j0(x).shape[0],
                          torch.sigmoid(x.to(torch.complex64)).shape[0]]))
        """
    )
    assert ran.result == [10, 10, 10]
    assert ran.processes[0].calls["cuLaunchKernel"] == 3


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
def test_a_library_compiled_by_nvcc_shares_the_device(phantom, tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text(
        textwrap.dedent("""
        __global__ void twice(float* x) { x[threadIdx.x] *= 2; }
        extern "C" int run(void** kept) {
          if (cudaMalloc(kept, 10 << 20) != cudaSuccess) return 1;
          twice<<<1, 32>>>(static_cast<float*>(*kept));
          return cudaDeviceSynchronize();
        }
        """)
    )
    # Its symbols are bound to whichever CUDA runtime the process has, as in extensions of torch.
    command = ["nvcc", "-shared", "-cudart", "none", "-Xcompiler", "-fPIC", "-arch=sm_86", str(source)]
    built = subprocess.run([*command, "-o", str(tmp_path / "kernel.so")], capture_output=True, text=True)
    if built.returncode != 0:
        pytest.skip(f"nvcc cannot compile here: {built.stderr[-300:]}")
    ran = phantom.run(
        """
        import ctypes, json, sys, torch
        x = torch.empty(1 << 20, device="cuda")
        free, _ = torch.cuda.mem_get_info()
        kept = ctypes.c_void_p()
        error = ctypes.CDLL(sys.argv[1]).run(ctypes.byref(kept))
        print(json.dumps([error, free - torch.cuda.mem_get_info()[0]]))
        """,
        str(tmp_path / "kernel.so"),
    )
    assert ran.result == [0, 10 << 20]
    assert ran.processes[0].launches == 1

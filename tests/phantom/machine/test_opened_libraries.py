"""Functions that a program looks up in a library that it opens are the phantom's, too."""

from __future__ import annotations


def test_a_function_that_is_looked_up_in_a_library_is_the_phantoms(phantom):
    # As cuDNN's front end does in TransformerEngine: past the order in which the linker looks.
    ran = phantom.run(
        """
        import ctypes, json, re
        import torch
        maps = open("/proc/self/maps").read()
        loaded = sorted(set(re.findall(r"lib(?:cudart|cublas|cudnn|nccl)[.]so[.][0-9]+", maps)))
        libraries = {name.partition(".")[0]: ctypes.CDLL(name) for name in loaded}
        count, version, handle, block = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        cudart = libraries["libcudart"]
        statuses = [
            cudart.cudaGetDeviceCount(ctypes.byref(count)),
            cudart.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(64 << 20)),
            libraries["libcublas"].cublasCreate_v2(ctypes.byref(handle)),
            libraries["libcudnn"].cudnnCreate(ctypes.byref(handle)),
            libraries["libnccl"].ncclGetVersion(ctypes.byref(version)),
        ]
        free, total = torch.cuda.mem_get_info()
        print(json.dumps([statuses, count.value, total - free >= 64 << 20]))
        """,
        devices=2,
    )
    assert ran.result == [[0, 0, 0, 0, 0], 2, True]


def test_what_a_library_knows_without_a_gpu_is_still_its_own_answer(phantom):
    ran = phantom.run(
        """
        import ctypes, json
        import torch
        torch.cuda.init()
        x = torch.randn(2, 3, 16, 16, device="cuda", requires_grad=True)
        torch.nn.Conv2d(3, 4, 3, device="cuda")(x).sum().backward()  # planned by the real cuDNN
        version = ctypes.CDLL("libcudnn.so.9").cudnnGetVersion
        version.restype = ctypes.c_size_t
        print(json.dumps([version() == torch.backends.cudnn.version(), x.grad.shape == x.shape]))
        """
    )
    assert ran.result == [True, True]

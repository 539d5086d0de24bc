"""The math libraries: which operators of torch run on them, and what they take."""

from __future__ import annotations

import pytest

from ..conftest import torch_version

# Begins the programs that run many operators: `attempt` keeps the errors of those that raise.
_ATTEMPT = """
import json, time, torch, warnings
warnings.simplefilter("ignore")
failed = {}
def attempt(name, function, *arguments, **named):
    try:
        function(*arguments, **named)
        torch.cuda.synchronize()
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"
def values(*sizes, dtype=torch.float32):
    return torch.ones(sizes, dtype=dtype, device="cuda")
"""


# Ends them: a thread of autograd that still wants the interpreter's lock when this one finishes ends the process with
# SIGABRT (Python before 3.14), and without a GPU to wait for programs are over soon after their backward pass.
_PAUSE = """
time.sleep(0.1)
"""


def run(phantom, code, **options):
    """Runs a program between the beginning and the end above; all are written without indentation."""
    return phantom.run(_ATTEMPT + code + _PAUSE, **options)


@pytest.mark.parametrize(
    ("gpu", "workspace"), [("rtx-3060", 8519680), ("a100-80gb", 8519680), ("h100", 32 << 20)]
)
def test_each_thread_that_multiplies_has_a_workspace(phantom, gpu, workspace):
    """The sizes are those of torch's CublasHandlePool.cpp for these architectures."""
    ran = run(
        phantom,
        """
x = values(64, 64).requires_grad_()
held = torch.cuda.memory_allocated
before = held()
y = x @ x
forward = held() - before - 4 * 64 * 64
bias = values(64)
before = held()
torch.nn.functional.linear(x.detach(), x.detach(), bias)
again = held() - before
before = held()
y.sum().backward()  # on a thread of autograd
backward = held() - before - 4 * 64 * 64
torch._C._cuda_clearCublasWorkspaces()
print(json.dumps([forward, again, backward, held() < 1 << 20]))
""",
        gpu=gpu,
    )
    assert ran.result == [workspace, 0, workspace, True]
    assert ran.refused() == {}


def test_linear_layers_train(phantom):
    ran = run(
        phantom,
        """
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
losses = []
for precision in (torch.float32, torch.float16, torch.bfloat16):
    with torch.autocast("cuda", precision, enabled=precision != torch.float32):
        loss = torch.nn.functional.mse_loss(model(values(32, 64)), values(32, 10))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps(losses))
""",
    )
    assert ran.result == [0, 0, 0]
    assert ran.refused() == {}


def test_products(phantom):
    ran = run(
        phantom,
        """
for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128):
    v, a, b = values(16, dtype=dtype), values(16, 16, dtype=dtype), values(3, 16, 16, dtype=dtype)
    attempt(f"mm {dtype}", torch.mm, a, a)
    attempt(f"addmm {dtype}", torch.addmm, v, a, a)
    attempt(f"addmv {dtype}", torch.addmv, v, a, v)
    attempt(f"addr {dtype}", torch.addr, a, v, v)
    attempt(f"dot {dtype}", torch.dot, v, v)
    attempt(f"vdot {dtype}", torch.vdot, v, v)
    attempt(f"bmm {dtype}", torch.bmm, b, b.mH)
    attempt(f"baddbmm {dtype}", torch.baddbmm, b, b, b)
    attempt(f"einsum {dtype}", torch.einsum, "bij,bjk,k->bi", b, b, v)
    if not dtype.is_complex:
        attempt(f"gelu {dtype}", torch._addmm_activation, v, a, a, use_gelu=True)
for precision in ("highest", "high", "medium"):
    torch.set_float32_matmul_precision(precision)
    attempt(precision, torch.mm, values(8, 8), values(8, 8))
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
attempt("reduction", torch.mm, values(8, 8, dtype=torch.bfloat16), values(8, 8, dtype=torch.bfloat16))
torch.backends.cuda.preferred_blas_library("cublaslt")
attempt("cublaslt", lambda: (values(64, 64) @ values(64, 64), values(3, 64, 64) @ values(3, 64, 64)))
attempt("randperm", lambda: (torch.randperm(100000, device="cuda"), torch.randperm(100, device="cuda")))
attempt("multinomial", torch.multinomial, values(4, 50), 5)
print(json.dumps(failed))
""",
    )
    assert ran.result == {}
    assert ran.refused() == {}


def test_products_of_eight_bits(phantom):
    ran = run(
        phantom,
        """
whole = values(64, 64, dtype=torch.int8)
attempt("int_mm", torch._int_mm, whole, whole)
eighth = values(64, 64).to(torch.float8_e4m3fn)
one = values(1)
attempt("scaled_mm", torch._scaled_mm, eighth, eighth.t(), one, one, out_dtype=torch.bfloat16)
half = values(64, dtype=torch.bfloat16)
attempt("bias", torch._scaled_mm, eighth, eighth.t(), one, one, bias=half, out_dtype=torch.bfloat16)
print(json.dumps(failed))
""",
        gpu="h100",
    )
    assert ran.result == {}
    assert ran.refused() == {}


def test_linear_algebra(phantom):
    ran = run(
        phantom,
        """
linalg = torch.linalg
for dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128):
    for sizes in ((64, 64), (5, 16, 16), (40, 16)):
        a = values(*sizes, dtype=dtype)
        name = f"{dtype} {sizes}"
        attempt(f"qr {name}", linalg.qr, a)
        attempt(f"complete qr {name}", linalg.qr, a, mode="complete")
        attempt(f"svdvals {name}", linalg.svdvals, a)
        attempt(f"pinv {name}", linalg.pinv, a)
        attempt(f"lstsq {name}", linalg.lstsq, a, a)
        attempt(f"lu {name}", linalg.lu, a)
        for driver in (None, "gesvd", "gesvdj", "gesvda"):
            attempt(f"svd {driver} {name}", linalg.svd, a, full_matrices=False, driver=driver)
        if sizes[-1] != sizes[-2]:
            continue
        attempt(f"eigh {name}", linalg.eigh, a)
        attempt(f"eigvalsh {name}", linalg.eigvalsh, a)
        attempt(f"cholesky {name}", linalg.cholesky, a)
        attempt(f"cholesky_solve {name}", torch.cholesky_solve, a, a)
        attempt(f"cholesky_inverse {name}", torch.cholesky_inverse, a)
        attempt(f"lu_solve {name}", lambda: linalg.lu_solve(*linalg.lu_factor(a), a))
        attempt(f"ldl_solve {name}", lambda: linalg.ldl_solve(*linalg.ldl_factor(a), a))
        attempt(f"solve {name}", linalg.solve, a, a)
        attempt(f"solve_triangular {name}", linalg.solve_triangular, a, a, upper=True)
        attempt(f"inv {name}", linalg.inv, a)
        attempt(f"ormqr {name}", torch.ormqr, a, a[..., 0], a)
    attempt(f"householder {dtype}", linalg.householder_product, values(10, 5, dtype=dtype), values(5, dtype=dtype))
for batch, n, columns in ((100, 8, 8), (3, 600, 600), (10, 100, 2)):
    attempt(f"batch {batch}", linalg.solve_triangular, values(batch, n, n), values(batch, n, columns), upper=False)
for library in ("cusolver", "magma"):
    torch.backends.cuda.preferred_linalg_library(library)
    attempt(library, lambda: (linalg.inv(values(8, 8)), linalg.cholesky(values(3, 8, 8)), linalg.eigh(values(8, 8))))
print(json.dumps(failed))
""",
    )
    assert ran.result == {}
    assert ran.refused() == {}


def test_fourier_transforms(phantom):
    ran = run(
        phantom,
        """
shapes = ((8, 64, 48), (4, 5, 131, 127), (7, 13), (4, 10000))
for dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128):
    for shape in shapes:
        for name in ("fft", "ifft", "fft2", "ifft2", "fftn", "ifftn", "hfft", "irfft", "irfft2", "irfftn"):
            attempt(f"{name} {dtype} {shape}", getattr(torch.fft, name), values(*shape, dtype=dtype))
        if not dtype.is_complex:
            for name in ("rfft", "rfft2", "rfftn", "ihfft"):
                attempt(f"{name} {dtype} {shape}", getattr(torch.fft, name), values(*shape, dtype=dtype))
attempt("half", torch.fft.fft, values(4, 64, dtype=torch.float16))
window = values(400)
attempt("stft", torch.stft, values(2, 16000), 400, return_complex=True, window=window)
print(json.dumps(failed))
""",
    )
    assert ran.result == {}
    assert ran.refused() == {}


_SPARSE = """
def compressed(rows, columns, dtype=torch.float32):
    starts = torch.arange(rows + 1) * 4
    return torch.sparse_csr_tensor(starts, torch.arange(4).repeat(rows), torch.ones(4 * rows, dtype=dtype),
                                   (rows, columns)).cuda()
def coordinates(rows, columns, dtype=torch.float32):
    places = torch.stack([torch.zeros(columns, dtype=torch.long), torch.arange(columns)])
    return torch.sparse_coo_tensor(places, torch.ones(columns, dtype=dtype), (rows, columns)).cuda()
"""


def test_sparse_matrices(phantom):
    ran = run(
        phantom,
        _SPARSE
        + """
for dtype in (torch.float32, torch.float64, torch.complex64):
    dense, vector = values(60, 7, dtype=dtype), values(60, dtype=dtype)
    csr, coo = compressed(50, 60, dtype), coordinates(50, 60, dtype)
    attempt(f"coo mm {dtype}", torch.sparse.mm, coo, dense)
    attempt(f"coo addmm {dtype}", torch.sparse.addmm, values(50, 7, dtype=dtype), coo, dense)
    attempt(f"coo mv {dtype}", torch.mv, coo, vector)
    attempt(f"coo coo {dtype}", torch.sparse.mm, coo, coordinates(60, 40, dtype))
    attempt(f"coalesce {dtype}", coo.coalesce)
    attempt(f"csr mm {dtype}", torch.mm, csr, dense)
    attempt(f"csr mv {dtype}", torch.mv, csr, vector)
    attempt(f"mm csr {dtype}", torch.mm, values(7, 50, dtype=dtype), csr)
    attempt(f"csr csr {dtype}", torch.mm, csr, compressed(60, 40, dtype))
    attempt(f"csr add {dtype}", torch.add, csr, csr)
    attempt(f"sampled {dtype}", torch.sparse.sampled_addmm, csr, values(50, 8, dtype=dtype), values(8, 60, dtype=dtype))
    for columns in (1, 3):
        right = values(50, columns, dtype=dtype)
        attempt(f"solve {columns} {dtype}", torch.triangular_solve, right, compressed(50, 50, dtype))
    attempt(f"to dense {dtype}", lambda: (csr.to_dense(), csr.to_sparse_coo(), dense.to_sparse_csr(), dense.to_sparse()))
    blocks = torch.sparse_bsr_tensor(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(2, 4, 4, dtype=dtype),
                                     (8, 8)).cuda()
    attempt(f"bsr mv {dtype}", torch.mv, blocks, values(8, dtype=dtype))
    attempt(f"bsr solve {dtype}", torch.triangular_solve, values(8, 3, dtype=dtype), blocks)
attempt("backward", lambda: torch.sparse.mm(coordinates(50, 60).requires_grad_(), values(60, 7)).sum().backward())
print(json.dumps(failed))
""",
    )
    assert ran.result == {}
    assert ran.refused() == {}


def test_products_of_sparse_matrices_have_the_expected_nonzeros(phantom):
    """Four in each of 1000 rows, times the same: 16 terms a row, hardly two of them in one cell."""
    ran = run(
        phantom,
        _SPARSE
        + """
product = compressed(1000, 1000) @ compressed(1000, 1000)
print(json.dumps([product.values().numel(), product.col_indices().numel()]))
""",
    )
    nonzeros, columns = ran.result
    assert nonzeros == columns
    assert 15_500 < nonzeros < 16_000


def test_two_of_four_values(phantom):
    """9/16 of a matrix of 16-bit values, 10/16 of one of 8-bit values: torch's own constants."""
    ran = run(
        phantom,
        """
sizes = []
for dtype in (torch.float16, torch.int8):
    before = torch.cuda.memory_allocated()
    packed = torch._cslt_compress(values(512, 512, dtype=dtype))
    sizes.append(packed.numel() * packed.element_size())
    result = torch._cslt_sparse_mm(packed, values(512, 256, dtype=dtype).t().contiguous().t())
    sizes.append(list(result.shape))
print(json.dumps(sizes))
""",
        gpu="a100-80gb",
    )
    assert ran.result == [512 * 512 * 2 * 9 // 16, [512, 256], 512 * 512 * 10 // 16, [512, 256]]
    assert ran.refused() == {}


def test_workspaces_are_those_of_the_formulas(phantom):
    """By how much the peak exceeds arguments and results; blocks are multiples of 512 bytes."""
    ran = run(
        phantom,
        """
def extra(function):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = function()
    return torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
n = 2048
matrix = values(n, n)
torch.linalg.lu_factor(matrix)  # handles, and the workspaces that stay
signal = values(512, 512, dtype=torch.complex64)
lu = extra(lambda: torch.linalg.lu_factor(matrix))
eigh = extra(lambda: torch.linalg.eigh(matrix))
fft2 = extra(lambda: torch.fft.fft2(signal))
small = extra(lambda: torch.fft.fft(signal))
batch = values(32, 512, 512, dtype=torch.complex64)
fft2_batch = extra(lambda: torch.fft.fft2(batch))
long = values(4, 65536, dtype=torch.complex64)
two_passes = extra(lambda: torch.fft.fft(long))
print(json.dumps([lu, eigh, fft2, small, fft2_batch, two_passes]))
""",
    )
    lu, eigh, fft2, small, fft2_batch, two_passes = ran.result
    matrix = 4 * 2048 * 2048
    if torch_version(phantom) >= (2, 11):  # CUDA 13
        assert lu < 1 << 20
        assert fft2 == fft2_batch == 0
    else:
        assert matrix <= lu < matrix + (1 << 20)
        assert [fft2, fft2_batch] == [2 << 20, 64 << 20]
    assert 3 * matrix <= eigh < 6 * matrix
    assert small == 0
    assert two_passes == 2 << 20


def test_results_in_memory_of_the_host(phantom):
    ran = phantom.run(
        """
        import ctypes, json, torch
        torch.zeros(1, device="cuda")
        process = ctypes.CDLL(None)
        vector = ctypes.c_void_p(torch.ones(8, device="cuda").data_ptr())
        handle, version, index = ctypes.c_void_p(), ctypes.c_int(-1), ctypes.c_int(-1)
        norm, info = ctypes.c_float(-1), ctypes.c_int(-1)
        statuses = [
            process.cublasCreate_v2(ctypes.byref(handle)),
            process.cublasGetVersion_v2(handle, ctypes.byref(version)),
            process.cublasSnrm2_v2(handle, 8, vector, 1, ctypes.byref(norm)),
            process.cublasIsamax_v2(handle, 8, vector, 1, ctypes.byref(index)),
            process.cublasSgeqrfBatched(handle, 2, 2, vector, 2, vector, ctypes.byref(info), 1),
            process.cublasSgemm(0),
            process.cublasDestroy_v2(handle),
        ]
        major = version.value // (10000 if version.value >= 100000 else 1000)
        print(json.dumps([statuses, major == int(torch.version.cuda.split(".")[0]), norm.value, index.value, info.value]))
        """
    )
    statuses, versions_agree, norm, index, info = ran.result
    assert statuses == [0, 0, 0, 0, 0, 15, 0]
    assert versions_agree
    assert (norm, index, info) == (0.0, 1, 0)
    assert ran.refused() == {"cublasSgemm": 1}


def test_an_algorithm_stays_within_the_workspace_it_is_allowed(phantom):
    ran = phantom.run(
        """
        import ctypes, glob, json, os, torch
        torch.zeros(1, device="cuda")
        with open("/proc/self/maps") as maps:
            path = next(line.split()[-1] for line in maps if "libcublasLt.so" in line)
        real, process = ctypes.CDLL(path), ctypes.CDLL(None)
        limits = []
        for limit in (0, 1 << 20, 1 << 30):
            preference, returned = ctypes.c_void_p(), ctypes.c_int(0)
            real.cublasLtMatmulPreferenceCreate(ctypes.byref(preference))
            allowed = ctypes.c_uint64(limit)
            real.cublasLtMatmulPreferenceSetAttribute(preference, 1, ctypes.byref(allowed), ctypes.c_size_t(8))
            result = (ctypes.c_uint64 * 12)()
            status = process.cublasLtMatmulAlgoGetHeuristic(
                None, None, None, None, None, None, preference, 1, result, ctypes.byref(returned))
            limits.append([status, returned.value, result[8]])
        print(json.dumps(limits))
        """
    )
    assert ran.result == [[0, 1, 0], [0, 1, 1 << 20], [0, 1, 4 << 20]]

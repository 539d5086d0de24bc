"""The ledger of a phantom run, as the library writes it."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

import pytest

from xmem.devices.gpus import find_device
from xmem.errors import CaptureError
from xmem.phantom.environment import phantom_environment, prepare
from xmem.phantom.installation import library_folder
from xmem.phantom.ledger import create_ledger, functions, read_ledger

CALLS = """
import ctypes, sys
cuda = ctypes.CDLL("libxmem_phantom.so")
address = ctypes.c_void_p()
for _ in range(3):
    assert cuda.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(5 << 20)) == 0
assert cuda.cudaFree(address) == 0
assert cuda.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(1 << 50)) == 2
assert cuda.cudaImportExternalMemory() == 801
"""


def test_processes_are_recorded(tmp_path):
    prepare(tmp_path, [find_device("rtx-3060")])
    environment = phantom_environment(tmp_path, os.environ)
    subprocess.run([sys.executable, "-c", CALLS], env=environment, check=True)
    (process,) = read_ledger(tmp_path / "ledger")
    assert process.last_call == "cudaImportExternalMemory"
    assert process.calls["cudaMalloc"] == 4
    assert process.calls_of("refused") == {"cudaImportExternalMemory": 1}
    held = process.devices[0]
    assert (held.used_bytes, held.peak_bytes) == (2 * (6 << 20), 3 * (6 << 20))  # whole pages of 2 MiB
    assert held.context_bytes == find_device("rtx-3060").context_bytes


def test_what_other_processes_hold_counts_until_they_end(tmp_path):
    prepare(tmp_path, [find_device("rtx-3060")])
    ask = "import ctypes; c = ctypes.CDLL('libxmem_phantom.so'); f, t = ctypes.c_size_t(), ctypes.c_size_t();"
    ask += "c.cudaMemGetInfo(ctypes.byref(f), ctypes.byref(t)); print(t.value - f.value, flush=True);"
    hold = ask + "p = ctypes.c_void_p(); c.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(1 << 30));"
    hold += "print('held', flush=True); input()"
    environment = phantom_environment(tmp_path, os.environ)
    context = find_device("rtx-3060").context_bytes

    def used() -> int:
        return int(subprocess.check_output([sys.executable, "-c", ask], env=environment))

    holder = subprocess.Popen(
        [sys.executable, "-c", hold],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert [int(holder.stdout.readline()), holder.stdout.readline().strip()] == [context, "held"]
        assert used() == 2 * context + (1 << 30)
        holder.communicate("\n")
    assert used() == context


def test_a_file_that_is_no_ledger_is_refused(tmp_path):
    path = tmp_path / "ledger"
    path.write_bytes(b"not a ledger at all, but long enough")
    with pytest.raises(CaptureError, match="not a ledger of this version"):
        read_ledger(path)


def test_an_empty_ledger_has_no_processes(tmp_path):
    create_ledger(tmp_path / "ledger")
    assert read_ledger(tmp_path / "ledger") == []


def test_without_a_machine_there_is_no_gpu():
    library = ctypes.CDLL(str(library_folder() / "libxmem_phantom.so"))
    count = ctypes.c_int(-1)
    assert library.cudaGetDeviceCount(ctypes.byref(count)) == 100
    assert count.value == 0


def test_every_function_has_a_fidelity():
    assert set(functions().values()) == {"faithful", "approximate", "refused"}
    assert functions()["cudaMalloc"] == "faithful"


CARDS = """
import ctypes, json
cuda = ctypes.CDLL("libxmem_phantom.so")
cuda.xmem_phantom_cards.restype = ctypes.c_size_t
def cards():
    room = cuda.xmem_phantom_cards(None, ctypes.c_size_t(0)) + 1
    text = ctypes.create_string_buffer(room)
    cuda.xmem_phantom_cards(text, ctypes.c_size_t(room))
    return json.loads(text.value)
def malloc(size):
    address = ctypes.c_void_p()
    assert cuda.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size)) == 0
    return address
"""
HOLD_A_GIBIBYTE = CARDS + "malloc(1 << 30); print('held', flush=True); input()"
TAKE_AND_GIVE_BACK = CARDS + "cuda.cudaFree(malloc(3 << 30)); malloc(2 << 20); print(json.dumps(cards()))"


def test_the_peak_of_a_card_is_what_all_processes_held_at_once(tmp_path):
    prepare(tmp_path, [find_device("rtx-3060")])
    environment = phantom_environment(tmp_path, os.environ)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_A_GIBIBYTE],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    together = json.loads(
        subprocess.check_output([sys.executable, "-c", TAKE_AND_GIVE_BACK], env=environment, text=True)
    )
    holder.communicate("\n")
    alone = json.loads(
        subprocess.check_output([sys.executable, "-c", TAKE_AND_GIVE_BACK], env=environment, text=True)
    )
    context = find_device("rtx-3060").context_bytes
    expected = {"card": 0, "peak_bytes": (4 << 30) + 2 * context, "contexts": 2, "context_bytes": 2 * context}
    assert [{key: card[key] for key in expected} for card in together] == [expected]
    assert alone == together  # less than there was before


def test_nccl_and_managed_memory_are_told_apart(tmp_path):
    prepare(tmp_path, [find_device("h100"), find_device("h100")])
    program = (
        CARDS
        + """
address = ctypes.c_void_p()
cuda.cudaSetDevice(1)
for size in (3 << 20, 5 << 20):
    assert cuda.cudaMallocManaged(ctypes.byref(address), ctypes.c_size_t(size), 1) == 0
assert cuda.cudaFree(address) == 0
assert cuda.ncclMemAlloc(ctypes.byref(address), ctypes.c_size_t(4 << 20)) == 0
print(json.dumps(cards()), cuda.xmem_phantom_card_of(0), cuda.xmem_phantom_card_of(1))
"""
    )
    environment = phantom_environment(tmp_path, os.environ) | {"CUDA_VISIBLE_DEVICES": "1,0"}
    answer = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    (card,), devices = json.loads(answer[: answer.index("]") + 1]), answer.split("]")[1].split()
    assert devices == ["1", "0"]
    assert card["card"] == 0
    assert (card["managed_bytes"], card["managed_largest_bytes"]) == (8 << 20, 5 << 20)
    assert card["nccl_bytes"] == 4 << 20
    assert card["peak_bytes"] == card["context_bytes"] + (4 << 20)

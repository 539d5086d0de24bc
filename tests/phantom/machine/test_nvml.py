"""NVML: for programs that only monitor, and for torch.cuda."""

from __future__ import annotations

NVML = """
import ctypes, json, os, subprocess, sys, time
from ctypes import byref, c_char_p, c_int, c_uint, c_uint64, c_void_p, create_string_buffer
nvml = ctypes.CDLL("libnvidia-ml.so.1")

class Memory(ctypes.Structure):
    _fields_ = [("total", c_uint64), ("free", c_uint64), ("used", c_uint64)]

class MemoryVersion2(ctypes.Structure):
    _fields_ = [("version", c_uint)] + [(n, c_uint64) for n in ("total", "reserved", "free", "used")]

class Process(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("used", c_uint64), ("gpu", c_uint), ("compute", c_uint)]

def call(name, *arguments):
    error = getattr(nvml, name)(*arguments)
    assert error == 0, (name, error)

def handle(card):
    found = c_void_p()
    call("nvmlDeviceGetHandleByIndex_v2", card, byref(found))
    return found

def text(name, *arguments):
    buffer = create_string_buffer(96)
    call(name, *arguments, buffer, 96)
    return buffer.value.decode()

def used(card):
    memory = MemoryVersion2(version=ctypes.sizeof(MemoryVersion2) | 2 << 24)
    call("nvmlDeviceGetMemoryInfo_v2", handle(card), byref(memory))
    assert memory.total == memory.reserved + memory.free + memory.used
    return memory.used >> 20

def processes(card):
    count = c_uint(0)
    error = nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle(card), byref(count), None)
    assert error == (7 if count.value else 0)
    found = (Process * count.value)()
    call("nvmlDeviceGetComputeRunningProcesses_v3", handle(card), byref(count), found)
    return {p.pid: p.used >> 20 for p in found}
"""


def test_all_cards_are_seen_and_found_again(phantom):
    ran = phantom.run(
        NVML
        + """
before = nvml.nvmlDeviceGetCount_v2(byref(c_uint()))  # not initialized
call("nvmlInit_v2")
count = c_uint()
call("nvmlDeviceGetCount_v2", byref(count))
second = handle(1)
again, bus = c_void_p(), c_void_p()
call("nvmlDeviceGetHandleByUUID", c_char_p(text("nvmlDeviceGetUUID", second).encode()), byref(again))
call("nvmlDeviceGetHandleByPciBusId_v2", c_char_p(b"0000:02:00.0"), byref(bus))
major, minor = c_int(), c_int()
call("nvmlDeviceGetCudaComputeCapability", second, byref(major), byref(minor))
absent = nvml.nvmlDeviceGetHandleByIndex_v2(2, byref(c_void_p()))
refused = nvml.nvmlDeviceGetMigMode(second, byref(c_uint()), byref(c_uint()))
print(json.dumps([before, count.value, text("nvmlDeviceGetName", second), again.value == second.value,
                  bus.value == second.value, [major.value, minor.value], absent, refused,
                  text("nvmlSystemGetDriverVersion")]))
""",
        devices=2,
        CUDA_VISIBLE_DEVICES="0",
    )
    assert ran.result == [1, 2, "NVIDIA GeForce RTX 3060", True, True, [8, 6], 2, 3, "580.65.06"]


def test_memory_is_that_of_all_processes_which_live(phantom):
    ran = phantom.run(
        NVML
        + """
holder = '''
import torch
x = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
print("ready", flush=True)
input()
'''
call("nvmlInit_v2")
holding = subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
holding.stdout.readline()
during = [used(0), used(1), processes(0) == {holding.pid: used(0)}]
holding.kill()
os.waitid(os.P_PID, holding.pid, os.WEXITED | os.WNOWAIT)  # it ended and stays a zombie
print(json.dumps([during, used(0), processes(0)]))
""",
        devices=2,
        CUDA_VISIBLE_DEVICES="0",
    )
    assert ran.result == [[246, 0, True], 0, {}]


def test_an_idle_card_has_sensors(phantom):
    ran = phantom.run(
        """
        import ctypes, json, torch
        count = torch.cuda.device_count()  # by NVML: no context is made
        x = torch.empty(1 << 20, device="cuda")
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        assert nvml.nvmlInit_v2() == 0
        handle, value, rates = ctypes.c_void_p(), ctypes.c_uint(), (ctypes.c_uint * 2)(7, 7)
        assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
        assert nvml.nvmlDeviceGetUtilizationRates(handle, rates) == 0
        assert nvml.nvmlDeviceGetTemperature(handle, 0, ctypes.byref(value)) == 0
        celsius = value.value
        assert nvml.nvmlDeviceGetPowerUsage(handle, ctypes.byref(value)) == 0
        watts = value.value / 1000
        assert nvml.nvmlDeviceGetClockInfo(handle, 1, ctypes.byref(value)) == 0
        print(json.dumps([count, list(rates), celsius, watts, value.value > 500]))
        """
    )
    count, rates, celsius, watts, has_clock = ran.result
    assert (count, rates) == (1, [0, 0])
    assert 0 < celsius < 100
    assert watts > 0
    assert has_clock


def test_there_is_no_fabric_between_the_cards(phantom):
    """A success that says so: torch 2.13 insists on the success."""
    ran = phantom.run(
        NVML
        + """
call("nvmlInit_v2")
info = (c_uint * 16)(*[7] * 16)
info[0] = 40 | 2 << 24
call("nvmlDeviceGetGpuFabricInfoV", handle(0), info)
wrong = (c_uint * 16)(5 | 2 << 24)
print(json.dumps([list(info), nvml.nvmlDeviceGetGpuFabricInfoV(handle(0), wrong)]))
"""
    )
    info, mismatch = ran.result
    assert info == [40 | 2 << 24, *[0] * 9, *[7] * 6]
    assert mismatch == 25

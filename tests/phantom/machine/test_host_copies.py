"""Copies from the device to the host: zeros that cost no memory, and what is known of them."""

from __future__ import annotations

RESIDENT = """
import json, torch

def resident_mib():
    words = open("/proc/self/statm").read().split()
    return int(words[1]) * 4096 >> 20

"""


def test_large_copies_leave_pages_of_the_host_untouched(phantom):
    ran = phantom.run(
        RESIDENT
        + """
weights = [torch.empty(1 << 28, device="cuda") for _ in range(8)]  # 8 GiB
torch.zeros(1).cuda().cpu()
before = resident_mib()
copies = [weight.cpu() for weight in weights]
pinned = torch.empty(1 << 28, pin_memory=True).copy_(weights[0], non_blocking=True)
grown = resident_mib() - before
reads = [copy[:: 1 << 20].abs().sum().item() for copy in copies]
written = torch.ones(1 << 24).copy_(weights[0][: 1 << 24])  # was resident, holds ones
print(json.dumps([grown, sum(reads), written.abs().sum().item()]))
"""
    )
    grown, reads, written = ran.result
    assert grown < 100
    assert reads == 0
    assert written == 0


def test_what_the_host_wrote_arrives_within_a_large_copy(phantom):
    ran = phantom.run(
        RESIDENT
        + """
device = torch.empty(1 << 22, dtype=torch.uint8, device="cuda")
facts = torch.arange(1, 101, dtype=torch.uint8)
places = [0, 4090, 70000, (1 << 22) - 100]
for place in places:
    device[place : place + 100].copy_(facts)
target = torch.full(((1 << 22) + 7,), 9, dtype=torch.uint8)
target[3 : 3 + (1 << 22)].copy_(device)  # begins and ends within pages
expected = torch.zeros(1 << 22, dtype=torch.uint8)
for place in places:
    expected[place : place + 100] = facts
whole = bool((target[3:-4] == expected).all())
print(json.dumps([whole, target[:3].tolist(), target[-4:].tolist()]))
"""
    )
    assert ran.result == [True, [9, 9, 9], [9, 9, 9, 9]]


def test_memory_that_is_not_private_and_anonymous_is_written(phantom):
    ran = phantom.run(
        RESIDENT
        + """
import ctypes, mmap, numpy
size = 1 << 22
device = torch.empty(size, dtype=torch.uint8, device="cuda")
with open("file", "wb") as file:
    file.write(b"\\x07" * size)
shared = torch.full((size,), 7, dtype=torch.uint8).share_memory_()
of_file = torch.from_file("file", shared=True, size=size, dtype=torch.uint8)
private_of_file = torch.from_numpy(numpy.memmap("file", dtype=numpy.uint8, mode="c"))
anonymous_shared = torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
anonymous_shared.fill_(7)
locked = torch.full((size,), 7, dtype=torch.uint8)
ctypes.CDLL(None).mlock(ctypes.c_void_p(locked.data_ptr()), ctypes.c_size_t(size))
found = {}
for name in ("private_of_file", "shared", "of_file", "anonymous_shared", "locked"):
    target = globals()[name]
    assert target[-1] == 7, name
    target.copy_(device)
    found[name] = int(target.max())
found["on disk"] = max(open("file", "rb").read())
print(json.dumps(found))
"""
    )
    assert set(ran.result.values()) == {0}, ran.result

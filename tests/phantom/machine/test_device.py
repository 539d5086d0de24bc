"""What torch sees of the described device, and what memory does on it."""

from __future__ import annotations

import pytest


def test_torch_sees_the_described_device(phantom):
    ran = phantom.run(
        """
        import json, torch
        p = torch.cuda.get_device_properties(0)
        print(json.dumps([p.name, p.total_memory, p.major, p.minor, p.multi_processor_count, torch.cuda.device_count()]))
        """
    )
    assert ran.result == ["NVIDIA GeForce RTX 3060", 12622168064, 8, 6, 28, 1]
    assert ran.refused() == {}


def test_memory_is_taken_and_given_back(phantom):
    ran = phantom.run(
        """
        import json, torch
        free, total = torch.cuda.mem_get_info()
        x = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
        held, _ = torch.cuda.mem_get_info()
        reserved = torch.cuda.memory_reserved()
        del x
        torch.cuda.empty_cache()
        print(json.dumps([total - free, free - held, reserved, torch.cuda.mem_get_info()[0] == free]))
        """
    )
    context, taken, reserved, restored = ran.result
    assert context == 146 << 20
    assert taken == reserved == 100 << 20
    assert restored
    assert ran.processes[0].devices[0].peak_bytes == 100 << 20


def test_more_than_the_device_has_is_out_of_memory(phantom):
    ran = phantom.run(
        """
        import json, torch
        kept = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(11)]
        try:
            kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
            outcome = "fits"
        except torch.OutOfMemoryError as error:
            outcome = str(error)
        print(json.dumps([outcome, torch.cuda.memory_stats()["num_ooms"], torch.cuda.memory_reserved()]))
        """
    )
    outcome, ooms, reserved = ran.result
    assert "CUDA out of memory. Tried to allocate 1024.00 MiB" in outcome
    assert ooms == 1
    assert reserved == 11 << 30


def test_what_the_host_wrote_comes_back_until_a_kernel_runs(phantom):
    ran = phantom.run(
        """
        import json, torch
        x = torch.tensor([1, 2, 3]).cuda()
        first = x.tolist()
        copied = x.clone().tolist()
        y = x + 1
        print(json.dumps([first, copied, x.tolist(), y.tolist()]))
        """
    )
    assert ran.result == [[1, 2, 3], [1, 2, 3], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("visible", ["1", "1,0", ""])
def test_visible_devices(phantom, visible):
    ran = phantom.run(
        "import json, torch; print(json.dumps(torch.cuda.device_count()))",
        devices=2,
        CUDA_VISIBLE_DEVICES=visible,
    )
    assert ran.result == len([name for name in visible.split(",") if name])


def test_a_fork_keeps_books_of_its_own(phantom):
    ran = phantom.run(
        """
        import json, os, torch
        from torch.utils.data import DataLoader
        x = torch.empty(1 << 20, device="cuda")
        loaded = [batch.cuda().shape[0] for batch in DataLoader(torch.arange(10), batch_size=5, num_workers=2)]
        print(json.dumps(loaded))
        """
    )
    assert ran.result == [5, 5]

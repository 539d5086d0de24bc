"""Questions that scripts ask torch.cuda, and the moves between host and GPU that they make."""

import io
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
assert torch.cuda.get_device_name() == "Test GPU" and torch.cuda.get_device_capability() == (8, 0)
properties = torch.cuda.get_device_properties("cuda")
assert (properties.name, properties.total_memory, properties.major) == ("Test GPU", 2**30, 8)
assert torch.cuda.mem_get_info()[1] == 2**30 and torch.cuda.is_bf16_supported()
assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == torch.cuda.memory_reserved() == 0
assert "allocated memory" in torch.cuda.memory_summary().lower()
assert torch.accelerator.current_accelerator().type == "cuda"
torch.cuda.reset_peak_memory_stats()
torch.cuda.set_rng_state(torch.cuda.get_rng_state())
stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
with torch.cuda.stream(stream), torch.cuda.nvtx.range("copy"), torch.cuda.device(0):
    moved = torch.from_numpy(np.ones((4, 8), dtype=np.float32)).pin_memory().to(0, non_blocking=True)
    event.record()
torch.cuda.current_stream().wait_stream(stream)
moved.record_stream(stream)
event.synchronize()
assert event.elapsed_time(event) == 0.0
assert 1000 / event.elapsed_time(stream.record_event(torch.cuda.Event(enable_timing=True))) > 0, "a rate"

host = torch.from_numpy(np.ones((4, 8), dtype=np.float32))
assert (
    not host.is_cuda and host.device.type == "cpu" and not host.is_pinned() and host.pin_memory().is_pinned()
)
x = host.to("cuda:0", torch.float16)
assert x.is_cuda and not x.is_cpu and x.get_device() == 0 and x.type() == "torch.cuda.HalfTensor"
assert (
    x.to("cuda") is x and x.cuda() is x and x.to(torch.float32).is_cuda and host.to(x).dtype == torch.float16
)
assert x.to(x.device) is x and not x.cpu().is_cuda and x.float().cpu().numpy().shape == (4, 8)
for made in (
    x.new_zeros(2),
    torch.zeros_like(x),
    torch.arange(3, device=x.device),
    x[0],
    x.T,
    x.data,
    x.detach(),
):
    assert made.device == torch.device("cuda:0")
assert not torch.zeros_like(x, device="cpu").is_cuda and torch.as_tensor(np.ones(3), device="cuda").is_cuda
assert host.type("torch.cuda.HalfTensor").is_cuda

array = np.ones(3)
copied = torch.as_tensor(array, device="cuda")
with torch.device("cuda"):
    also_copied = torch.as_tensor(array)
array[0] = 5.0
assert copied.is_cuda and also_copied.is_cuda and copied[0] == also_copied[0] == 1.0

with torch.device("cuda"):
    assert torch.zeros(3).is_cuda and nn.Linear(2, 2).weight.is_cuda
torch.set_default_device("cuda")
assert torch.tensor([1.0]).is_cuda and torch.get_default_device() == torch.device("cuda:0")
attention = nn.MultiheadAttention(8, 2, dropout=0.1)
assert attention(*[torch.randn(5, 2, 8)] * 3)[1].is_cuda
torch.set_default_device("cpu")

model = torch.compile(
    nn.DataParallel(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)))
).cuda()
checkpoint = io.BytesIO()
torch.save(model.state_dict(), checkpoint)
for location, on_gpu in ((None, True), ("cuda", True), ("cpu", False)):
    checkpoint.seek(0)
    loaded = torch.load(checkpoint, map_location=location)
    assert all(tensor.is_cuda == on_gpu for tensor in loaded.values())
model.load_state_dict(loaded)

scripted = torch.jit.script(torch.nn.functional.silu)
assert scripted(moved.requires_grad_()).is_cuda
assert torch.autograd.grad(moved.sum(), moved)[0].is_cuda
for dtype in (torch.bfloat16, None):
    with torch.autocast("cuda", dtype=dtype):
        assert torch.is_autocast_enabled() and torch.is_autocast_enabled("cuda")
        low = moved @ moved.T
        assert low.dtype == (dtype or torch.float16) == torch.get_autocast_dtype("cuda")
        for function in (torch.softmax, torch.log_softmax, torch.cumsum, torch.sum):
            assert function(low, -1).dtype == torch.float32
        assert nn.functional.layer_norm(low, (4,)).dtype == low.pow(2).dtype == torch.float32
        with torch.autocast("cuda", enabled=False):
            assert (moved @ moved.T).dtype == torch.float32
with torch.autocast("cpu", dtype=torch.bfloat16):
    assert (
        not torch.is_autocast_enabled("cuda") and torch.softmax(moved.bfloat16(), -1).dtype == torch.bfloat16
    )

with torch.profiler.profile() as warm_up, tempfile.TemporaryDirectory() as folder:
    moved.sum()
    for file in (Path(folder, "trace.json"), Path(folder, "trace.json.gz")):
        warm_up.export_chrome_trace(str(file))
        assert file.exists()
    assert list(warm_up.events()) == list(warm_up.key_averages()) == [] and not warm_up.key_averages().table()

optimizer = torch.optim.AdamW(model.parameters(), fused=True)
with torch.profiler.profile() as profiler:
    for _ in range(4):
        optimizer.zero_grad()
        model(moved.detach()).sum().backward()
        optimizer.step()
        profiler.step()

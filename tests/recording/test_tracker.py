"""``xmem.memory_tracker`` on functions and methods."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

import xmem

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture(scope="module")
def network() -> Any:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))

        @xmem.memory_tracker(gpu="rtx-3060")
        def forward(self, x: Any, scale: float = 1.0) -> Any:
            return self.layers(x) * scale

    torch.manual_seed(0)
    return Net()


def test_a_tracked_forward_knows_its_module(network: Any) -> None:
    import torch

    output = network(torch.ones(16, 64), scale=2.0)
    assert output.shape == (16, 8)
    (recorder,) = network.forward.recordings
    estimate = recorder.estimate
    assert estimate.fits
    assert estimate.breakdown.category_peaks["parameter"] == 64 * 256 * 4 + 1024 + 256 * 8 * 4 + 512
    assert estimate.breakdown.category_peaks["input"] == 16 * 64 * 4
    assert {"Net.layers.0", "Net.layers.2"} <= set(estimate.breakdown.module)


def test_only_the_last_recordings_are_kept() -> None:
    import torch

    seen: list[xmem.Recorder] = []

    @xmem.memory_tracker(on_result=seen.append)
    def work(rows: int) -> Any:
        """Words about it."""
        return torch.ones(rows, 256).exp()

    for rows in range(1, 19):
        assert work(rows).shape == (rows, 256)
    assert len(work.recordings) == 16
    assert seen[-16:] == list(work.recordings)
    assert work.__doc__ == "Words about it."
    peaks = [recorder.estimate.peak_allocated_bytes for recorder in work.recordings]
    assert peaks == [2 * 1024 * rows for rows in range(3, 19)]


def test_recursion_and_exceptions() -> None:
    import torch

    @xmem.memory_tracker
    def factorial(n: int) -> Any:
        if n < 0:
            raise ValueError(n)
        return torch.ones(256) * n * factorial(n - 1) if n else torch.ones(256)

    assert float(factorial(4)[0]) == 24
    assert len(factorial.recordings) == 1
    with pytest.raises(ValueError, match="-1"):
        factorial(-1)
    assert len(factorial.recordings) == 1
    factorial(2)
    assert len(factorial.recordings) == 2


def test_options_are_refused_where_the_decorator_stands() -> None:
    with pytest.raises(xmem.ConfigError):

        @xmem.memory_tracker(gpu="no-such-gpu")
        def work() -> None: ...


def test_what_runs_after_it_has_returned_is_refused() -> None:
    def batches() -> Iterator[int]:
        yield 1

    async def serve() -> None: ...

    for function in (batches, serve):
        with pytest.raises(
            xmem.ConfigError, match=f"on {function.__name__}, but generators and coroutines cannot be tracked"
        ):
            xmem.memory_tracker(function)

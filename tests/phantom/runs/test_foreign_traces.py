"""Captures cut at any point and without their metadata are traces from elsewhere: the answer stays in its
interval, has none, or is refused."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from random import Random
from typing import Any

import pytest

import xmem
from nightly import most_nightly
from xmem.capture import capture
from xmem.errors import TraceError
from xmem.estimation.calibration import is_calibrated

from ..conftest import PYTHONS, run

pytestmark = pytest.mark.skipif(not PYTHONS, reason="no CUDA build of torch here")

TRANSFORMER = """
    import torch
    from torch import nn
    model = nn.Sequential(
        nn.Embedding(4000, 256), *[nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(4)],
        nn.Linear(256, 4000)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(6):
        tokens = torch.randint(4000, (8, 64)).cuda()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

IMAGES = """
    import torch
    from torch import nn
    layers, channels = [], 3
    for width in (32, 64, 128, 256):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 16, 100)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(6):
        images = torch.randn(16, 3, 64, 64).cuda()
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

_CUTS = 12


def cuts(path: Path) -> list[dict[str, Any]]:
    """The trace from each of several points on, to its end or to some later point, without what says that we
    captured it."""
    whole = json.loads(path.read_bytes())
    whole.pop("xmem")
    times = sorted(float(event["ts"]) for event in whole["traceEvents"] if "ts" in event)
    draw = Random(20)
    found = []
    for cut in range(2 * _CUTS):
        begin = times[len(times) * (cut // 2) // _CUTS]
        end = times[-1] if cut % 2 else draw.choice(times)
        kept = [event for event in whole["traceEvents"] if begin <= float(event.get("ts", begin)) <= end]
        found.append({**whole, "traceEvents": kept})
    return found


@pytest.mark.parametrize("mode", most_nightly(["phantom", "real"]))
@pytest.mark.parametrize(
    ("script", "kind"), [(TRANSFORMER, "other"), (IMAGES, "convolutional")], ids=["transformer", "images"]
)
def test_the_need_of_a_cut_capture_is_in_its_interval(
    tmp_path: Path, script: str, kind: str, mode: str
) -> None:
    result, estimate = run(PYTHONS[0], tmp_path, script, gpu="rtx-3090", iterations=6)
    need = estimate.device_peak_bytes
    if mode == "real":
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(script))
        result = capture([PYTHONS[0], str(path)], tmp_path / "cpu.json", mode="real", iterations=6)
    answers = []
    for cut in cuts(result.path):
        (tmp_path / "cut.json").write_text(json.dumps(cut))
        try:
            found = xmem.estimate(tmp_path / "cut.json", gpu="rtx-3090")
        except TraceError as error:
            answers.append(str(error)[:40])
            continue
        if found.interval is None:
            assert found.doubt is not None
            answers.append("open")
            continue
        answers.append("interval")
        assert found.interval.low_bytes <= need <= found.interval.high_bytes, answers
    has_interval = mode == "phantom" or is_calibrated("foreign", kind)
    assert answers.count("interval" if has_interval else "open") >= _CUTS // 3, answers

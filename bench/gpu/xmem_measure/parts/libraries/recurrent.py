"""What recurrent layers of PyTorch request, forward and backward."""

from __future__ import annotations

import time
from typing import Any

import torch

from xmem_measure.history import Mark, requests_between
from xmem_measure.parts.operators import flags
from xmem_measure.session import Session

_PATIENCE_S = 25.0
# Input size, hidden size, layers, steps, sequences, two directions, projection, dropout.
_NETWORKS = [
    (inputs, hidden, layers, steps, batch, both, projection, dropout)
    for inputs, hidden in ((64, 64), (128, 256), (256, 128), (512, 512), (300, 650), (1024, 1024))
    for layers, both, projection, dropout in (
        (1, False, 0, 0.0),
        (2, False, 0, 0.0),
        (2, True, 0, 0.0),
        (2, False, 32, 0.0),
        (3, True, 0, 0.2),
    )
    for steps, batch in ((35, 20), (128, 64), (16, 256))
]


def run(config: dict[str, Any], session: Session) -> dict[str, Any]:
    """Run each network forward and backward, with the allocator recorded."""
    cell, meter = config["cell"], session.meter
    place = {"device": meter.device, "dtype": getattr(torch, config["dtype"])}
    meter.start_history()
    marks: list[tuple[Mark, Mark]] = []
    rows: list[dict[str, Any]] = []
    deadline = time.monotonic() + _PATIENCE_S
    for inputs, hidden, layers, steps, batch, both, projection, dropout in _NETWORKS:
        if (projection and cell != "LSTM") or time.monotonic() > deadline:
            continue
        settings = {"num_layers": layers, "bidirectional": both, "dropout": dropout}
        if projection:
            settings["proj_size"] = projection
        asked = {"input_size": inputs, "hidden_size": hidden, **settings}
        layer = getattr(torch.nn, cell)(**asked).to(**place)
        x = torch.ones(steps, batch, inputs, requires_grad=True, **place)
        row: dict[str, Any] = {**asked, "steps": steps, "batch": batch}
        begun = meter.mark()
        y, _ = layer(x)
        marks.append((begun, meter.mark()))
        gradient = torch.ones_like(y)
        begun = meter.mark()
        y.backward(gradient)
        marks.append((begun, meter.mark()))
        rows.append(row)
        del layer, x, y, gradient, _
        torch.cuda.synchronize()
    requests = requests_between(meter.history(), marks)
    for number, row in enumerate(rows):
        row["forward"], row["backward"] = requests[2 * number], requests[2 * number + 1]
    return {"flags": flags(), "networks": rows}

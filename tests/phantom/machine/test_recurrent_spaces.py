"""The spaces of recurrent layers by our formulas, and as cuDNN answers on the phantom GPU."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from xmem.cudnn.libraries import bundled_with
from xmem.dtypes import item_bytes
from xmem.orchestration.recurrent.cudnn_layers import RECURRENT_CALLS
from xmem.orchestration.recurrent.recurrent_spaces import RecurrentCall, reserve_bytes, work_bytes

from ..conftest import torch_version

UNIT = 512
AMPERE = (8, 6)  # of the phantom here
MODES = {"aten::lstm": 2, "aten::gru": 3, "aten::rnn_tanh": 1, "aten::rnn_relu": 0}

# What calls of cuDNN ask the allocator for, in order of size: a workspace, and what is reserved.
PROGRAM = """
    import json, sys, torch

    def spaces(mode, gates, dtype, width, hidden, projection, layers, directions, lengths, packed, training, dropout):
        options = {"device": "cuda", "dtype": getattr(torch, dtype)}
        output = projection or hidden
        weights = []
        for layer in range(layers):
            for _ in range(directions):
                given = output * directions if layer else width
                sizes = [(gates * hidden, given), (gates * hidden, output), (gates * hidden,), (gates * hidden,)]
                sizes += [(output, hidden)] if projection else []
                weights += [torch.empty(size, **options) for size in sizes]
        batch = len(lengths)
        sizes = [sum(length > step for length in lengths) for step in range(lengths[0])] if packed else []
        x = torch.empty(*((sum(lengths),) if packed else (lengths[0], batch)), width, **options)
        h, c = (torch.empty(layers * directions, batch, size, **options) for size in (output, hidden))
        state = torch.empty(1 << 20, dtype=torch.uint8, device="cuda") if dropout else None
        flat = torch._cudnn_rnn_flatten_weight(
            weights, 5 if projection else 4, width, mode, hidden, projection, layers, False, directions == 2)
        torch.cuda.memory._record_memory_history(context=None)
        made = torch._cudnn_rnn(
            x, weights, 5 if projection else 4, flat, h, c if mode == 2 else None, mode, hidden, projection,
            layers, False, dropout, training, directions == 2, sizes, state)
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(enabled=None)
        asked = [entry["size"] for entry in trace if entry["action"] == "alloc"]
        return asked[-2 if training else -1], made[3].numel()

    print(json.dumps([spaces(*call) for call in json.loads(sys.argv[1])]))
"""


def some_calls(count: int) -> list[list[Any]]:
    """Calls of all kinds of layers, as ``spaces`` takes them."""
    draw = random.Random(0)
    calls = []
    for _ in range(count):
        name = draw.choice(list(MODES))
        hidden, layers, training = draw.choice([8, 50, 64, 200, 256]), draw.randint(1, 4), draw.random() < 0.8
        longest, packed = draw.choice([1, 5, 20, 48, 100, 300]), draw.random() < 0.3
        lengths = [longest] * draw.choice([1, 4, 16, 20, 64, 100])
        if packed:
            lengths = sorted((draw.randint(1, longest) for _ in lengths), reverse=True)
        calls.append(
            [
                MODES[name],
                RECURRENT_CALLS[name],
                draw.choice(["float32", "float32", "float64", "float16"]),
                draw.choice([1, 16, 100, 512]),
                hidden,
                hidden // 4 if name == "aten::lstm" and draw.random() < 0.3 else 0,
                layers,
                draw.choice([1, 2]),
                lengths,
                packed,
                training,
                0.3 if training and layers > 1 and draw.random() < 0.4 else 0.0,
            ]
        )
    return calls


def as_call(call: list[Any]) -> RecurrentCall:
    """The same for the formulas."""
    _, gates, dtype, width, hidden, projection, layers, directions, lengths, packed, training, dropout = call
    item = {"float32": "float", "float64": "double", "float16": "c10::Half"}[dtype]
    return RecurrentCall(
        gates=gates,
        item_bytes=item_bytes(item) or 0,
        steps=sum(lengths),
        longest=lengths[0],
        batch=len(lengths),
        input_width=width,
        hidden=hidden,
        projection=projection,
        layers=layers,
        directions=directions,
        biases=True,
        training=training,
        drops=dropout > 0,
        by_sequence=False,
        packed=packed,
        has_persistent=dtype != "float64",
        weights_bytes=(),
    )


def units(size_bytes: int) -> int:
    """Of the allocator."""
    return -(-size_bytes // UNIT)


@pytest.mark.slow
def test_formulas_give_what_cudnn_answers(phantom) -> None:
    calls = some_calls(150)
    ran = phantom.run(PROGRAM, json.dumps(calls))
    before_9_8 = bundled_with(torch_version(phantom)).version < (9, 8)
    wrong = []
    for call, (work, reserve) in zip(calls, ran.result, strict=True):
        found = as_call(call)
        ours = (
            work_bytes(found, AMPERE, before_9_8=before_9_8),
            reserve_bytes(found) if found.training else 0,
        )
        for size, theirs in zip(ours, (work, reserve), strict=True):
            assert theirs - 64 <= size <= theirs, call
        wrong += [call] if [*map(units, ours)] != [units(work), units(reserve)] else []
    assert len(wrong) <= 0.02 * len(calls)

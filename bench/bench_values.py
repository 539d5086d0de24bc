"""What following known values costs: the host's time of single operators on the phantom GPU.

Each operator is called many times with its kernel of ``xmem_child/values`` and as many times without, in turn
and in one process; a figure is the median over rounds of the difference. Times are those of the thread, so
that others on the machine count little. The time to run the operator on the host is part of the cost.

    python bench/bench_values.py --python .venv-cuda13/bin/python [--rounds 41] [--calls 50]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from xmem.capture import PhantomMachine, capture
from xmem.devices.gpus import find_device

BAR_US = 30

OPERATORS = """
import gc, json, sys, time, torch
from xmem_child.values.operators import unfollowed

weights = torch.empty(64, device="cuda")
mask = torch.tensor([True, False] * 32, device="cuda")
lengths = torch.arange(64, device="cuda")
levels = torch.linspace(0.0, 1.0, 64, device="cuda")
table = torch.zeros(8, 64, dtype=torch.int64, device="cuda")
table[3] = 5
rows = torch.tensor([1, 3, 5], device="cuda")
steps = [torch.tensor(1.0, device="cuda") for _ in range(4)]

known = {
    "add": lambda: lengths + lengths,
    "add a number": lambda: lengths + 1,
    "multiply": lambda: levels * levels,
    "multiply by a number": lambda: levels * 0.5,
    "add in place": lambda: levels.add_(levels, alpha=0.001),
    "compare": lambda: lengths < rows[0],
    "compare with a number": lambda: lengths > 7,
    "equal to a number": lambda: lengths == 7,
    "and": lambda: mask & mask,
    "not": lambda: ~mask,
    "where": lambda: torch.where(mask, lengths, table[3]),
    "masked_fill": lambda: levels.masked_fill(mask, 0.0),
    "sum": lambda: lengths.sum(),
    "cumsum": lambda: lengths.cumsum(0),
    "maximum": lambda: lengths.max(),
    "cast": lambda: lengths.to(torch.int32),
    "clone": lambda: lengths.clone(),
    "copy": lambda: table[3].copy_(lengths),
    "concatenate": lambda: torch.cat([lengths, lengths]),
    "index": lambda: table[rows],
    "index_select": lambda: table.index_select(0, rows),
    "sort": lambda: lengths.sort(),
    "clamp": lambda: levels.clamp(0.1, 0.9),
    "zeros": lambda: torch.zeros(64, device="cuda"),
    "arange": lambda: torch.arange(64, device="cuda"),
    "fill": lambda: levels.fill_(0.5),
    "optimizer's steps": lambda: torch._foreach_add_(steps, 1),
}
other = weights.clone()
unknown = {
    "add": lambda: weights + other,
    "multiply by a number": lambda: weights * 0.5,
    "add in place": lambda: weights.add_(other, alpha=0.001),
    "compare with a number": lambda: weights > 0.5,
    "sum": lambda: weights.sum(),
    "cast": lambda: weights.to(torch.float16),
    "copy": lambda: weights.copy_(other),
    "concatenate": lambda: torch.cat([weights, other]),
}

def time_of(function, calls):
    began = time.thread_time()
    for _ in range(calls):
        function()
    return (time.thread_time() - began) / calls * 1e6

def difference(function, calls):
    followed = time_of(function, calls)
    with unfollowed():
        without = time_of(function, calls)
    return without, followed - without

rounds, calls = int(sys.argv[1]), int(sys.argv[2])
for function in (*known.values(), *unknown.values()):
    time_of(function, 20)
gc.disable()
for _ in range(rounds):
    for kind, functions in (("known", known), ("unknown", unknown)):
        for name, function in functions.items():
            print(json.dumps([kind, name, *difference(function, calls)]))
"""


def measure(python: str, rounds: int, calls: int) -> list[tuple[str, str, float, float]]:
    """Return operators as (kind, name, microseconds without following, microseconds that it adds)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script, output = folder / "operators.py", folder / "output"
        script.write_text(OPERATORS)
        with output.open("w") as out:
            capture(
                [python, str(script), str(rounds), str(calls)],
                folder / "trace.json",
                mode="phantom",
                machine=PhantomMachine(find_device("rtx-3060")),
                stdout=out.fileno(),
            )
        pairs: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for line in output.read_text().splitlines():
            kind, operator, without, added = json.loads(line)
            pairs.setdefault((kind, operator), []).append((without, added))
    return [
        (kind, operator, *(statistics.median(column) for column in zip(*of, strict=True)))
        for (kind, operator), of in pairs.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", required=True, help="of a CUDA build of torch")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--calls", type=int, default=50)
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores; microseconds of one call")
    print(f"{'':8} {'operator':24} {'not followed':>12} {'following adds':>15}")
    measured = measure(options.python, options.rounds, options.calls)
    for kind, operator, without, added in measured:
        print(f"{kind:8} {operator:24} {without:12.1f} {added:15.1f}")
    for kind in ("known", "unknown"):
        costs = [added for of, _, _, added in measured if of == kind]
        print(f"{kind:8} median {statistics.median(costs):.1f}, most {max(costs):.1f} (bar: {BAR_US})")


if __name__ == "__main__":
    main()

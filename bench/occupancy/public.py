"""PyTorch's own launches on a phantom GPU against those of public traces of an H100.

    python bench/occupancy/public.py TRACES --python PATH [--folder .occupancy]

TRACES is a folder with the traces of TraceLens (``tests/traces/h100``), PATH the Python of an environment
with what they were recorded with: torch 2.6.0 for CUDA 12.4 and transformers 4.49.0. A launch is equal if its
kernel, grid, block, registers and shared memory are, in order. Kernels of libraries are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from measured import GPU, HERE, OWN, between_markers, equal_in_order, phantom_shapes

from xmem.capture import Extent, PhantomMachine, capture
from xmem.devices.gpus import find_device
from xmem.occupancy.profiled import profiled_launches
from xmem.occupancy.recorded import launches_of
from xmem.trace.trace import read_trace


def compare(traces: Sequence[Path], python: Path, folder: Path) -> None:
    """Print how many launches of each trace are equal."""
    folder.mkdir(parents=True, exist_ok=True)
    total, equal = 0, 0
    for path in traces:
        name = path.name.partition(".json")[0]
        again = folder / f"{name}.trace.json.gz"
        if not again.exists():
            command = [str(python), str(HERE / "public_jobs.py"), name]
            machine = PhantomMachine(device=find_device(GPU), launches=True)
            capture(command, again, mode="phantom", machine=machine, extent=Extent(until_end=True))
        (ours,) = between_markers(launches_of(read_trace(again)))
        launched = [shape for shape in phantom_shapes(ours) if shape]
        names = {shape[0] for shape in launched}
        recorded, _ = profiled_launches(path)
        # A kernel without an operator was launched before the recording began.
        recorded = recorded.rows(recorded.operator >= 0)
        real = [shape for shape in phantom_shapes(recorded) if shape[0] in names or OWN.search(shape[0])]
        same = equal_in_order(launched, real)
        total, equal = total + max(len(real), len(launched)), equal + same
        print(f"{name}: {same} of {len(real)} equal, phantom {len(launched)}")
    print(f"all: {equal} of {total} ({equal / total:.2%})")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", type=Path)
    parser.add_argument("--python", required=True, type=Path, help="of an environment with that torch")
    parser.add_argument("--folder", type=Path, default=Path(".occupancy"), help="for what was captured")
    arguments = parser.parse_args()
    compare(sorted(arguments.traces.glob("*_101600*.json.gz")), arguments.python, arguments.folder)


if __name__ == "__main__":
    main()

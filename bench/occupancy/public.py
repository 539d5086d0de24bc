"""PyTorch's own launches on a phantom GPU against those of public traces of an H100.

    python bench/occupancy/public.py TRACES --python PATH [--folder .occupancy]

TRACES is a folder with the traces of TraceLens (``tests/traces/h100``), PATH the Python of an environment
with what they were recorded with: torch 2.6.0 for CUDA 12.4 and transformers 4.49.0. A launch is equal if its
kernel, grid, block, registers and shared memory are, in order. Kernels of libraries are left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from measured import HERE, OWN, equal_in_order, marked_launches, phantom_shapes

from xmem.occupancy.profiled import profiled_launches

# The jobs of `public_jobs.py` that do the same.
TRACES = {
    "Falconsai_nsfw_image_detection__1016002": "vit",
    "Qwen_Qwen1.5-0.5B-Chat__1016005": "qwen",
    "facebook_timesformer-base-finetuned-k400__1016002": "timesformer",
    "gaunernst_bert-small-uncased__1016001": "bert",
    "google_owlv2-large-patch14-ensemble__1016001": "owlv2",
}


def compare(traces: Path, python: Path, folder: Path) -> None:
    """Print how many launches of each trace are equal."""
    folder.mkdir(parents=True, exist_ok=True)
    total, equal = 0, 0
    for name, job in TRACES.items():
        command = [str(python), str(HERE / "public_jobs.py"), job]
        (ours,) = marked_launches(command, folder / f"{name}.trace.json.gz")
        launched = [shape for shape in phantom_shapes(ours) if shape]
        names = {shape[0] for shape in launched}
        recorded, _ = profiled_launches(traces / f"{name}.json.gz")
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
    compare(arguments.traces, arguments.python, arguments.folder)


if __name__ == "__main__":
    main()

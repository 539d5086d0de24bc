"""One published run of the xMem paper as its authors made it, with random weights, in fp32.

    python train.py {CNN|Transformer} MODEL OPTIMIZER BATCH [ZERO_GRAD_MODE] [--tokens 128] [--iterations 4]

It needs torch, torchvision and transformers only, and runs on a GPU to be measured as it runs on the CPU or
on a phantom GPU to be captured.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from workloads import Job, prepare, train


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("family", choices=("CNN", "Transformer"))
    parser.add_argument("model", help="a name of the published data")
    parser.add_argument("optimizer", help="a class of torch.optim, or transformers.Adafactor")
    parser.add_argument("batch", type=int)
    parser.add_argument(
        "zero_grad",
        type=int,
        nargs="?",
        default=0,
        choices=(0, 1, 2),
        help="0 at the start of an iteration, 1 between forward and backward, 2 after the step",
    )
    parser.add_argument("--tokens", type=int, default=128, help="length of a transformer's sequences")
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument(
        "--optimizer-built",
        choices=("before", "after"),
        help="than the model moves; by default after for CNNs, before for transformers, as published",
    )
    options = parser.parse_args()
    job = Job(
        "cnn" if options.family == "CNN" else "transformer",
        options.model,
        options.optimizer,
        options.batch,
        zero_grad=options.zero_grad,
        tokens=options.tokens,
        iterations=options.iterations,
        optimizer_built=options.optimizer_built,
    )
    train(prepare(job), torch.device("cuda"))


if __name__ == "__main__":
    main()

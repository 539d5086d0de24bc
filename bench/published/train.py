"""One published run of the xMem paper as its authors made it, with random weights, in fp32.

    python train.py {CNN|Transformer} MODEL OPTIMIZER BATCH ZERO_GRAD_MODE

ZERO_GRAD_MODE: 0 at the start of an iteration, 1 between forward and backward, 2 after the step.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from workloads import Job, prepare, train


def main() -> None:
    family, model, optimizer, batch, mode = sys.argv[1:]
    kind = "cnn" if family == "CNN" else "transformer"
    job = Job(kind, model, optimizer, int(batch), zero_grad=int(mode))
    train(prepare(job), torch.device("cuda"))


if __name__ == "__main__":
    main()

"""DeepSpeed ZeRO: optimizer state (stage 1), gradients (2) and parameters (3) are split over the ranks.

deepspeed --num_gpus 8 examples/parallel/deepspeed_zero.py --stage 3
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from model import LanguageModel, batch_of, loss_of
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--offload", action="store_true", help="keep the optimizer on the host")
    parser.add_argument("--accumulate", type=int, default=1, help="batches of a step")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--local_rank", type=int, default=-1, help="given by DeepSpeed's launcher")
    args = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed("nccl")
    settings = settings_of(args)
    if args.stage == 3:
        with deepspeed.zero.Init(config_dict_or_path=settings):
            model = LanguageModel(args.layers, args.width)
    else:
        model = LanguageModel(args.layers, args.width)
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer_of(model, args), config=settings)
    for _ in range(args.steps * args.accumulate):
        tokens = batch_of(args.batch_size, args.length)
        engine.backward(loss_of(engine(tokens), tokens))
        engine.step()
    dist.destroy_process_group()


def optimizer_of(model: nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    """Return AdamW: DeepSpeed's own on the host, torch's on the GPU."""
    if args.offload:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return DeepSpeedCPUAdam(model.parameters(), lr=1e-4)
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return DeepSpeed's configuration."""
    zero: dict[str, Any] = {"stage": args.stage, "overlap_comm": True, "contiguous_gradients": True}
    if args.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return {
        "train_micro_batch_size_per_gpu": args.batch_size,
        "gradient_accumulation_steps": args.accumulate,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
    }


if __name__ == "__main__":
    main()

"""Data parallel training: DistributedDataParallel, FSDP, FSDP2, or HSDP with FSDP2.

torchrun --nproc-per-node 8 examples/parallel/data_parallel.py --style fsdp2
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from model import Block, LanguageModel, batch_of, loss_of
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--style", choices=("ddp", "fsdp1", "fsdp2", "hsdp"), default="ddp")
    parser.add_argument("--replicas", type=int, default=2, help="copies of the model (hsdp)")
    parser.add_argument(
        "--checkpoint", action="store_true", help="recompute activations in the backward pass"
    )
    parser.add_argument("--offload", action="store_true", help="keep parameters on the host (fsdp1, fsdp2)")
    parser.add_argument("--bfloat16", action="store_true", help="compute in bfloat16 (fsdp1, fsdp2, hsdp)")
    parser.add_argument("--bind", action="store_true", help="bind groups to the GPU: NCCL connects at once")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    args = parser.parse_args()

    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(gpu)
    backend = "cpu:gloo,cuda:nccl" if args.offload else "nccl"
    dist.init_process_group(backend, device_id=gpu if args.bind else None)
    model = LanguageModel(args.layers, args.width).cuda()
    if args.checkpoint:
        apply_activation_checkpointing(
            model, checkpoint_wrapper_fn=checkpoint_wrapper, check_fn=lambda module: isinstance(module, Block)
        )
    model = wrapped(model, args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(args.steps):
        tokens = batch_of(args.batch_size, args.length)
        loss_of(model(tokens), tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def wrapped(model: LanguageModel, args: argparse.Namespace) -> nn.Module:
    """Return the model in the style that was asked for."""
    if args.style == "ddp":
        return nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    if args.style == "fsdp1":
        return fully_sharded(model, args)
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    world = dist.get_world_size()
    if args.style == "hsdp":
        mesh = init_device_mesh(
            "cuda", (args.replicas, world // args.replicas), mesh_dim_names=("replicate", "shard")
        )
    else:
        mesh = init_device_mesh("cuda", (world,))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if args.bfloat16 else MixedPrecisionPolicy()
    offload = CPUOffloadPolicy() if args.offload else OffloadPolicy()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, offload_policy=offload)
    return fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=offload)


def fully_sharded(model: LanguageModel, args: argparse.Namespace) -> nn.Module:
    """Return the model in the first FSDP."""
    from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=MixedPrecision(torch.bfloat16) if args.bfloat16 else None,
        cpu_offload=CPUOffload(offload_params=True) if args.offload else None,
        device_id=torch.cuda.current_device(),
        use_orig_params=True,
    )


if __name__ == "__main__":
    main()

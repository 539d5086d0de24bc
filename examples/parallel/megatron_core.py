"""Megatron-core: tensor, pipeline, context, expert and data parallel, with the distributed optimizer.

torchrun --nproc-per-node 8 examples/parallel/megatron_core.py --tensor 2 --pipeline 2 --context 2
torchrun --nproc-per-node 8 examples/parallel/megatron_core.py --tensor 2 --experts 8 --expert-parallel 4

The layers are Megatron-core's own (no TransformerEngine, no Apex). Its own attention and norms refuse to
share a sequence, so two small ones here stand in for them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_batch_on_this_cp_rank
from torch import nn
from torch.nn import functional

VOCABULARY = 8192

# Megatron-core 0.16 asks whether this is None, but defines it only where TransformerEngine is installed.
if not hasattr(moe_utils, "te_general_gemm"):
    moe_utils.te_general_gemm = None


class Norm(nn.LayerNorm):
    """A LayerNorm whose gradients Megatron adds up over the ranks that share a sequence."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float) -> None:
        super().__init__(hidden_size, eps, dtype=config.params_dtype, device="cuda")
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel


class Attention(nn.Module):
    """Causal attention to the keys and values of the whole sequence, wherever its parts are."""

    def __init__(self, *, pg_collection: ProcessGroupCollection, **_: Any) -> None:
        super().__init__()
        self.group = pg_collection.cp

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _mask: None, **__: Any
    ) -> torch.Tensor:
        length, batch, heads, width = query.shape
        if self.group.size() > 1:
            key, value = (
                tensor_parallel.gather_from_sequence_parallel_region(part, group=self.group)
                for part in (key, value)
            )
            mask = self.places(length)[self.group.rank(), :, None] >= self.places(length).flatten()
        else:
            mask = None
        mixed = functional.scaled_dot_product_attention(
            *(part.permute(1, 2, 0, 3) for part in (query, key, value)),
            attn_mask=mask,
            is_causal=mask is None,
        )
        return mixed.permute(2, 0, 1, 3).reshape(length, batch, heads * width)

    def places(self, length: int) -> torch.Tensor:
        """Return the places of each rank's tokens: rank r has the parts r and 2 * ranks - 1 - r."""
        parts = torch.arange(self.group.size() * length, device="cuda").view(2 * self.group.size(), -1)
        return torch.cat([parts[: self.group.size()], parts[self.group.size() :].flip(0)], dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tensor", type=int, default=1, help="ranks that share each layer")
    parser.add_argument("--pipeline", type=int, default=1, help="stages")
    parser.add_argument(
        "--chunks", type=int, default=1, help="of layers on each stage (interleaved schedule)"
    )
    parser.add_argument("--context", type=int, default=1, help="ranks that share each sequence")
    parser.add_argument("--experts", type=int, help="in each layer; none by default")
    parser.add_argument(
        "--expert-parallel", type=int, default=1, help="ranks that share the experts of a layer"
    )
    parser.add_argument("--recompute", action="store_true", help="keep the inputs of layers alone")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=4, help="micro-batches of a step")
    parser.add_argument("--batch-size", type=int, default=2, help="sequences of a micro-batch")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    args = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(
        args.tensor,
        args.pipeline,
        args.chunks if args.chunks > 1 else None,
        context_parallel_size=args.context,
        expert_model_parallel_size=args.expert_parallel,
        expert_tensor_parallel_size=1,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    config = configuration_of(args)
    chunks = [model_of(config, args, chunk) for chunk in range(args.chunks)]
    optimizer = optimizer_of(chunks)
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    config.no_sync_func = [chunk.no_sync for chunk in chunks] if args.chunks > 1 else chunks[0].no_sync
    step = get_forward_backward_func()
    for _ in range(args.steps):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        step(
            forward_step_func=forward_step,
            data_iterator=[batches(args) for _ in chunks],
            model=chunks,
            num_microbatches=args.accumulate,
            seq_length=args.length,
            micro_batch_size=args.batch_size,
        )
        optimizer.step()
    dist.destroy_process_group()


def configuration_of(args: argparse.Namespace) -> TransformerConfig:
    """Return the model's and the layout's settings."""
    return TransformerConfig(
        num_layers=args.layers,
        hidden_size=args.width,
        num_attention_heads=args.width // 64,
        add_bias_linear=False,
        gated_linear_unit=True,
        hidden_dropout=0.0,
        bf16=True,
        params_dtype=torch.bfloat16,
        tensor_model_parallel_size=args.tensor,
        sequence_parallel=args.tensor > 1,
        pipeline_model_parallel_size=args.pipeline,
        virtual_pipeline_model_parallel_size=args.chunks if args.chunks > 1 else None,
        pipeline_dtype=torch.bfloat16,
        deallocate_pipeline_outputs=True,
        context_parallel_size=args.context,
        num_moe_experts=args.experts,
        moe_router_topk=2,
        moe_token_dispatcher_type="alltoall",
        expert_model_parallel_size=args.expert_parallel,
        expert_tensor_parallel_size=1,
        recompute_granularity="full" if args.recompute else None,
        recompute_method="uniform" if args.recompute else None,
        recompute_num_layers=1 if args.recompute else None,
    )


def model_of(config: TransformerConfig, args: argparse.Namespace, chunk: int) -> DistributedDataParallel:
    """Return this rank's chunk of the model, whose gradients are split over the data-parallel ranks."""
    layer = get_gpt_layer_local_spec(args.experts)
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    layer.submodules.self_attention.submodules.core_attention = ModuleSpec(Attention)
    place = chunk if args.chunks > 1 else None
    layers = [layer] * get_num_layers_to_build(config, place)
    model = GPTModel(
        config,
        TransformerBlockSubmodules(layers, Norm),
        vocab_size=VOCABULARY,
        max_sequence_length=args.length,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=place),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=place),
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
        vp_stage=place,
    )
    settings = DistributedDataParallelConfig(
        use_distributed_optimizer=True, overlap_grad_reduce=True, grad_reduce_in_fp32=True
    )
    return DistributedDataParallel(
        config, settings, Float16Module(config, model.cuda()), disable_bucketing=chunk > 0
    )


def optimizer_of(chunks: list[DistributedDataParallel]) -> MegatronOptimizer:
    """Return Adam, whose state is split over the data-parallel ranks."""
    settings = OptimizerConfig(
        optimizer="adam", lr=1e-4, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True
    )
    return get_megatron_optimizer(settings, chunks)


def batches(args: argparse.Namespace) -> Iterator[dict[str, torch.Tensor]]:
    """Yield this rank's share of batches of random tokens."""
    while True:
        tokens = torch.randint(0, VOCABULARY, (args.batch_size, args.length), device="cuda")
        places = torch.arange(args.length, device="cuda").expand_as(tokens)
        yield get_batch_on_this_cp_rank({"tokens": tokens, "places": places})


def forward_step(
    data: Iterator[dict[str, torch.Tensor]], model: DistributedDataParallel
) -> tuple[torch.Tensor, Any]:
    """Run a chunk on a micro-batch; return its output and how the last stage's loss follows from it."""
    batch = next(data)
    output = model(batch["tokens"], batch["places"], None, labels=batch["tokens"])
    return output, lambda losses: (losses.float().mean(), {})


if __name__ == "__main__":
    main()

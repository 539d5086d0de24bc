"""Megatron-core's GPTModel with local layers: tensor or sequence parallel, or its own data parallel."""

import os
import sys

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

kind = sys.argv[1]
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl")
width = 1 if kind == "ddp" else torch.distributed.get_world_size()
parallel_state.initialize_model_parallel(width, 1)
model_parallel_cuda_manual_seed(1)
config = TransformerConfig(
    tensor_model_parallel_size=width,
    sequence_parallel=kind == "sequence",
    num_layers=4,
    hidden_size=512,
    num_attention_heads=8,
    use_cpu_initialization=True,
    bf16=True,
    params_dtype=torch.bfloat16,
    pipeline_dtype=torch.bfloat16,
)
layers = get_gpt_layer_local_spec(normalization="LayerNorm")
model = GPTModel(config, layers, vocab_size=8192, max_sequence_length=512).cuda().bfloat16()
if kind == "ddp":
    settings = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
    model = DistributedDataParallel(config, settings, model)
    chosen = OptimizerConfig(optimizer="adam", lr=1e-4, bf16=True, use_distributed_optimizer=True)
    optimizer = get_megatron_optimizer(chosen, [model])
else:
    optimizer = torch.optim.Adam(model.parameters())
places = torch.arange(512, device="cuda").expand(4, -1)
mask = torch.ones(4, 1, 512, 512, dtype=torch.bool, device="cuda").triu(1)
for _ in range(5):
    tokens = torch.randint(0, 8192, (4, 512), device="cuda")
    if kind == "ddp":
        model.zero_grad_buffer()
    model(tokens, places, mask, labels=tokens).float().mean().backward()
    if kind == "ddp":
        model.finish_grad_sync()
    optimizer.step()
    optimizer.zero_grad()

"""Train a model of Llama 3's 70B shape with FSDP2 on one server of 8 GPUs, in bfloat16, with random tokens.

torchrun --nproc-per-node 8 train_llama70b_fsdp2.py
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


def build(layers: int) -> LlamaForCausalLM:
    """A sharded model whose parameters have not been initialized on the host."""
    config = LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=layers,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=8192,
        rope_theta=500000.0,
        use_cache=False,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.gradient_checkpointing_enable({"use_reentrant": False})

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    fully_shard(model.model.embed_tokens, mesh=mesh)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard([model.model.norm, model.lm_head], mesh=mesh)
    fully_shard(model, mesh=mesh)

    model.to_empty(device="cuda")
    model.model.rotary_emb = LlamaRotaryEmbedding(config).to("cuda")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02) if parameter.dim() > 1 else parameter.fill_(1.0)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")

    model = build(arguments.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step in range(arguments.steps):
        tokens = torch.randint(model.config.vocab_size, (arguments.batch, arguments.sequence), device="cuda")
        logits = model(tokens).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        del logits, loss

    gib = torch.cuda.max_memory_allocated() / 2**30, torch.cuda.max_memory_reserved() / 2**30
    print(f"rank {dist.get_rank()}: peak allocated {gib[0]:.2f} GiB, reserved {gib[1]:.2f} GiB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

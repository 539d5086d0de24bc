"""Language models of the hub's configurations with random weights, sequences of 128 tokens, as published."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from workloads.job import Job, Scale
from workloads.loader import loader

_INPUTS = ("input_ids", "attention_mask", "labels")

# The models' public configurations: the configuration's class, and what departs from its defaults.
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai-community/gpt2": ("GPT2Config", {}),
    "distilbert/distilgpt2": ("GPT2Config", {"n_layer": 6}),
    "cerebras/Cerebras-GPT-111M": (
        "GPT2Config",
        {
            "n_positions": 2048,
            "n_layer": 10,
            "n_head": 12,
            "n_embd": 768,
            "n_inner": 3072,
            "activation_function": "gelu",
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
    ),
    "EleutherAI/gpt-neo-125M": (
        "GPTNeoConfig",
        {
            "hidden_size": 768,
            "num_layers": 12,
            "num_heads": 12,
            "intermediate_size": 3072,
            "window_size": 256,
            "attention_types": [[["global", "local"], 6]],
        },
    ),
    "facebook/opt-125m": (
        "OPTConfig",
        {
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "ffn_dim": 3072,
            "num_attention_heads": 12,
            "word_embed_proj_dim": 768,
            "attention_dropout": 0.0,
        },
    ),
    "facebook/opt-350m": (
        "OPTConfig",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "ffn_dim": 4096,
            "num_attention_heads": 16,
            "word_embed_proj_dim": 512,
            "do_layer_norm_before": False,
            "attention_dropout": 0.0,
        },
    ),
    "T5-small": (
        "T5Config",
        {
            "vocab_size": 32128,
            "d_model": 512,
            "d_kv": 64,
            "d_ff": 2048,
            "num_layers": 6,
            "num_heads": 8,
            "decoder_start_token_id": 0,
        },
    ),
    "t5-base": (
        "T5Config",
        {
            "vocab_size": 32128,
            "d_model": 768,
            "d_kv": 64,
            "d_ff": 3072,
            "num_layers": 12,
            "num_heads": 12,
            "decoder_start_token_id": 0,
        },
    ),
    "EleutherAI/pythia-1b": (
        "GPTNeoXConfig",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 8,
            "intermediate_size": 8192,
            "vocab_size": 50304,
            "max_position_embeddings": 2048,
            "rotary_pct": 0.25,
            "tie_word_embeddings": False,
        },
    ),
    "Qwen/Qwen3-0.6B": (
        "Qwen3Config",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3072,
            "vocab_size": 151936,
            "max_position_embeddings": 40960,
            "tie_word_embeddings": True,
        },
    ),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": (
        "Qwen2Config",
        {
            "hidden_size": 1536,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "intermediate_size": 8960,
            "vocab_size": 151936,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": False,
        },
    ),
    "Qwen/Qwen3-4B": (
        "Qwen3Config",
        {
            "hidden_size": 2560,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 9728,
            "vocab_size": 151936,
            "max_position_embeddings": 40960,
            "tie_word_embeddings": True,
        },
    ),
    "meta-llama/Llama-3.2-3B-Instruct": (
        "LlamaConfig",
        {
            "hidden_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 8192,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
        },
    ),
    "google/gemma-2-2b-it": (
        "Gemma2Config",
        {
            "hidden_size": 2304,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "intermediate_size": 9216,
            "vocab_size": 256000,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
    ),
}

# What a cut-down configuration is made of, by the names that most families have, and by those of the others.
_SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 512,
}
_SMALL_BY_CLASS: dict[str, dict[str, Any]] = {
    "GPT2Config": {"n_inner": 128},
    "GPTNeoConfig": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    "OPTConfig": {"ffn_dim": 128, "word_embed_proj_dim": 64},
    "T5Config": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    "Qwen3Config": {"num_key_value_heads": 2, "head_dim": 16},
    "Qwen2Config": {"num_key_value_heads": 2},
    "LlamaConfig": {"num_key_value_heads": 2, "head_dim": 16},
    "Gemma2Config": {"num_key_value_heads": 2, "head_dim": 16},
}


def build(name: str, scale: Scale) -> torch.nn.Module:
    """The model on the host, in float32."""
    import transformers

    transformers.logging.set_verbosity_error()
    class_name, numbers = TRANSFORMERS[name]
    if scale.divisor != 1:
        numbers = {**numbers, **_SMALL, **_SMALL_BY_CLASS.get(class_name, {})}
    config = getattr(transformers, class_name)(**numbers)
    auto = (
        transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    )
    model: torch.nn.Module = auto.from_config(config, torch_dtype=torch.float32)
    return model


def host_batch(job: Job, scale: Scale, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, and the mask of a batch of lines of unequal length: all but the first end in padding.

    A mask without any zero is left away by transformers, which reads it to find out, and no mask of the
    whole batch is then made.
    """
    shape = (scale.count(job.batch), scale.count(job.tokens, at_least=8))
    ids = torch.randint(vocabulary, shape)
    mask = torch.ones_like(ids)
    mask[1:, -1] = 0
    return ids, mask


def train(
    job: Job,
    model: torch.nn.Module,
    make_optimizer: Callable[[Any], torch.optim.Optimizer],
    batch: tuple[torch.Tensor, torch.Tensor],
    device: torch.device,
    forward_mode: Callable[[], AbstractContextManager[Any]],
    after_iteration: Callable[[int], None],
) -> None:
    """The published loop: the optimizer is made before the model moves, the last outputs live into the next
    forward pass.
    """
    if job.optimizer_built != "after":
        optimizer = make_optimizer(model.parameters())
    model.to(device)
    if job.optimizer_built == "after":
        optimizer = make_optimizer(model.parameters())
    model.train()
    ids, mask = batch
    # What the last iteration held of its batch on the device is let go here.
    for iteration, inputs in enumerate(loader((ids, mask, ids), job.iterations)):
        if job.zero_grad == 0:
            optimizer.zero_grad()
        inputs = dict(zip(_INPUTS, (tensor.to(device) for tensor in inputs), strict=True))
        with forward_mode():
            outputs = model(**inputs)
        loss = outputs.loss
        if job.zero_grad == 1:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if job.zero_grad == 2:
            optimizer.zero_grad()
        after_iteration(iteration)

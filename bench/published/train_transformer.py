"""One published transformer run as its authors made it: the configuration of the hub, random weights, 128 tokens.

    python train_transformer.py MODEL OPTIMIZER BATCH ZERO_GRAD_MODE

ZERO_GRAD_MODE: 0 at the start of an iteration, 1 between forward and backward, 2 after the step.
"""

import sys

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    Gemma2Config,
    GPT2Config,
    GPTNeoConfig,
    LlamaConfig,
    OPTConfig,
    Qwen2Config,
    Qwen3Config,
    T5Config,
)

TOKENS = 128
ITERATIONS = 4
# The numbers of the models' public configurations.
CONFIGS = {
    "openai-community/gpt2": lambda: GPT2Config(),
    "distilbert/distilgpt2": lambda: GPT2Config(n_layer=6),
    "cerebras/Cerebras-GPT-111M": lambda: GPT2Config(
        n_positions=2048, n_layer=10, n_head=12, n_embd=768, n_inner=3072, activation_function="gelu",
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    ),
    "EleutherAI/gpt-neo-125M": lambda: GPTNeoConfig(
        hidden_size=768, num_layers=12, num_heads=12, intermediate_size=3072, window_size=256,
        attention_types=[[["global", "local"], 6]],
    ),
    "facebook/opt-125m": lambda: OPTConfig(
        hidden_size=768, num_hidden_layers=12, ffn_dim=3072, num_attention_heads=12, word_embed_proj_dim=768,
        attention_dropout=0.0,
    ),
    "facebook/opt-350m": lambda: OPTConfig(
        hidden_size=1024, num_hidden_layers=24, ffn_dim=4096, num_attention_heads=16, word_embed_proj_dim=512,
        do_layer_norm_before=False, attention_dropout=0.0,
    ),
    "T5-small": lambda: T5Config(
        vocab_size=32128, d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, decoder_start_token_id=0
    ),
    "t5-base": lambda: T5Config(
        vocab_size=32128, d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0
    ),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": lambda: Qwen2Config(
        hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, intermediate_size=8960,
        vocab_size=151936, max_position_embeddings=131072, tie_word_embeddings=False,
    ),
    "Qwen/Qwen3-4B": lambda: Qwen3Config(
        hidden_size=2560, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
        intermediate_size=9728, vocab_size=151936, max_position_embeddings=40960, tie_word_embeddings=True,
    ),
    "meta-llama/Llama-3.2-3B-Instruct": lambda: LlamaConfig(
        hidden_size=3072, num_hidden_layers=28, num_attention_heads=24, num_key_value_heads=8, head_dim=128,
        intermediate_size=8192, vocab_size=128256, max_position_embeddings=131072, tie_word_embeddings=True,
    ),
    "google/gemma-2-2b-it": lambda: Gemma2Config(
        hidden_size=2304, num_hidden_layers=26, num_attention_heads=8, num_key_value_heads=4, head_dim=256,
        intermediate_size=9216, vocab_size=256000, max_position_embeddings=8192, tie_word_embeddings=True,
    ),
}  # fmt: skip


def main():
    name, optimizer_name, batch, mode = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    transformers.logging.set_verbosity_error()
    config = CONFIGS[name]()
    family = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = family.from_config(config, torch_dtype=torch.float32)
    if optimizer_name == "Adafactor":
        optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-3)
    else:
        optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=1e-3)
    model.to("cuda")
    model.train()
    ids = torch.zeros(batch, TOKENS, dtype=torch.long)
    mask = torch.ones_like(ids)
    for _ in range(ITERATIONS):
        if mode == 0:
            optimizer.zero_grad()
        inputs = {"input_ids": ids.cuda(), "attention_mask": mask.cuda(), "labels": ids.cuda()}
        outputs = model(**inputs)
        loss = outputs.loss
        if mode == 1:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if mode == 2:
            optimizer.zero_grad()


if __name__ == "__main__":
    main()

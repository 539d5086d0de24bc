"""torchao on a Llama: its low-bit optimizers, float8 training, quantization-aware training."""

import sys

import torch
from synthetic import llama_config
from transformers import LlamaForCausalLM

what = sys.argv[1]
config = llama_config(vocab_size=4096, intermediate_size=704)
model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).cuda()
if what == "float8":
    from torchao.float8 import convert_to_float8_training

    convert_to_float8_training(model, module_filter_fn=lambda _, name: "lm_head" not in name)
    optimizer = torch.optim.AdamW(model.parameters())
elif what == "qat":
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.qat import QATConfig

    base = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4)
    quantize_(model, QATConfig(base, step="prepare"))
    optimizer = torch.optim.AdamW(model.parameters())
else:
    from torchao import optim

    optimizer = getattr(optim, what)(model.parameters(), lr=1e-4)
for _ in range(5):
    tokens = torch.randint(0, 4096, (2, 512), device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item(), flush=True)

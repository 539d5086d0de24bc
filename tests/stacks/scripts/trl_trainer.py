"""TRL's trainers on a Llama and text made here."""

import sys

import torch
from datasets import Dataset
from synthetic import WORDS, llama_config, tokenizer
from transformers import LlamaForCausalLM, LlamaForSequenceClassification

kind, loss = sys.argv[1], sys.argv[2:]
config = llama_config()
model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
settings = {
    "output_dir": "out",
    "per_device_train_batch_size": 4,
    "max_steps": 6,
    "bf16": True,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
}
prompts = ["the quick fox"] * 64

if kind == "sft":
    from trl import SFTConfig, SFTTrainer

    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(max_length=256, loss_type=loss[0], **settings),
        train_dataset=Dataset.from_dict({"text": [WORDS] * 64}),
        processing_class=tokenizer(),
    )
elif kind == "dpo":
    from trl import DPOConfig, DPOTrainer

    pairs = {"prompt": prompts, "chosen": [WORDS] * 64, "rejected": [WORDS[:900]] * 64}
    trainer = DPOTrainer(
        model=model,
        ref_model=LlamaForCausalLM._from_config(config, dtype=torch.bfloat16),
        args=DPOConfig(max_length=256, **settings),
        train_dataset=Dataset.from_dict(pairs),
        processing_class=tokenizer(),
    )
elif kind == "kto":
    from trl import KTOConfig, KTOTrainer

    judged = {"prompt": prompts, "completion": [WORDS] * 64, "label": [True, False] * 32}
    trainer = KTOTrainer(
        model=model,
        ref_model=LlamaForCausalLM._from_config(config, dtype=torch.bfloat16),
        args=KTOConfig(max_length=256, **settings),
        train_dataset=Dataset.from_dict(judged),
        processing_class=tokenizer(),
    )
elif kind == "reward":
    from trl import RewardConfig, RewardTrainer

    trainer = RewardTrainer(
        model=LlamaForSequenceClassification(llama_config(num_labels=1)).to(torch.bfloat16),
        args=RewardConfig(max_length=256, **settings),
        train_dataset=Dataset.from_dict({"chosen": [WORDS[:300]] * 64, "rejected": [WORDS[:200]] * 64}),
        processing_class=tokenizer(),
    )
elif kind == "grpo":
    from trl import GRPOConfig, GRPOTrainer

    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
        args=GRPOConfig(num_generations=4, max_completion_length=32, **settings),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer(),
    )
else:
    sys.exit(f"unknown trainer {kind}")
trainer.train()

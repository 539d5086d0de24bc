"""Unsloth's fast model with LoRA, under TRL's trainer as its notebooks have it."""

from unsloth import FastLanguageModel  # first: it changes transformers and trl

# isort: split
import torch
from datasets import Dataset
from synthetic import WORDS
from trl import SFTConfig, SFTTrainer

model, tokenizer = FastLanguageModel.from_pretrained(
    "model", max_seq_length=512, load_in_4bit=False, dtype=torch.bfloat16, local_files_only=True
)
model = FastLanguageModel.get_peft_model(
    model,
    r=16,
    lora_alpha=16,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    use_gradient_checkpointing="unsloth",
)
arguments = SFTConfig(
    output_dir="out",
    per_device_train_batch_size=2,
    max_steps=6,
    max_length=512,
    optim="adamw_8bit",
    dataset_text_field="text",
    logging_steps=1,
    save_strategy="no",
    report_to=[],
)
data = Dataset.from_dict({"text": [WORDS] * 64})
SFTTrainer(model=model, processing_class=tokenizer, train_dataset=data, args=arguments).train()

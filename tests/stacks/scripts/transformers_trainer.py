"""Hugging Face Trainer on a Llama: full training, LoRA or QLoRA, with DeepSpeed, Liger, torch.compile."""

import argparse

import torch
from synthetic import Tokens, llama_config
from transformers import AutoModelForCausalLM, LlamaForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--optim", default="adamw_torch_fused")
parser.add_argument("--adapter", choices=["none", "lora", "qlora"], default="none")
parser.add_argument("--saved", action="store_true", help="load a saved model with device_map=cuda")
parser.add_argument("--bf16-weights", action="store_true")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--liger", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--deepspeed")
parser.add_argument("--evaluate", action="store_true")
options = parser.parse_args()

config = llama_config(hidden_size=512, intermediate_size=1376, vocab_size=8192)
dtype = torch.bfloat16 if options.bf16_weights or options.adapter != "none" else torch.float32
if options.saved or options.adapter == "qlora":
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained("model")
    quantization = None
    if options.adapter == "qlora":
        from transformers import BitsAndBytesConfig

        quantization = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
    model = AutoModelForCausalLM.from_pretrained(
        "model", dtype=torch.bfloat16, device_map="cuda", quantization_config=quantization
    )
else:
    model = LlamaForCausalLM(config).to(dtype)
if options.adapter != "none":
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if options.adapter == "qlora":
        model = prepare_model_for_kbit_training(model)
    else:
        model.enable_input_require_grads()
    model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))

arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    max_steps=8,
    bf16=True,
    gradient_checkpointing=options.checkpointing,
    optim=options.optim,
    use_liger_kernel=options.liger,
    torch_compile=options.compile,
    deepspeed=options.deepspeed,
    eval_strategy="steps" if options.evaluate else "no",
    eval_steps=4,
    per_device_eval_batch_size=16,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
)
data = Tokens(config.vocab_size)
Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data).train()

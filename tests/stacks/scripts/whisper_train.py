"""Whisper, OpenAI's own or of transformers, on random spectrograms."""

import sys

import torch
from torch.nn import functional

if sys.argv[1] == "openai":
    from whisper.model import ModelDimensions, Whisper

    model = Whisper(ModelDimensions(80, 1500, 128, 4, 2, 5000, 448, 128, 4, 2)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)
    for _ in range(6):
        tokens = torch.randint(0, 5000, (4, 64), device="cuda")
        with torch.autocast("cuda", torch.float16):
            found = model(torch.randn(4, 80, 3000, device="cuda"), tokens[:, :-1])
            loss = functional.cross_entropy(found.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
else:
    from transformers import (
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
        WhisperConfig,
        WhisperForConditionalGeneration,
    )

    config = WhisperConfig(
        vocab_size=5000,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config)
    data = [
        {"input_features": torch.randn(80, 3000), "labels": torch.randint(5, 5000, (64,))} for _ in range(64)
    ]
    arguments = Seq2SeqTrainingArguments(
        output_dir="out",
        per_device_train_batch_size=4,
        max_steps=6,
        fp16=True,
        gradient_checkpointing=True,
        save_strategy="no",
        report_to=[],
    )
    Seq2SeqTrainer(model=model, args=arguments, train_dataset=data).train()

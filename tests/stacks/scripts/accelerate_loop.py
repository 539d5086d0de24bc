"""Accelerate's loop as its examples write it: accumulation, clipping, a scheduler, evaluation by epoch."""

import torch
from accelerate import Accelerator
from synthetic import Tokens
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
config = BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=8, intermediate_size=1024)
model = BertForSequenceClassification(config)
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)


def collate(rows):
    tokens = torch.stack([row["input_ids"] for row in rows])
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens[:, 0] % 2}


train = torch.utils.data.DataLoader(Tokens(config.vocab_size), batch_size=8, shuffle=True, collate_fn=collate)
test = torch.utils.data.DataLoader(Tokens(config.vocab_size), batch_size=16, collate_fn=collate)
schedule = get_linear_schedule_with_warmup(optimizer, 2, 20)
model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
for _ in range(2):
    model.train()
    for batch in train:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        for batch in test:
            found = model(**batch).logits.argmax(-1)
            accelerator.gather_for_metrics((found, batch["labels"]))

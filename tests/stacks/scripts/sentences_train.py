"""sentence-transformers: its trainer with a contrastive loss on a small BERT."""

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
)
from sentence_transformers.sentence_transformer import modules
from synthetic import WORDS, tokenizer
from transformers import BertConfig, BertModel

config = BertConfig(
    vocab_size=1024, hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=512
)
BertModel(config).save_pretrained("bert")
tokenizer().save_pretrained("bert")
word = modules.Transformer("bert", max_seq_length=128)
model = SentenceTransformer(modules=[word, modules.Pooling(config.hidden_size)])
data = Dataset.from_dict({"anchor": [WORDS[:300]] * 64, "positive": [WORDS[200:600]] * 64})
arguments = SentenceTransformerTrainingArguments(
    output_dir="out", max_steps=6, per_device_train_batch_size=8, bf16=True, save_strategy="no", report_to=[]
)
SentenceTransformerTrainer(
    model=model, args=arguments, train_dataset=data, loss=losses.MultipleNegativesRankingLoss(model)
).train()

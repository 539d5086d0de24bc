"""Models, tokens, text and pictures from nothing: no hub, no download."""

from __future__ import annotations

from pathlib import Path

import torch

WORDS = " ".join(f"word{i % 97} the quick {i} fox" for i in range(80))


def tokenizer(vocabulary: int = 1000):
    """A byte-pair tokenizer trained on the spot, with a chat template and special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>", "<pad>"]
    made.train_from_iterator([WORDS], trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=special))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    fast.chat_template = (
        "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<s>assistant: {% endif %}"
    )
    return fast


def llama_config(**changes):
    """A Llama of four narrow layers."""
    from transformers import LlamaConfig

    shape = {
        "hidden_size": 256,
        "intermediate_size": 688,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 1024,
        "max_position_embeddings": 2048,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 3,
    }
    return LlamaConfig(**{**shape, **changes})


def save_llama(folder: str | Path, **changes) -> None:
    """Write a Llama with random weights and its tokenizer, as a hub's folder has them."""
    from transformers import LlamaForCausalLM

    LlamaForCausalLM(llama_config(**changes)).to(torch.bfloat16).save_pretrained(folder)
    tokenizer().save_pretrained(folder)


class Tokens(torch.utils.data.Dataset):
    """Random tokens of one length, with labels."""

    def __init__(self, vocabulary: int = 1024, length: int = 256, count: int = 64):
        self.vocabulary, self.length, self.count = vocabulary, length, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(5, self.vocabulary, (self.length,), generator=generator)
        return {"input_ids": tokens, "labels": tokens.clone(), "attention_mask": torch.ones_like(tokens)}


class Pictures(torch.utils.data.Dataset):
    """Random pictures, each with a class."""

    def __init__(self, size: int = 64, classes: int = 10, count: int = 128):
        self.size, self.classes, self.count = size, classes, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3, self.size, self.size, generator=generator), index % self.classes

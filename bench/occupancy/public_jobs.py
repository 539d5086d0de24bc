"""Does anew what public traces recorded: the script that ``public.py`` captures on a phantom GPU.

It takes names of ``JOBS``: models of which TraceLens has traces (``tests/traces/h100``). Each trace recorded
one call, by its own metadata with weights in bfloat16, in inference mode, and warmed up. The models are made
from their configurations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from measured_jobs import marked
from transformers import (
    BertConfig,
    BertLMHeadModel,
    Owlv2Config,
    Owlv2ForObjectDetection,
    PreTrainedModel,
    Qwen2Config,
    Qwen2Model,
    TimesformerConfig,
    TimesformerForVideoClassification,
    ViTConfig,
    ViTModel,
)

_WARM_UPS = 5


def _vit(device: torch.device) -> Callable[[], object]:
    model = _on(ViTModel(ViTConfig()), device)
    images = torch.randn(4, 3, 224, 224, device=device, dtype=torch.bfloat16)
    return lambda: model(pixel_values=images)


def _qwen(device: torch.device) -> Callable[[], object]:
    config = Qwen2Config(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=16,
        rope_theta=1e6,
        tie_word_embeddings=True,
    )
    model = _on(Qwen2Model(config), device)
    tokens = torch.ones(16, 559, device=device, dtype=torch.int64)
    mask = torch.ones_like(tokens)
    return lambda: model(input_ids=tokens, attention_mask=mask)


def _timesformer(device: torch.device) -> Callable[[], object]:
    model = _on(TimesformerForVideoClassification(TimesformerConfig(num_labels=400)), device)
    frames = torch.randn(1, 128, 3, 224, 224)
    return lambda: model(pixel_values=frames.to(device, torch.bfloat16))


def _bert(device: torch.device) -> Callable[[], object]:
    config = BertConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048)
    model = _on(BertLMHeadModel(config), device)
    tokens = torch.ones(1, 141, device=device, dtype=torch.int64)
    kinds, mask = torch.zeros_like(tokens), torch.ones_like(tokens)
    return lambda: model(input_ids=tokens, token_type_ids=kinds, attention_mask=mask)


def _owlv2(device: torch.device) -> Callable[[], object]:
    text = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
    vision = {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 1008,
        "patch_size": 14,
    }
    config = Owlv2Config(text_config=text, vision_config=vision, projection_dim=768)
    model = _on(Owlv2ForObjectDetection(config), device)

    def detect() -> None:
        # The pipeline of transformers asks for one label at a time, and goes on with the answer on the host.
        for _ in range(5):
            model(
                input_ids=torch.ones(1, 5, dtype=torch.int64).to(device),
                attention_mask=torch.ones(1, 5, dtype=torch.int64).to(device),
                pixel_values=torch.randn(1, 3, 1008, 1008).to(device, torch.bfloat16),
            )

    return detect


JOBS: dict[str, Callable[[torch.device], Callable[[], object]]] = {
    "vit": _vit,
    "qwen": _qwen,
    "timesformer": _timesformer,
    "bert": _bert,
    "owlv2": _owlv2,
}


def _on(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    return model.to(device, torch.bfloat16).eval()


def main() -> None:
    device = torch.device("cuda")
    for name in sys.argv[1:]:
        call = JOBS[name](device)
        with torch.inference_mode():
            marked(call, _WARM_UPS)


if __name__ == "__main__":
    main()

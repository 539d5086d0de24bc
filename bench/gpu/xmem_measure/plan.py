"""What a visit measures, most valuable first. The plan is the same on every machine; no torch here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, Literal

from workloads.job import Job, Precision
from workloads.program_names import PROGRAM_NAMES

Part = Literal[
    "device",
    "training",
    "least_memory",
    "operators",
    "convolutions",
    "occupancy",
    "programs",
    "samples",
    "libraries",
    "nsight",
]

PARTS: dict[Part, str] = {
    "device": "the device as CUDA, cuDNN and the driver see it",
    "training": "peaks and allocator history of training jobs",
    "least_memory": "the least memory under which a job finishes",
    "operators": "what each operator allocates",
    "convolutions": "workspaces of convolutions, each alone",
    "occupancy": "launches of forward passes and training steps",
    "programs": "peaks and allocator history of programs that use one thing each",
    "samples": "what every operator of PyTorch requests, on PyTorch's own samples",
    "libraries": "work areas of cuFFT, cuSOLVER and cuSPARSE, and requests of recurrent layers",
    "nsight": "what the hardware counted during them",
}

# How many runs of a part share the device: no neighbour changes what they ask the allocator for.
TOGETHER: dict[Part, int] = {"programs": 6, "samples": 8, "libraries": 12}

# Part of every key: raised when a run of a part no longer means what it meant.
_REVISION: dict[Part, int] = dict.fromkeys(PARTS, 1)

# Guesses for a data-center GPU; a visit corrects them by what its own runs take.
_SECONDS: dict[Part, float] = {
    "device": 6,
    "training": 3.5,
    "least_memory": 14,
    "operators": 4,
    "convolutions": 4,
    "occupancy": 3,
    "programs": 2,
    "samples": 20,
    "libraries": 20,
    "nsight": 30,
}

_CNNS = (
    "VGG16",
    "MobileNetV2",
    "ResNet101",
    "ConvNeXtTiny",
    "RegNetY400MF",
    "MnasNet",
    "VGG19",
    "MobeNetV3Large",
    "RegNetX400MF",
    "ResNet152",
    "ConvNeXtBase",
    "MobeNetV3Small",
)
_TRANSFORMERS = (
    "openai-community/gpt2",
    "T5-small",
    "facebook/opt-350m",
    "distilbert/distilgpt2",
    "EleutherAI/gpt-neo-125M",
    "t5-base",
    "cerebras/Cerebras-GPT-111M",
    "facebook/opt-125m",
)
# Batches that their optimizer states leave room for on a card of 80 GB.
_LARGE_TRANSFORMERS = (
    "Qwen/Qwen3-0.6B",
    "EleutherAI/pythia-1b",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "google/gemma-2-2b-it",
    "meta-llama/Llama-3.2-3B-Instruct",
    "Qwen/Qwen3-4B",
)
_CNN_OPTIMIZERS = ("AdamW", "SGD", "Adam", "RMSprop", "Adagrad")
_TRANSFORMER_OPTIMIZERS = ("AdamW", "SGD", "Adam", "Adafactor")
_CNN_BATCHES = (400, 200, 600, 300, 500, 700)
_TRANSFORMER_BATCHES = (20, 5, 40, 10, 30, 55)
# Turns through all models.
_TURNS = 6
_CLASSIFIERS = (
    "ResNet-50",
    "ViT-S",
    "BERT",
    "GPT-2",
    "VGG-16",
    "LSTM",
    "ConvNeXt-B",
    "Swin-S",
    "DistilBERT",
    "ViT-T",
    "MaxViT-T",
    "ResNet-18",
    "CLIP ViT-B/32",
    "AlexNet",
    "RNN",
    "ResNet-34",
    "VGG-11",
    "CLIP ViT-B/16",
    "VGG-13",
    "LeNet",
)


@dataclass(frozen=True)
class Run:
    """One thing to measure.

    Attributes:
        part: Which part of the kit.
        config: What the part is asked for; JSON values.
        needs: Packages without which it cannot run; ``gpu`` where a dry run has nothing to show, ``ncu``.
    """

    part: Part
    config: Mapping[str, Any]
    needs: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """A first guess at how long it takes."""
        large = any(name in str(self.config.get("model")) for name in ("-1b", "1.5B", "2b-it", "3B", "4B"))
        return _SECONDS[self.part] * (4 if large else 1)

    def key(self, environment: Mapping[str, str]) -> str:
        """Names this run with these versions on this GPU, in any visit: nothing is done twice under a key."""
        identity = {
            "part": self.part,
            "revision": _REVISION[self.part],
            "config": dict(self.config),
            "environment": dict(environment),
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.part} {' '.join(f'{name}={value}' for name, value in self.config.items())}".rstrip()


def plan() -> list[Run]:
    """All runs, in order."""
    training, least = list(_training()), list(_least_memory())
    first, later = training[:20], training[20:]
    ordered = chain(
        [Run("device", {})],
        _mixed((first, 3), (least[:6], 1)),
        list(_operators())[:6],
        _mixed(
            (later, 6),
            (least[6:], 1),
            (list(_convolutions()), 2),
            (list(_operators())[6:], 1),
            (list(_occupancy()), 2),
        ),
        _programs(),
        _libraries(),
        _samples(),
        _nsight(),
    )
    # Rounds of the design may meet again.
    return list({run.key({}): run for run in ordered}.values())


def _mixed(*queues: tuple[list[Run], int]) -> Iterator[Run]:
    """Some of each queue in turn, until all are empty."""
    rounds = [
        [queue[begin : begin + share] for begin in range(0, len(queue), share)] for queue, share in queues
    ]
    for turn in zip_longest(*rounds, fillvalue=[]):
        yield from chain(*turn)


def _training() -> Iterator[Run]:
    """Every model once; then other optimizers, batches and places of zero_grad; then precision and layout."""
    for turn in range(_TURNS):
        for model in _models():
            yield _train(_job(model, turn, zero_grad=turn % 3))
        if turn == 0:
            yield from _large_models()
        if turn == 1:
            yield from _precisions()


def _large_models() -> Iterator[Run]:
    for index, model in enumerate(_LARGE_TRANSFORMERS):
        for optimizer, batch in (("SGD", 1), ("Adafactor", 1), ("SGD", 4 + index % 3)):
            yield _train(Job("transformer", model, optimizer, batch))


def _precisions() -> Iterator[Run]:
    """The jobs of the first turn again, in another precision or layout."""
    precisions: tuple[Precision, ...] = ("bf16", "ieee", "tf32")
    for precision in precisions:
        for model in _models():
            yield _train(_job(model, 0, precision=precision))
    for precision in ("default", "bf16"):
        for model in _CNNS:
            yield _train(_job(model, 0, precision=precision, channels_last=True))


def _models() -> list[str]:
    """Both families in turn."""
    return [name for pair in zip_longest(_CNNS, _TRANSFORMERS) for name in pair if name]


def _job(model: str, turn: int, **settings: Any) -> Job:
    """A job of a model: neighbours have other optimizers and batches, and so has the model in other turns."""
    if model in _CNNS:
        index = _CNNS.index(model) + turn
        optimizer, batch = _CNN_OPTIMIZERS[index % 5], _CNN_BATCHES[index % 6]
        return Job("cnn", model, optimizer, batch, **settings)
    # Lists of even length would go in step: one of them skips.
    index = _TRANSFORMERS.index(model) + turn
    optimizer = _TRANSFORMER_OPTIMIZERS[(index + index // 12) % 4]
    batch = _TRANSFORMER_BATCHES[index % 6]
    return Job("transformer", model, optimizer, batch, **settings)


def _train(job: Job) -> Run:
    return Run("training", job.to_json(), _needs(job))


def _needs(job: Job) -> tuple[str, ...]:
    return ("torchvision",) if job.family == "cnn" else ("transformers",)


def _least_memory() -> Iterator[Run]:
    """Whole jobs of five iterations, of the kinds that the training part begins with."""
    for turn in range(2):
        for model in _models():
            job = _job(model, turn, iterations=5)
            yield Run("least_memory", job.to_json(), _needs(job))


def _operators() -> Iterator[Run]:
    for precision in ("default", "bf16"):
        for model in _models():
            job = _job(model, 0, precision=precision, iterations=2)
            yield Run("operators", job.to_json(), _needs(job))


def _convolutions() -> Iterator[Run]:
    settings: tuple[tuple[Precision, bool], ...] = (
        ("default", False),
        ("ieee", False),
        ("bf16", False),
        ("default", True),
        ("bf16", True),
    )
    for batches in ((200, 400), (600,)):
        for precision, channels_last in settings:
            for model in _CNNS:
                for batch in batches:
                    config = {
                        "model": model,
                        "batch": batch,
                        "precision": precision,
                        "channels_last": channels_last,
                    }
                    yield Run("convolutions", config, ("torchvision",))


def _occupancy() -> Iterator[Run]:
    for batch, length in ((64, 128), (16, 32), (128, 512)):
        for model in _CLASSIFIERS:
            yield _forward_pass("occupancy", model, batch, length)

    for job in _profiled_jobs():
        yield Run("occupancy", job.to_json(), _needs(job))
    for name in PROGRAM_NAMES:
        if name.startswith(("attention-", "layer-", "decoder-", "loss-", "fp8", "grouped")):
            yield Run("occupancy", {"program": name}, ("gpu",))


def _profiled_jobs() -> Iterator[Job]:
    """Training steps: their backward passes launch kernels of their own."""
    precisions: tuple[Precision, ...] = ("default", "bf16")
    for precision in precisions:
        for model in ("VGG16", "ResNet101", "MobileNetV2", "ConvNeXtTiny", "RegNetY400MF"):
            for channels_last in (False, True):
                yield Job(
                    "cnn",
                    model,
                    "AdamW",
                    200,
                    precision=precision,
                    channels_last=channels_last,
                    iterations=3,
                )
        for model in ("openai-community/gpt2", "T5-small", "facebook/opt-125m", "Qwen/Qwen3-0.6B"):
            yield Job("transformer", model, "AdamW", 10, precision=precision, iterations=3)


def _programs() -> Iterator[Run]:
    for name in PROGRAM_NAMES:
        needs = {"lora": ("peft", "transformers"), "timm-vit": ("timm",)}.get(name, ())
        if name in ("mixture-of-experts", "generation", "trainer"):
            needs = ("transformers",)
        yield Run("programs", {"program": name}, ("gpu", *needs))


_SAMPLE_SHARES = 8


def _samples() -> Iterator[Run]:
    for dtype, sides in (
        ("float32", "large"),
        ("bfloat16", "large"),
        ("int64", "large"),
        ("float32", "small"),
        ("complex64", "small"),
    ):
        for share in range(_SAMPLE_SHARES):
            config = {"dtype": dtype, "sides": sides, "share": share, "shares": _SAMPLE_SHARES}
            yield Run("samples", config, ("gpu",))


def _libraries() -> Iterator[Run]:
    for letter in "SCDZ":
        yield Run("libraries", {"library": "cusolver", "type": letter}, ("gpu",))
    for rank in (2, 1, 3):
        for kinds in (["r2c", "c2r"], ["c2c"]):
            for dtype in ("float", "double", "half"):
                config = {"library": "cufft", "rank": rank, "kinds": kinds, "dtype": dtype}
                yield Run("libraries", config, ("gpu",))
    for dtype in ("float32", "bfloat16", "float64"):
        for index in ("int32", "int64"):
            yield Run("libraries", {"library": "cusparse", "index": index, "dtype": dtype}, ("gpu",))
    for cell in ("LSTM", "GRU", "RNN"):
        for dtype in ("float32", "bfloat16"):
            yield Run("libraries", {"library": "recurrent", "cell": cell, "dtype": dtype}, ("gpu",))


def _nsight() -> Iterator[Run]:
    for model in _CLASSIFIERS:
        yield _forward_pass("nsight", model, 64, 128)


def _forward_pass(part: Part, model: str, batch: int, length: int) -> Run:
    needs: tuple[str, ...] = ("torchvision",)
    if model in ("BERT", "DistilBERT", "GPT-2") or model.startswith("CLIP"):
        needs = ("transformers",)
    elif model in ("LeNet", "RNN", "LSTM"):
        needs = ()
    if part == "nsight":
        needs += ("ncu",)
    # CLIP's texts have 77 tokens at most.
    tokens = min(length, 64) if model.startswith("CLIP") else length
    return Run(part, {"model": model, "batch": batch, "length": tokens}, needs)

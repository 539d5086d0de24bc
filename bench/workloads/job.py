"""What identifies a training job. No torch here: whoever plans runs must be able to start at once."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Family = Literal["cnn", "transformer"]
Precision = Literal["default", "tf32", "ieee", "bf16"]

PRECISIONS: dict[Precision, str] = {
    "default": "fp32 as PyTorch sets it: TF32 in convolutions, not in matrix products",
    "tf32": "fp32 with TF32 in convolutions and matrix products",
    "ieee": "fp32 without TF32",
    "bf16": "autocast to bfloat16 in the forward pass",
}


@dataclass(frozen=True)
class Job:
    """A training job of a few iterations.

    Attributes:
        family: Which loop runs it.
        model: A name of ``CNNS`` or ``TRANSFORMERS``, or ``timm/`` and a name of that package.
        optimizer: A class of ``torch.optim``, or ``transformers.Adafactor``; with its defaults but for a
            learning rate of 0.001.
        batch: Samples an iteration.
        zero_grad: Where gradients are dropped: 0 at the start of an iteration, 1 between forward and
            backward, 2 after the step.
        precision: A key of ``PRECISIONS``.
        channels_last: Whether a CNN and its images are in channels_last.
        tokens: Length of the sequences of a transformer.
        pixels: Side of the images of a CNN.
        iterations: How many.
        optimizer_built: Before or after the model moves to the device; None as its family's published loop
            does it, after for CNNs and before for transformers.
    """

    family: Family
    model: str
    optimizer: str
    batch: int
    zero_grad: int = 0
    precision: Precision = "default"
    channels_last: bool = False
    tokens: int = 128
    pixels: int = 86
    iterations: int = 4
    optimizer_built: Literal["before", "after"] | None = None

    def to_json(self) -> dict[str, Any]:
        """All fields but those that the family has no use for, and an order of building that is its own."""
        fields = asdict(self)
        if self.optimizer_built is None:
            del fields["optimizer_built"]
        for name in ("tokens",) if self.family == "cnn" else ("pixels", "channels_last"):
            del fields[name]
        return fields


@dataclass(frozen=True)
class Scale:
    """How far a job is cut down where there is no GPU to run it: 1 is the job itself.

    Attributes:
        divisor: What batches and sequences are divided by; networks are then the smallest of their kind.
    """

    divisor: int = 1

    def count(self, value: int, at_least: int = 1) -> int:
        """A size of the job, cut down."""
        return value if self.divisor == 1 else max(at_least, value // self.divisor)

    def pixels(self, value: int) -> int:
        """The side of an image, cut down to the least that all the networks can take."""
        return value if self.divisor == 1 else 32

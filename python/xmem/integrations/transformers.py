"""Hugging Face's Trainer: ``with_batch_size`` sizes the arguments, in one try instead of many.

Trainer tells its callbacks neither itself nor its data loader before that is made, so none can change the
batch size. Its arguments can, before it is made: ``Trainer.__init__`` reads them (transformers 5.23).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from xmem.batch_size.own_script import find_own_batch_size
from xmem.errors import ConfigError

if TYPE_CHECKING:
    from transformers import TrainingArguments

Arguments = TypeVar("Arguments", bound="TrainingArguments")


def with_batch_size(
    arguments: Arguments, *, gpu: str | None = None, effective_batch: int | None = None, **options: Any
) -> Arguments:
    """Set the batch size and the gradient accumulation of a ``TrainingArguments`` to what fits a GPU.

    ::

        arguments = with_batch_size(TrainingArguments("out", ...), effective_batch=256)
        Trainer(model=model, args=arguments, train_dataset=data).train()

    ``auto_find_batch_size=True`` may stay: its search then ends at the first try.

    Args:
        arguments: They are changed, and returned.
        gpu: The GPU, by a name of ``xmem-fast gpus``; the one of this machine by default.
        effective_batch: Examples of an optimizer step; by default the accumulation stays as it is.
        **options: Of ``xmem.batch_size.find_own_batch_size``.

    Raises:
        ConfigError: The job has several GPUs, or the GPU is not known; see ``find_own_batch_size``.
        CaptureError: The script failed in a run.
    """
    from xmem.integrations.this_gpu import gpu_or_own

    if arguments.world_size > 1 or arguments.n_gpu > 1:
        raise ConfigError(
            "the batch of a job on several GPUs cannot be found while it runs",
            "find it before: xmem-fast fit --dim batch=2,3 -o model.xmem -- COMMAND",
        )
    found = find_own_batch_size(**gpu_or_own(gpu, options), effective_batch=effective_batch)
    arguments.per_device_train_batch_size = found.size
    if effective_batch is not None:
        arguments.gradient_accumulation_steps = found.accumulation
    return arguments

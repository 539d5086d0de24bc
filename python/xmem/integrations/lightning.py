"""Lightning: a callback in place of ``BatchSizeFinder``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xmem.batch_size.find import BatchSize
from xmem.batch_size.own_script import find_own_batch_size
from xmem.errors import ConfigError

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

try:
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.utilities.parsing import lightning_hasattr, lightning_setattr
except ImportError:  # the package by its older name
    from pytorch_lightning.callbacks import Callback
    from pytorch_lightning.utilities.parsing import lightning_hasattr, lightning_setattr


class FittingBatchSize(Callback):  # type: ignore[misc]  # Lightning's types are not installed here
    """Sets ``batch_size`` of the module or data module to the largest that fits, before loaders are made.

    ::

        Trainer(callbacks=[FittingBatchSize(effective_batch=256)]).fit(model)

    Args:
        gpu: The GPU, by a name of ``xmem-fast gpus``; the one of this machine by default.
        batch_arg_name: The attribute to set, as for ``BatchSizeFinder``.
        **options: Of ``xmem.batch_size.find_own_batch_size``. With ``effective_batch``, the trainer's
            ``accumulate_grad_batches`` is set, too.

    Attributes:
        found: What was found; None before ``fit``.
    """

    def __init__(self, gpu: str | None = None, batch_arg_name: str = "batch_size", **options: Any) -> None:
        self._gpu = gpu
        self._name = batch_arg_name
        self._options = options
        self.found: BatchSize | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str | None = None) -> None:
        """Find the batch size before ``fit``.

        Raises:
            ConfigError: There is no such attribute, the job has several GPUs, or the GPU is not known; see
                ``find_own_batch_size``.
            CaptureError: The script failed in a run.
        """
        from xmem.integrations.this_gpu import gpu_or_own

        if stage != "fit":
            return
        if not lightning_hasattr(pl_module, self._name):
            raise ConfigError(
                f"neither the module nor the data module has {self._name!r}",
                "make the data loader's batch size an attribute of that name",
            )
        if trainer.world_size > 1:
            raise ConfigError(
                "the batch of a job on several GPUs cannot be found while it runs",
                "find it before: xmem-fast fit --dim batch=2,3 -o model.xmem -- COMMAND",
            )
        self.found = find_own_batch_size(**gpu_or_own(self._gpu, self._options))
        lightning_setattr(pl_module, self._name, self.found.size)
        if "effective_batch" in self._options:
            trainer.accumulate_grad_batches = self.found.accumulation

"""The largest batch in one try, where a search by running out of memory needs several: with the released libraries.

The scripts train on a phantom GPU that runs out of memory where a card would. ``XMEM_LIGHTNING`` names a folder
with Lightning for a Python that has none of its own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import xmem
from xmem import _core

from ..conftest import NEWEST_FIRST, Phantom

PACKAGES = [Path(xmem.__file__).parent.parent, Path(_core.__file__ or "").parent]

START = """
    import json, os, sys
    import torch
    import xmem
    xmem.__path__.append(os.environ["XMEM_CORE"])

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(*[
                torch.nn.Sequential(torch.nn.Linear(512, 16384), torch.nn.GELU(), torch.nn.Linear(16384, 512))
                for _ in range(8)
            ])

        def forward(self, x, labels):
            return {"loss": torch.nn.functional.mse_loss(self.layers(x), labels)}

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 4096

        def __getitem__(self, index):
            return {"x": torch.zeros(256, 512), "labels": torch.zeros(256, 512)}

    tries = []
    how, asked = sys.argv[1], int(sys.argv[2])
"""

TRAINER = (
    START
    + """
    from transformers import Trainer, TrainingArguments
    from xmem.integrations.transformers import with_batch_size

    class Counted(Trainer):
        def _inner_training_loop(self, batch_size=None, **named):
            tries.append(batch_size)
            return super()._inner_training_loop(batch_size=batch_size, **named)

    arguments = TrainingArguments("out", max_steps=4, per_device_train_batch_size=asked or 1, logging_steps=1,
                                  save_strategy="no", report_to=[], auto_find_batch_size=True)
    if how == "xmem":
        arguments = with_batch_size(arguments)
    elif how == "effective":
        arguments = with_batch_size(arguments, effective_batch=asked)
    Counted(model=Net(), args=arguments, train_dataset=Data()).train()
    print(json.dumps({"tries": tries, "accumulation": arguments.gradient_accumulation_steps}))
"""
)

ACCELERATE = (
    START
    + """
    from accelerate import Accelerator
    from accelerate.utils import find_executable_batch_size as search
    from xmem.integrations.accelerate import find_executable_batch_size

    decorate = find_executable_batch_size if how == "xmem" else search(starting_batch_size=asked)

    @decorate
    def train(batch_size):
        tries.append(batch_size)
        accelerator = Accelerator()
        model = Net()
        loader = torch.utils.data.DataLoader(Data(), batch_size=batch_size)
        model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
        for step, batch in enumerate(loader):
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            if step == 3:
                break

    train()
    print(json.dumps({"tries": tries}))
"""
)

LIGHTNING = (
    START
    + """
    import lightning
    from lightning.pytorch.callbacks import BatchSizeFinder
    from xmem.integrations.lightning import FittingBatchSize

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.batch_size = Net(), asked or 1

        def train_dataloader(self):
            tries.append(self.batch_size)
            return torch.utils.data.DataLoader(Data(), batch_size=self.batch_size)

        def training_step(self, batch, _):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    finder = {
        "xmem": lambda: [FittingBatchSize()],
        "effective": lambda: [FittingBatchSize(effective_batch=asked)],
        "search": lambda: [BatchSizeFinder("binsearch", steps_per_trial=4, init_val=asked, margin=0.0)],
        "fixed": lambda: [],
    }[how]()
    module = Module()
    trainer = lightning.Trainer(accelerator="gpu", devices=1, max_steps=4, logger=False, callbacks=finder,
                                enable_checkpointing=False, enable_progress_bar=False)
    trained = True
    try:
        trainer.fit(module)
    except torch.OutOfMemoryError:
        trained = False
    print(json.dumps({"tries": tries, "size": module.batch_size, "trained": trained,
                      "accumulation": trainer.accumulate_grad_batches}))
"""
)


def train(phantom: Phantom, script: str, how: str, asked: int = 0) -> Any:
    """What a script printed, on a card that runs out of memory."""
    paths = [str(PACKAGES[0]), *filter(None, [os.environ.get("XMEM_LIGHTNING")])]
    ran = phantom.run(
        script, how, str(asked), PYTHONPATH=os.pathsep.join(paths), XMEM_CORE=str(PACKAGES[1]), timeout=280
    )
    if "No module named" in ran.stderr or "xmem._core" in ran.stderr:
        missing = ran.stderr.strip().splitlines()[-1]
        pytest.skip(f"this Python cannot run the script: {missing}")
    return ran.result


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("phantom", NEWEST_FIRST, indirect=True)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("script", [TRAINER, ACCELERATE], ids=["trainer", "accelerate"])
def test_the_first_try_is_the_largest_batch(phantom: Phantom, script: str) -> None:
    (largest,) = train(phantom, script, "xmem")["tries"]
    # By halves in older releases, by tenths in newer ones.
    search = train(phantom, script, "search", 4 * largest)["tries"]
    assert len(search) >= 3, "it ran out of memory several times"
    assert search[-1] <= largest
    assert len(train(phantom, script, "search", largest + 1)["tries"]) > 1, "one more does not fit"


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_lightning_trains_at_once_with_the_largest_batch(phantom: Phantom) -> None:
    found = train(phantom, LIGHTNING, "xmem")
    assert found["trained"]
    assert found["tries"] == [found["size"]]
    assert not train(phantom, LIGHTNING, "fixed", found["size"] + 1)["trained"], "one more does not fit"
    # Lightning's own search needs many tries, and what it settles for need not even train afterwards.
    search = train(phantom, LIGHTNING, "search", 4)
    assert len(search["tries"]) > 4
    assert search["size"] <= found["size"] or not search["trained"]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("script", [TRAINER, LIGHTNING], ids=["trainer", "lightning"])
def test_accumulation_keeps_the_effective_batch(phantom: Phantom, script: str) -> None:
    found = train(phantom, script, "effective", 180)
    (size,) = found["tries"]
    assert size * found["accumulation"] == 180
    assert found["accumulation"] > 1

"""Lightning's Trainer on a Llama: DEVICES STRATEGY."""

import sys

import lightning
import torch
from lightning.pytorch.strategies import FSDPStrategy
from synthetic import Tokens, llama_config
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

devices, strategy = int(sys.argv[1]), sys.argv[2]


class Language(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = None

    def configure_model(self):
        if self.model is None:
            self.model = LlamaForCausalLM(llama_config())

    def training_step(self, batch, _):
        loss = self.model(**batch).loss
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _):
        self.log("validation", self.model(**batch).loss, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-4)


loader = torch.utils.data.DataLoader(Tokens(), batch_size=4)
trainer = lightning.Trainer(
    accelerator="gpu",
    devices=devices,
    strategy=FSDPStrategy(auto_wrap_policy={LlamaDecoderLayer}) if strategy == "fsdp" else strategy,
    precision="bf16-mixed",
    max_steps=6,
    logger=False,
    enable_checkpointing=False,
)
trainer.fit(Language(), loader, torch.utils.data.DataLoader(Tokens(count=16), batch_size=4))

"""Trains with Lightning: 12 optimizer steps of 2 batches each, and an evaluation per epoch."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from whyidle.callbacks import LightningCallback

if sys.argv[1] == "pytorch_lightning":
    import pytorch_lightning as framework
else:
    import lightning.pytorch as framework


class Model(framework.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch, _):
        self.log("loss", self.layer(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


loader = DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=4)
trainer = framework.Trainer(
    accelerator="cpu",
    max_epochs=3,
    accumulate_grad_batches=2,
    callbacks=[LightningCallback()],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), loader, loader)
print("optimizer steps", trainer.global_step)

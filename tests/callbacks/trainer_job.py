"""Trains with the Trainer of Hugging Face: 12 optimizer steps of 2 batches each."""

import sys

import torch
from transformers import Trainer, TrainingArguments

from whyidle.callbacks import TrainerCallback


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        return {"loss": self.layer(x).square().mean()}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return {"x": torch.ones(4), "labels": torch.zeros(1)}


options = TrainingArguments(
    output_dir=sys.argv[1],
    num_train_epochs=3,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    eval_strategy="epoch",
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(
    Model(), options, train_dataset=Data(), eval_dataset=Data(), callbacks=[TrainerCallback()]
)
trainer.train()
print("optimizer steps", trainer.state.global_step)

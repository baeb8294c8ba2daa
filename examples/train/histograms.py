"""Histograms of all weights are logged in every step; the fixed twin logs every 100th."""

import json
import tempfile

import record
import torch
from torch import nn


def log_histograms(model: nn.Module, file: object, step: int) -> None:
    """Copy every weight to the CPU, bin it there, write a line."""
    for name, weight in model.named_parameters():
        counts = torch.histogram(weight.detach().float().cpu(), bins=64).hist
        file.write(json.dumps({"step": step, "name": name, "counts": counts.tolist()}) + "\n")


def main() -> None:
    """Train for a few steps."""
    chosen = record.options(__doc__)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(20))).to(chosen.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    inputs = torch.randn(16, 256, device=chosen.device)
    every = 100 if chosen.fixed else 1
    count = 0
    with tempfile.TemporaryFile("w") as file, record.Steps(chosen) as steps:
        while True:
            count += 1
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            if count % every == 0:
                log_histograms(model, file, count)
            if steps.done():
                break


if __name__ == "__main__":
    main()

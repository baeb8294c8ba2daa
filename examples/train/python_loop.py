"""The loss loops over rows in Python; the fixed twin computes it on the whole batch."""

import record
import torch
from torch import nn


def loss_by_row(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """One small operator after the other for each row."""
    total = output.new_zeros(())
    for row in range(output.shape[0]):
        total = total + ((output[row] - target[row]) ** 2).sum()
    return total / output.shape[0]


def loss_of_batch(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The same value in three operators."""
    return ((output - target) ** 2).sum(1).mean()


def main() -> None:
    """Train for a few steps."""
    chosen = record.options(__doc__)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 16)).to(chosen.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    inputs = torch.randn(256, 64, device=chosen.device)
    targets = torch.randn(256, 16, device=chosen.device)
    loss = loss_of_batch if chosen.fixed else loss_by_row
    with record.Steps(chosen) as steps:
        while True:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()
            if steps.done():
                break


if __name__ == "__main__":
    main()

"""A compiled model meets a new batch size in every step; the fixed twin pads to one size."""

import record
import torch
from torch import nn
from torch.nn.functional import pad

LARGEST = 32


def main() -> None:
    """Train for a few steps, each of another size."""
    chosen = record.options(__doc__, steps=4)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).to(chosen.device)
    compiled = torch.compile(model, dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    size = 8
    with record.Steps(chosen) as steps:
        while True:
            rows = torch.randn(size, 32, device=chosen.device)
            if chosen.fixed:
                rows = pad(rows, (0, 0, 0, LARGEST - size))
            optimizer.zero_grad()
            compiled(rows)[:size].mean().backward()
            optimizer.step()
            size = size % LARGEST + 1
            if steps.done():
                break


if __name__ == "__main__":
    main()

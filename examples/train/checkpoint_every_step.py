"""A checkpoint is written after every step; the fixed twin writes one at the end."""

import tempfile
from pathlib import Path

import record
import torch
from torch import nn


def main() -> None:
    """Train for a few steps."""
    chosen = record.options(__doc__)
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))).to(chosen.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    inputs = torch.randn(16, 512, device=chosen.device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt"
        with record.Steps(chosen) as steps:
            while True:
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
                if not chosen.fixed:
                    torch.save(model.state_dict(), path)
                if steps.done():
                    break
        torch.save(model.state_dict(), path)


if __name__ == "__main__":
    main()

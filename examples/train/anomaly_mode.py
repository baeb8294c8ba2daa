"""Anomaly detection was left on and checks every gradient for NaN; the fixed twin turns it off."""

import record
import torch
from torch import nn


def main() -> None:
    """Train for a few steps."""
    chosen = record.options(__doc__)
    torch.autograd.set_detect_anomaly(not chosen.fixed)
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(40))).to(chosen.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    inputs = torch.randn(32, 128, device=chosen.device)
    with record.Steps(chosen) as steps:
        while True:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            if steps.done():
                break


if __name__ == "__main__":
    main()

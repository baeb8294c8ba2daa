"""AdamW walks over the parameters one by one; the fixed twin runs its fused kernel."""

import record
import torch
from torch import nn


def main() -> None:
    """Train for a few steps."""
    chosen = record.options(__doc__)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(100))).to(chosen.device)
    how = {"fused": True} if chosen.fixed else {"foreach": False, "fused": False}
    optimizer = torch.optim.AdamW(model.parameters(), 0.001, **how)
    inputs = torch.randn(16, 64, device=chosen.device)
    with record.Steps(chosen) as steps:
        while True:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            if steps.done():
                break


if __name__ == "__main__":
    main()

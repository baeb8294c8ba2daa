"""The cache is emptied and garbage collected in every step; the fixed twin does neither.

On a CPU only the garbage collection costs anything.
"""

import gc

import record
import torch
from torch import nn


def main() -> None:
    """Train for a few steps."""
    chosen = record.options(__doc__)
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))).to(chosen.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    inputs = torch.randn(64, 512, device=chosen.device)
    with record.Steps(chosen) as steps:
        while True:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            if not chosen.fixed:
                gc.collect()
                torch.cuda.empty_cache()
            if steps.done():
                break


if __name__ == "__main__":
    main()

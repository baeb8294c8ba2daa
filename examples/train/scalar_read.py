"""Every layer's norm is read with .item() in each step; the fixed twin reads the last step once.

On a GPU each read waits for all queued work. On a CPU nothing is queued, so the twins are alike.
"""

import record
import torch
from torch import nn


def main() -> None:
    """Train for a few steps."""
    chosen = record.options(__doc__)
    layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(24)).to(chosen.device)
    optimizer = torch.optim.SGD(layers.parameters(), 0.001)
    inputs = torch.randn(64, 256, device=chosen.device)
    norms: list[torch.Tensor | float] = []
    with record.Steps(chosen) as steps:
        while True:
            optimizer.zero_grad()
            hidden = inputs
            norms.clear()
            for layer in layers:
                hidden = torch.tanh(layer(hidden))
                norm = hidden.detach().norm()
                norms.append(norm if chosen.fixed else norm.item())
            hidden.square().mean().backward()
            optimizer.step()
            if steps.done():
                break
    print("norm of the last layer:", round(float(norms[-1]), 3))


if __name__ == "__main__":
    main()

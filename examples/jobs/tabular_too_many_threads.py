"""A regression on a table whose thread count was chosen on a machine with 64 cores."""

import torch
from torch import nn

STEPS = 60


def main() -> None:
    """Train on random rows."""
    torch.manual_seed(0)
    torch.set_num_threads(64)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(12)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(STEPS):
        rows = torch.randn(128, 256)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), rows)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()

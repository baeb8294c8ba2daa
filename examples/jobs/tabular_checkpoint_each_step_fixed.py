"""A regression on a table that saves the model and its optimizer after every step."""

import tempfile
from pathlib import Path

import torch
from torch import nn

STEPS = 60


def main() -> None:
    """Train on random rows."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    with tempfile.TemporaryDirectory() as folder:
        for step in range(STEPS):
            rows = torch.randn(64, 256)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(rows), rows.sum(dim=1, keepdim=True))
            loss.backward()
            optimizer.step()
            if step % 100 == 0 or step == STEPS - 1:
                state = {
                    "step": step,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                }
                torch.save(state, Path(folder) / "last.pt")
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()

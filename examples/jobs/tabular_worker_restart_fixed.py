"""A regression on a table, in many short epochs whose loader starts its workers anew each time."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 12
ROWS = 64 * 5


def main() -> None:
    """Train for some short epochs."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    columns = torch.randn(ROWS, 32)
    target = columns.sum(dim=1, keepdim=True)
    loader = DataLoader(
        TensorDataset(columns, target),
        batch_size=64,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
    )
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(EPOCHS):
        for rows, wanted in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(rows), wanted)
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()

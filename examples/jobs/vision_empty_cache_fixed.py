"""An image classifier that tidies memory up after each step, with many labels in memory."""

import torch
from torch import nn

STEPS = 40
PICTURES = 200_000


def main() -> None:
    """Train on random pictures."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    labels = [{"picture": f"{number:06d}.png", "label": number % 10} for number in range(PICTURES)]
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 256, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        pictures = torch.randn(16, 3, 32, 32)
        wanted = torch.tensor([labels[16 * step + row]["label"] for row in range(16)])
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), wanted)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()

"""A deep, narrow text model whose optimizer was told to update one tensor at a time."""

import torch
from torch import nn

STEPS = 40


def main() -> None:
    """Train on random tokens."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [nn.Embedding(1000, 32)]
    for _ in range(60):
        layers += [nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU()]
    model = nn.Sequential(*layers, nn.Linear(32, 1000))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, fused=True)
    for _ in range(STEPS):
        tokens = torch.randint(0, 1000, (8, 9))
        optimizer.zero_grad()
        scores = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()

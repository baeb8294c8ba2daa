"""A character model in which the search for a NaN of last month is still switched on."""

import torch
from torch import nn

STEPS = 40


class Characters(nn.Module):
    """Predicts the next of 64 characters with a recurrent cell that is unrolled by hand."""

    def __init__(self) -> None:
        """Layers of width 64."""
        super().__init__()
        self.embed = nn.Embedding(64, 64)
        self.cell = nn.GRUCell(64, 64)
        self.head = nn.Linear(64, 64)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Scores of shape (batch, length, 64)."""
        state = torch.zeros(text.shape[0], 64)
        found = []
        for at in range(text.shape[1]):
            state = self.cell(self.embed(text[:, at]), state)
            found.append(self.head(state))
        return torch.stack(found, dim=1)


def main() -> None:
    """Train on random text."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.autograd.set_detect_anomaly(True)
    model = Characters()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for _ in range(STEPS):
        text = torch.randint(0, 64, (16, 33))
        optimizer.zero_grad()
        scores = model(text[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()

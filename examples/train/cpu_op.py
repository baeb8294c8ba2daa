"""Targets are matched on the CPU inside the step; the fixed twin matches on the device."""

import record
import torch
from torch import nn


def match_in_python(scores: torch.Tensor) -> torch.Tensor:
    """Take the best free column of each row, in a Python loop over a CPU copy."""
    table = scores.detach().cpu().tolist()
    taken: set[int] = set()
    chosen = []
    for row in table:
        best = max((c for c in range(len(row)) if c not in taken), key=row.__getitem__)
        taken.add(best)
        chosen.append(best)
    return torch.tensor(chosen, device=scores.device)


def match_on_device(scores: torch.Tensor) -> torch.Tensor:
    """Take the best column of each row; rows may share one."""
    return scores.detach().argmax(1)


def main() -> None:
    """Train for a few steps."""
    chosen = record.options(__doc__)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 300)).to(chosen.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    inputs = torch.randn(256, 64, device=chosen.device)
    match = match_on_device if chosen.fixed else match_in_python
    with record.Steps(chosen) as steps:
        while True:
            optimizer.zero_grad()
            scores = model(inputs)
            nn.functional.cross_entropy(scores, match(scores)).backward()
            optimizer.step()
            if steps.done():
                break


if __name__ == "__main__":
    main()

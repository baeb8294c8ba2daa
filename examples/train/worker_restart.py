"""Short epochs, and the loader's workers start anew in each; the fixed twin keeps them."""

import time

import record
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS_PER_EPOCH = 2


class Rows(Dataset):
    """A small data set with a start-up cost in every worker."""

    def __init__(self) -> None:
        """Open nothing yet: a worker opens its file on first use."""
        self.opened = False

    def __len__(self) -> int:
        """So many rows that an epoch is a few steps."""
        return 32 * STEPS_PER_EPOCH

    def __getitem__(self, index: int) -> torch.Tensor:
        """The first read in a worker builds its index."""
        if not self.opened:
            time.sleep(0.1)
            self.opened = True
        return torch.full((256,), float(index))


def main() -> None:
    """Train for a few short epochs."""
    chosen = record.options(__doc__)
    loader = DataLoader(Rows(), 32, num_workers=2, persistent_workers=chosen.fixed)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)).to(chosen.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    finished = False
    with record.Steps(chosen) as steps:
        while not finished:
            for rows in loader:
                optimizer.zero_grad()
                model(rows.to(chosen.device)).mean().backward()
                optimizer.step()
                finished = steps.done()
                if finished:
                    break


if __name__ == "__main__":
    main()

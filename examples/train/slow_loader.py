"""The main thread decodes every sample itself; the fixed twin uses worker processes."""

import time

import record
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 16
DECODE_S = 0.003


class Pictures(Dataset):
    """Pictures that take a while to decode."""

    def __len__(self) -> int:
        """Enough for any number of steps that we run."""
        return 100_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Wait as a decoder would, then make a picture."""
        time.sleep(DECODE_S)
        return torch.full((3, 32, 32), float(index % 7)), index % 10


def main() -> None:
    """Train for a few steps."""
    chosen = record.options(__doc__)
    workers = 4 if chosen.fixed else 0
    loader = DataLoader(Pictures(), BATCH, num_workers=workers, persistent_workers=workers > 0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 64, 10),
    ).to(chosen.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    with record.Steps(chosen) as steps:
        for pictures, labels in loader:
            optimizer.zero_grad()
            output = model(pictures.to(chosen.device, non_blocking=True))
            nn.functional.cross_entropy(output, labels.to(chosen.device)).backward()
            optimizer.step()
            if steps.done():
                break


if __name__ == "__main__":
    main()

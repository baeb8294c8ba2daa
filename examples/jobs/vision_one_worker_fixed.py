"""A small image classifier with one worker, which waits for a store for every picture."""

import time
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = 60


class Pictures(Dataset):
    """Compressed pictures of 3 x 32 x 32 in a store far away."""

    def __init__(self, count: int) -> None:
        """Keep a few packed pictures; index i stands for picture i modulo their number."""
        some = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)
        self.packed = [zlib.compress(bytes(picture.flatten().tolist())) for picture in some]
        self.count = count

    def __len__(self) -> int:
        """How many pictures there are."""
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Wait for the store, unpack, scale."""
        time.sleep(0.002)
        raw = bytearray(zlib.decompress(self.packed[index % len(self.packed)]))
        picture = torch.frombuffer(raw, dtype=torch.uint8).view(3, 32, 32)
        return picture.float() / 255, index % 10


def main() -> None:
    """Train for one short epoch."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Pictures(16 * STEPS), batch_size=16, num_workers=8)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 64, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for pictures, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()

"""A text classifier that splits and looks up every text again whenever it is drawn."""

import random
import re

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = 60
LENGTH = 1500
WORDS = [f"word{number}" for number in range(5000)]


class Texts(Dataset):
    """Texts of about LENGTH words, with a label each."""

    def __init__(self, count: int) -> None:
        """Make a few texts; index i stands for text i modulo their number."""
        draw = random.Random(0)
        self.texts = [" ".join(draw.choices(WORDS, k=LENGTH)) + "!" for _ in range(64)]
        self.numbers = {word: number for number, word in enumerate(WORDS, start=2)}
        self.count = count

    def __len__(self) -> int:
        """How many texts there are."""
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Numbers of the text's tokens."""
        return self.tokenize(self.texts[index % len(self.texts)]), index % 4

    def tokenize(self, text: str) -> torch.Tensor:
        """Split into words and signs, lower them, look them up; 1 is unknown."""
        found = []
        for token in re.findall(r"\w+|[^\w\s]", text):
            lowered = token.lower().strip()
            found.append(self.numbers.get(lowered, 1))
        return torch.tensor(found[:LENGTH])


def main() -> None:
    """Train for one short epoch."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Texts(32 * STEPS), batch_size=32)
    model = nn.Sequential(nn.EmbeddingBag(5002, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for tokens, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()

"""Four micro-steps make a step, and each reduces all gradients; the fixed twin uses no_sync."""

from contextlib import nullcontext

import ranks
import record
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MICRO_STEPS = 4


def train(rank: int, chosen: record.Options) -> None:
    """Train for a few steps on one rank."""
    torch.manual_seed(rank)
    device = torch.device(chosen.device.type, rank if chosen.device.type == "cuda" else 0)
    net = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    inputs = torch.randn(8, 512, device=device)
    with record.Steps(chosen, rank) as steps:
        while True:
            optimizer.zero_grad()
            for micro in range(MICRO_STEPS):
                quiet = chosen.fixed and micro < MICRO_STEPS - 1
                with model.no_sync() if quiet else nullcontext():
                    (model(inputs).square().mean() / MICRO_STEPS).backward()
            optimizer.step()
            if steps.done():
                break


if __name__ == "__main__":
    ranks.start(train, record.options(__doc__, steps=4))

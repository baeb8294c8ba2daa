"""find_unused_parameters walks the graph in every step although all are used; fixed: it is off."""

import ranks
import record
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank: int, chosen: record.Options) -> None:
    """Train for a few steps on one rank."""
    torch.manual_seed(rank)
    device = torch.device(chosen.device.type, rank if chosen.device.type == "cuda" else 0)
    layers = [m for _ in range(60) for m in (nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU())]
    net = nn.Sequential(*layers).to(device)
    model = DistributedDataParallel(
        net, find_unused_parameters=not chosen.fixed, broadcast_buffers=not chosen.fixed
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    inputs = torch.randn(8, 32, device=device)
    with record.Steps(chosen, rank) as steps:
        while True:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            if steps.done():
                break


if __name__ == "__main__":
    ranks.start(train, record.options(__doc__, steps=4))

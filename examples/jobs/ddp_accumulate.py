"""Two ranks that sum gradients over four micro-batches and reduce them after each one.

Start it with: torchrun --nproc-per-node 2 ddp_accumulate.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 30
MICRO_STEPS = 4


def main() -> None:
    """Train on random rows."""
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    torch.set_num_threads(1)
    layers = [nn.Linear(512, 512) for _ in range(4)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(MICRO_STEPS):
            rows = torch.randn(8, 512)
            loss = nn.functional.mse_loss(model(rows), rows) / MICRO_STEPS
            loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

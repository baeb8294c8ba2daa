"""Matrix products run in FP32; the fixed twin uses BF16 on CPUs and TF32 with BF16 on GPUs.

On a CPU without BF16 instructions the fixed twin can be the slower one.
"""

import record
import torch
from torch import nn


def main() -> None:
    """Train for a few steps."""
    chosen = record.options(__doc__)
    torch.set_float32_matmul_precision("high" if chosen.fixed else "highest")
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6))).to(chosen.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    inputs = torch.randn(128, 512, device=chosen.device)
    kind = chosen.device.type
    with record.Steps(chosen) as steps:
        while True:
            optimizer.zero_grad()
            with torch.autocast(kind, torch.bfloat16, enabled=chosen.fixed):
                loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            if steps.done():
                break


if __name__ == "__main__":
    main()

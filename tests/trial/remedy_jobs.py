"""Small training scripts that print what they found to be so, run with remedies in the hook."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whyidle.observe.events import events_of
from whyidle.observe.launch import environment

PLAIN = """
import gc, json, os, sys, torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return torch.full((6,), float(i)), torch.tensor([float(i % 3)])

torch.autograd.set_detect_anomaly(True)
torch.set_num_threads(2)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
loader = DataLoader(Numbers(), batch_size=8)
collected, saved = [], 0
gc.callbacks.append(lambda phase, info: collected.append(info["generation"]))
for batch, (numbers, target) in enumerate(loader):
    optimizer.zero_grad(set_to_none=False)
    dropped = all(p.grad is None for p in model.parameters())
    loss = torch.nn.functional.mse_loss(model(numbers), target)
    loss.backward()
    optimizer.step()
    collected.clear()
    gc.collect()
    torch.save(batch, "checkpoint-%d.pt" % batch)
print(json.dumps({
    "random": torch.rand(1).item(),
    "workers": loader.num_workers, "persistent": loader.persistent_workers,
    "batch_size": loader.batch_size, "lr": optimizer.param_groups[0]["lr"],
    "anomaly": torch.is_anomaly_enabled(), "threads": torch.get_num_threads(),
    "foreach": optimizer.param_groups[0]["foreach"], "fused": optimizer.param_groups[0]["fused"],
    "dropped": dropped, "collected": 2 in collected, "frozen": gc.get_freeze_count(),
    "threshold": gc.get_threshold()[0],
    "checkpoints": len([n for n in os.listdir(".") if n.startswith("checkpoint")]),
    "loss": loss.item(),
}))
"""

IMAGES = """
import json, torch
inside = {}
class Counted(torch.nn.Conv2d):
    def forward(self, x):
        inside["runs"] = inside.get("runs", 0) + 1
        return super().forward(x)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        second = torch.nn.Conv2d(4, 4, 3)
        self.layers = torch.nn.Sequential(Counted(3, 4, 3), torch.nn.ReLU(), second)
        self.last = torch.nn.Linear(4, 2)
        self.passes = 0
    def forward(self, x):
        self.passes += 1
        found = self.layers(x)
        inside["type"] = str(found.dtype)
        inside["last"] = x.is_contiguous(memory_format=torch.channels_last)
        return {"out": (self.last(found.mean((2, 3))),)}
torch.manual_seed(1)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    out = model(torch.ones(2, 3, 8, 8))["out"][0]
    out.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(json.dumps({**inside, "out": str(out.dtype), "passes": model.passes,
                  "compiled": model._compiled_call_impl is not None}))
"""

SUBCLASSED = """
import json, torch
from torch.utils.data import DataLoader, IterableDataset
class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(6.0))
class Mine(DataLoader):
    def __init__(self, data):
        super().__init__(data, batch_size=2)
print(json.dumps({"seen": [v for b in Mine(Stream()) for v in b.tolist()]}))
"""

PARALLEL = """
import json, torch
import torch.distributed as dist
torch.manual_seed(0)
dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
ddp = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
calls = [0]
def exchanged(state, bucket):
    calls[0] += 1
    part = bucket.buffer() / dist.get_world_size()
    return dist.all_reduce(part, async_op=True).get_future().then(lambda done: done.value()[0])
ddp.register_comm_hook(None, exchanged)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
numbers = torch.Generator().manual_seed(10 + dist.get_rank())
counts = []
for step in range(6):
    before = calls[0]
    for micro in range(4 if step < 5 else 2):
        (ddp(torch.randn(5, 6, generator=numbers)).pow(2).mean() / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
    counts.append(calls[0] - before)
print(json.dumps({
    "exchanges": counts, "unused": ddp.find_unused_parameters,
    "view": ddp.gradient_as_bucket_view,
    "weights": [p.detach().double().abs().sum().item() for p in model.parameters()],
}))
dist.destroy_process_group()
"""


class Job:
    """What one run printed, and what its hook said of each remedy."""

    def __init__(self, bundle: Path, printed: str) -> None:
        self.told: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
        events = [e for path in sorted((bundle / "processes").glob("*")) for e in events_of(path)]
        self.problems = [e for e in events if e.get("event") == "problem"]
        self._said = [e for e in events if e.get("event") == "remedy"]

    def applied(self, name: str) -> bool:
        return any(e["applied"] for e in self._said if e["name"] == name)

    def could(self, name: str) -> bool:
        return any(e["could"] for e in self._said if e["name"] == name)

    def why(self, name: str) -> str:
        return "; ".join(str(e["why"]) for e in self._said if e["name"] == name)


def run(
    folder: Path,
    script: str,
    remedies: Mapping[str, object],
    *,
    dry: bool = False,
    ranks: int = 1,
    variables: Mapping[str, str] | None = None,
) -> Job:
    """Run a script in ``folder`` with remedies; what rank 0 printed counts."""
    folder.mkdir(parents=True, exist_ok=True)
    bundle = folder / "bundle"
    bundle.mkdir()
    (folder / "train.py").write_text(script, encoding="utf-8")
    options = {"profile": False, "loss": True, "remedies": dict(remedies), "dry": dry}
    own = {**environment(bundle, options), **(variables or {})}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    processes = []
    for rank in range(ranks):
        place = {"RANK": str(rank), "WORLD_SIZE": str(ranks)} if ranks > 1 else {}
        processes.append(
            subprocess.Popen(
                [sys.executable, "train.py"],
                cwd=folder,
                env={**os.environ, **own, **place},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    ended = [process.communicate(timeout=120) for process in processes]
    assert [p.returncode for p in processes] == [0] * ranks, ended[0][1][-2000:]
    return Job(bundle, ended[0][0])

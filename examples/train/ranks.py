"""Starts two processes of a distributed example on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import record
import torch
import torch.distributed as dist
from torch import multiprocessing

RANKS = 2


def start(work: Callable[[int, record.Options], None], chosen: record.Options) -> None:
    """Run ``work(rank, chosen)`` on every rank: gloo on CPUs, NCCL with a GPU for each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(_one, (work, chosen, port), nprocs=RANKS)


def _one(
    rank: int, work: Callable[[int, record.Options], None], chosen: record.Options, port: int
) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    gpus = chosen.device.type == "cuda" and torch.cuda.device_count() >= RANKS
    if gpus:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if gpus else "gloo", rank=rank, world_size=RANKS)
    try:
        work(rank, chosen)
    finally:
        dist.destroy_process_group()

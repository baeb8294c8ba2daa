"""The data loader: batches made on the main thread, or by worker processes ahead of time."""

from __future__ import annotations

from dataclasses import dataclass, field

from examples.simulate.host import Host

SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
MULTI = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
PREFETCH = 2
QUEUE_POP_NS = 130_000
STOP_TO_START = 0.3
"""Time to join an old worker, in units of the time to start one."""


@dataclass
class Loader:
    """Hands out batches; ``sample_ns`` is the work of one sample on one core."""

    host: Host
    batch: int
    workers: int
    sample_ns: float
    worker_start_ns: float = 0.0
    ready: dict[int, int] = field(default_factory=dict)
    free_at: list[int] = field(default_factory=list)
    asked: int = 0
    served: int = 0

    def next_batch(self) -> None:
        """What the main thread does in ``next(iterator)``."""
        with self.host.frame("torch/utils/data/dataloader.py(720): __next__"):
            if self.workers:
                self._from_workers()
            else:
                self._here()

    def restart(self) -> None:
        """A new epoch without persistent workers: end the old ones, start others, from nothing."""
        host, file = self.host, "torch/utils/data/dataloader.py"
        with (
            host.frame(f"{file}(720): __next__"),
            host.annotation(MULTI),
            host.frame(f"{file}(1606): _shutdown_workers"),
        ):
            for worker in range(self.workers):
                with host.frame("multiprocessing/process.py(142): join"):
                    host.spend(self.worker_start_ns * STOP_TO_START, f"stop {worker}")
        with (
            host.frame(f"{file}(492): __iter__"),
            host.frame(f"{file}(433): _get_iterator"),
            host.frame(f"{file}(1101): __init__"),
        ):
            for worker in range(self.workers):
                with host.frame("multiprocessing/process.py(110): start"):
                    host.spend(self.worker_start_ns, f"start worker {worker}")
        self._ask_first()

    def running_for(self, lead_ns: int) -> None:
        """Have the workers been at work ``lead_ns`` before the window."""
        start, self.host.now = self.host.now, self.host.now - lead_ns
        self._ask_first()
        self.host.now = start

    def _ask_first(self) -> None:
        self.ready.clear()
        self.asked = self.served = 0
        self.free_at = [self.host.now] * self.workers
        for _ in range(self.workers * PREFETCH):
            self._ask()

    def _ask(self) -> None:
        worker = self.asked % self.workers
        begin = max(self.host.now, self.free_at[worker])
        cost = self.host.noisy(self.sample_ns * self.batch, f"worker {worker}", 0.08)
        self.free_at[worker] = self.ready[self.asked] = begin + cost
        self.asked += 1

    def _from_workers(self) -> None:
        with self.host.annotation(MULTI):
            arrived = self.ready.pop(self.served)
            if arrived > self.host.now:
                with self.host.frame("torch/utils/data/dataloader.py(1468): _next_data"):
                    self.host.now = arrived
            self.host.spend(QUEUE_POP_NS, "queue pop")
            self.served += 1
            self._ask()

    def _here(self) -> None:
        with self.host.annotation(SINGLE):
            for _ in range(self.batch):
                with self.host.frame("train.py(31): __getitem__"):
                    self.host.spend(self.sample_ns, "sample", 0.2)
                    self.host.simple_op("aten::div")
            with self.host.op("aten::stack"), self.host.op("aten::cat"):
                self.host.spend(40_000 + self.batch * 3_000, "collate")

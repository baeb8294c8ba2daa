"""Runs the user's data set and measures it, in a process of its own that may crash or hang.

``python -m whyidle.data.probe_child REQUEST RESULT``: both are files of JSON. Each part writes a
line to RESULT when it begins and one when it is done, so that what was found survives what fails.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from whyidle.data import probe_storage, spec
from whyidle.data.probe_stages import Places, Stages, composed
from whyidle.data.spec import Target
from whyidle.errors import WhyidleError

SHORT_BATCH_S = 0.15
"""Batches are made smaller for the measurements when one would take longer than this."""

MOST_ITEM_BYTES = 512 << 20
ASK_EVERY_S = 0.002
LATE_S = 0.00025
ENOUGH_ASKED = 24
"""A thread that asks for the interpreter's lock at these times counts it as held when it gets it
later than LATE_S, which is more than the timer's own error."""

LEAST_ASKED = 512
"""Bytes per sample below which nothing is read but the counters themselves."""


class Child:
    """One probe; the parts run in the order of ``run`` and keep what later ones need."""

    def __init__(self, request: dict[str, Any], write: Callable[[dict[str, Any]], None]) -> None:
        self._asked = request
        self._write = write
        self._seconds = float(request["seconds"])
        self._cpus = max(int(request["cpus"]), 1)
        self.found: dict[str, Any] = {}

    def run(self) -> None:
        """All parts; one that raises costs only itself, if it is not the first two."""
        self._part("load", self._load, needed=True)
        self._part("first sample", self._first, needed=True)
        self._part("samples", self._plain, needed=True)
        self._part("stages", self._stages, needed=True)
        self._part("storage", self._storage)
        self._part("opencv", self._opencv)
        if self._torch is not None:
            self._part("collate", self._collate)
            for turn in (0, 1):
                self._part(f"alone {turn}", lambda: self._loader(0))
                if self._room():
                    self._part(f"one worker {turn}", lambda: self._loader(1))
                self._part(f"scaling {turn}", self._scaling)
            if self._room():
                self._part("hand-over", self._hand_over)
        else:
            self._part("scaling 0", self._scaling)
        self._part("threads", self._threads)
        if self._torch is not None:
            self._part("copy", self._copying)

    def _part(self, name: str, act: Callable[[], dict[str, Any]], *, needed: bool = False) -> None:
        self._write({"begin": name})
        try:
            self._write({"done": name, **act()})
        except Exception as error:
            told = str(error) if isinstance(error, WhyidleError) else _said(error)
            self._write({"failed": name, "error": told, "usage": isinstance(error, WhyidleError)})
            if needed:
                raise SystemExit(1) from error

    def _load(self) -> dict[str, Any]:
        self._target = spec.load(spec.Spec(**self._asked["spec"]), self._asked["batch_size"])
        self._torch: Any = None
        with suppress(ImportError):
            from whyidle.data import probe_torch

            self._torch = probe_torch
            self.found["torch_threads"] = probe_torch.one_thread()
        target = self._target
        self._order = _Order(target)
        return {
            "samples": len(target.dataset) if target.batches is not None else None,
            "batch_size": target.batch_size,
            "workers": target.workers,
            "prefetch": target.prefetch,
            "order": target.order,
            "notes": list(target.notes),
            "torch_threads": self.found.get("torch_threads"),
        }

    def _first(self) -> dict[str, Any]:
        begin = time.perf_counter()
        self._order.sample()
        first_s = time.perf_counter() - begin
        begin = time.perf_counter()
        self._order.sample()
        self._about_s = time.perf_counter() - begin
        return {"first_s": first_s, "transforms": len(list(composed(self._target.dataset)))}

    def _plain(self) -> dict[str, Any]:
        """Single samples as they are, one by one."""
        until = time.perf_counter() + 0.08 * self._seconds
        walls: list[float] = []
        indexes: list[int] = []
        cpu, process = time.thread_time(), time.process_time()
        stalled, begin = probe_storage.waited_for_cpu_s(), time.perf_counter()
        while len(walls) < 4 or (time.perf_counter() < until and len(walls) < 20_000):
            start = time.perf_counter()
            index, _ = self._order.sample()
            walls.append(time.perf_counter() - start)
            indexes.append(index)
        lasted, count = time.perf_counter() - begin, len(walls)
        cpu, process = time.thread_time() - cpu, time.process_time() - process
        after = probe_storage.waited_for_cpu_s()
        waited = max(after - stalled, 0.0) if after is not None and stalled is not None else 0.0
        order = sorted(range(count), key=walls.__getitem__)
        self._sample_s = lasted / count
        if self._torch is not None:
            size = int(max(1, min(self._target.batch_size, SHORT_BATCH_S / self._sample_s)))
            self._runs = self._torch.Runs(self._target, size)
        return {
            "count": count, "mean_s": lasted / count, "cpu_s": cpu / count,
            "process_cpu_s": process / count, "stalled_s": waited / count,
            "p50_s": walls[order[count // 2]], "p99_s": walls[order[int(0.99 * (count - 1))]],
            "slowest": [[indexes[n], walls[n]] for n in reversed(order[-5:])],
        }  # fmt: skip

    def _stages(self) -> dict[str, Any]:
        """Samples with all known stages wrapped; some are kept to be collated."""
        stages, kept, sizes = Stages(), list[Any](), 0
        most = max(self._target.batch_size, 1)
        before = probe_storage.counted()
        stalled = probe_storage.waited_for_cpu_s()
        count = 0
        with Places() as places, stages.around(self._target.dataset):
            sample = stages.timed("rest of __getitem__", "sample", self._order.sample)
            until = time.perf_counter() + 0.1 * self._seconds
            while count < 4 or (time.perf_counter() < until and count < 20_000):
                item = sample()[1]
                count += 1
                if len(kept) < most and sizes < MOST_ITEM_BYTES:
                    kept.append(item)
                    sizes += _bytes(item)
        after = probe_storage.counted()
        waited = probe_storage.waited_for_cpu_s()
        self._items, self._paths = kept, stages.paths
        self._item_bytes = sizes / len(kept)
        rchar, device = (
            (after[k] - before[k]) / count if k in after and k in before else None
            for k in ("rchar", "read_bytes")
        )
        self._asked_bytes = rchar
        place = places.most
        mapped, named = _mapped(self._target.dataset)
        self._files = [*stages.paths, *named]
        return {
            "count": count,
            "wall": {k: v / count for k, v in stages.wall.items()},
            "cpu": {k: v / count for k, v in stages.cpu.items()},
            "kinds": stages.kinds,
            "stalled_s": max((waited or 0.0) - (stalled or 0.0), 0.0) / count,
            "opens": stages.opens / count,
            "chunk_bytes": stages.chunk_bytes / count or None,
            "asked_bytes": rchar, "device_bytes": device,
            "used_bytes": self._item_bytes or None,
            "mapped": mapped,
            "place": None if place is None else list(place),
            "path": _path(self._files),
        }  # fmt: skip

    def _storage(self) -> dict[str, Any]:
        paths = [p for p in self._paths if os.path.isfile(p) and not p.startswith("/proc/")]
        per_sample = self._asked_bytes or 0.0
        held = []
        if not paths and per_sample > LEAST_ASKED:
            held = [p for p in probe_storage.open_files() if _is_data(p)]
        each = paths or held[:1] * 16 or [p for p in self._files if os.path.isfile(p)][:1] * 16
        random.Random(0).shuffle(each)
        cold, warm, reason = probe_storage.cold_and_warm(each, per_sample, 0.04 * self._seconds)
        return {"cold_s": cold, "warm_s": warm, "reason": reason, "path": _path(each)}

    def _opencv(self) -> dict[str, Any]:
        """OpenCV's own threads: how many, and what a sample takes with and without them."""
        cv2 = sys.modules.get("cv2")
        if cv2 is None or not hasattr(cv2, "getNumThreads"):
            return {"threads": None}
        had = int(cv2.getNumThreads())
        if had <= 1:
            return {"threads": had}
        found = {}
        for name, number in (("with_s", had), ("without_s", 0), ("with_s", had)):
            cv2.setNumThreads(number)
            begin, until, count = time.process_time(), time.perf_counter() + 0.04 * self._seconds, 0
            while count < 3 or time.perf_counter() < until:
                self._order.sample()
                count += 1
            found[name] = (time.process_time() - begin) / count
        cv2.setNumThreads(had)
        return {"threads": had, **found}

    def _collate(self) -> dict[str, Any]:
        items = (self._items * self._runs.size)[: self._runs.size]
        seconds, batch = self._torch.collated(self._runs, items, 0.05 * self._seconds)
        self._batch = batch
        about = self._torch.about_tensors(batch, len(items))
        self._batch_bytes = about["bytes"] * self._target.batch_size
        return {"collate_s": seconds, "measured_batch": self._runs.size, **about}

    def _room(self) -> bool:
        """Whether shared memory holds what one worker hands over, with a batch to spare."""
        free = self._asked["shm_free"]
        return free is None or 5 * getattr(self, "_batch_bytes", 0.0) <= free

    def _loader(self, workers: int) -> dict[str, Any]:
        run = self._runs.run(workers, (0.13 if workers else 0.08) * self._seconds)
        return {"workers": workers, **vars(run)}

    def _hand_over(self) -> dict[str, Any]:
        size = self._target.batch_size
        items = (self._items * size)[:size]
        run = self._torch.handed_over(self._runs, items, 0.06 * self._seconds)
        found = {"wall_s": 1 / run.rate, "worker_cpu_s": run.worker_cpu_s}
        about = self._torch.about_tensors(self._batch, self._runs.size)
        if about["float_share"] > 0.5:
            few = [self._torch.narrow(one) for one in items]
            with suppress(Exception):
                run = self._torch.handed_over(self._runs, few, 0.05 * self._seconds)
                found["narrow_s"] = 1 / run.rate
            found["convert_s"] = self._torch.converting_s(items[0])
        return found

    def _scaling(self) -> dict[str, Any]:
        """One process, then as many as CPUs, that only ask for samples."""
        one = _spin(self._order, 1, 0.05 * self._seconds)
        many = _spin(self._order, self._cpus, 0.07 * self._seconds) if self._cpus > 1 else one
        return {"processes": self._cpus, "one": one, "many": many}

    def _threads(self) -> dict[str, Any]:
        """How long the interpreter's lock is held: what threads could do side by side."""
        share = _lock_share(self._order, max(0.06 * self._seconds, 0.3))
        return {"lock_share": share}

    def _copying(self) -> dict[str, Any]:
        found = self._torch.to_device(self._batch, self._runs.size)
        return {"stages": found, "copy_rate": self._torch.copy_rate()}


class _Order:
    """Asks for samples one after the other, in the user's order."""

    def __init__(self, target: Target) -> None:
        self.dataset = target.dataset
        self.indexes = list(target.flat()) if target.batches is not None else None
        self.at = 0
        self._running: Iterator[Any] | None = None

    def sample(self) -> tuple[int, Any]:
        """(index, sample); the index is the running number where there are no indexes."""
        if self.indexes is not None:
            index = self.indexes[self.at % len(self.indexes)]
            self.at += 1
            if hasattr(type(self.dataset), "__getitem__"):
                return index, self.dataset[index]
            return index, self.dataset.__getitems__([index])[0]
        for _ in range(2):
            if self._running is None:
                self._running = iter(self.dataset)
            for item in self._running:
                self.at += 1
                return self.at - 1, item
            self._running = None
        raise RuntimeError("the data set gives no samples")


def _spin(order: _Order, count: int, seconds: float) -> list[list[float]]:
    """[samples/s, CPU seconds per sample, CPUs had, CPUs wanted] of each of ``count`` processes."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(count)
    ends: list[Any] = []
    processes = []
    for number in range(count):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=_spun, args=(order, number, seconds, theirs, barrier), daemon=True
        )
        process.start()
        theirs.close()
        ends.append(ours)
        processes.append(process)
    try:
        found = []
        for end in ends:
            if not end.poll(seconds * 4 + 30):
                raise TimeoutError("a forked process gave no sample; is the data set safe to fork?")
            found.append(end.recv())
        return found
    finally:
        for process in processes:
            process.join(1.0)
            if process.is_alive():
                process.kill()


def _spun(order: _Order, number: int, seconds: float, end: Any, barrier: Any) -> None:
    order.at += number * 7919
    order.sample()
    barrier.wait(30)
    begin, cpu, count, stalled = time.perf_counter(), time.process_time(), 0, _stalled_s()
    while count < 3 or time.perf_counter() - begin < seconds:
        order.sample()
        count += 1
    lasted, spent = time.perf_counter() - begin, time.process_time() - cpu
    wanted = spent + _stalled_s() - stalled
    end.send([count / lasted, spent / count, spent / lasted, wanted / lasted])
    end.close()
    os._exit(0)


def _lock_share(order: _Order, seconds: float) -> float | None:
    """The share of time in which the thread that loads holds the interpreter's lock.

    Another thread sleeps a little, again and again, and sees how much later than asked it goes on,
    without what it waited for a CPU: that long, the lock was held.
    """
    late: list[float] = []
    end = threading.Event()

    def ask() -> None:
        while not end.is_set():
            stalled = _stalled_s()
            asked = time.perf_counter()
            time.sleep(ASK_EVERY_S)
            woke = time.perf_counter()
            late.append(woke - asked - ASK_EVERY_S - (_stalled_s() - stalled))

    thread = threading.Thread(target=ask, daemon=True)
    begin = time.perf_counter()
    thread.start()
    while time.perf_counter() - begin < seconds or len(late) < ENOUGH_ASKED:
        order.sample()
        if time.perf_counter() - begin > 10 * seconds:
            break
    end.set()
    thread.join(5.0)
    return sum(one > LATE_S for one in late) / len(late) if late else None


def _stalled_s() -> float:
    return probe_storage.waited_for_cpu_s() or 0.0


def _bytes(item: Any) -> int:
    """Bytes of the arrays, tensors and byte strings in a sample."""
    if isinstance(item, dict):
        return sum(_bytes(one) for one in item.values())
    if isinstance(item, list | tuple):
        return sum(_bytes(one) for one in item[:1000])
    if isinstance(item, bytes | bytearray | str):
        return len(item)
    with suppress(Exception):
        return int(item.nbytes)
    return 0


def _mapped(dataset: Any) -> tuple[bool, list[str]]:
    """Whether the data set holds memory-mapped arrays, and the files of those."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False, []
    held = vars(dataset).values() if hasattr(dataset, "__dict__") else ()
    names = [str(one.filename) for one in held if isinstance(one, numpy.memmap)]
    return bool(names), names


def _is_data(path: str) -> bool:
    return not path.endswith((".py", ".pyc", ".so", ".log")) and "site-packages" not in path


def _path(paths: list[str]) -> str | None:
    """The first path that exists, to ask what it lies on."""
    return next((os.path.abspath(p) for p in paths if os.path.exists(p)), None)


def _said(error: BaseException) -> str:
    """The error in a line, with the innermost line of code that is the user's."""
    from whyidle.data.probe_stages import is_users

    told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    frames = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames if is_users(frame.filename)]
    return f"{told} ({mine[-1].filename}:{mine[-1].lineno})" if mine else told


def main(arguments: list[str]) -> None:
    """Read the request, run all parts, write the result line by line."""
    request = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    with open(arguments[1], "a", encoding="utf-8") as file:

        def write(line: dict[str, Any]) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        Child(request, write).run()


if __name__ == "__main__":
    main(sys.argv[1:])

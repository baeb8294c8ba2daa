"""How one batch of a loader is read, in whatever thread: samples, collation, pinning."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from whyidle.data.loader_crew import Fetched, Task
from whyidle.data.loader_draws import drawing_from, seed_of, torch_draws

SAMPLE, BATCH, THREAD = 0, 1, 2


class Reading:
    """Reads batches; what a sample draws depends on ``seed`` and its place in the epoch only.

    ``seed`` None leaves random numbers to the global generators.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any],
        batched: bool,
        seed: int | None,
        pin: Callable[[Any], Any] | None,
    ) -> None:
        self.dataset, self.collate, self.batched = dataset, collate, batched
        self.seed, self.pin = seed, pin
        self.left: Callable[[], bool] = _never
        """Whether nobody waits for batches any more."""

    def __call__(self, task: Task) -> Fetched:
        """Fetch one batch; an error of the user's code is kept for the main thread."""
        try:
            return self._fetched(task)
        except StopIteration as error:
            wrong = RuntimeError("The data set raised StopIteration for a sample that it has.")
            wrong.__cause__ = error
            return Fetched(error=wrong)
        except BaseException as error:  # noqa: BLE001  raised in the main thread
            return Fetched(error=error)

    def _fetched(self, task: Task) -> Fetched:
        return Fetched(self._finished(task, self._samples(task)))

    def _samples(self, task: Task) -> Any:
        if not self.batched:
            return self._sample(task, task.first, task.indexes)
        whole = getattr(self.dataset, "__getitems__", None)
        if whole is not None:
            with self._draws(SAMPLE, task.first), _noting(task, "samples", task.indexes):
                return whole(task.indexes)
        found = []
        for place, index in enumerate(task.indexes, task.first):
            if self.left():
                break
            found.append(self._sample(task, place, index))
        return found

    def _sample(self, task: Task, place: int, index: Any) -> Any:
        with self._draws(SAMPLE, place), _noting(task, "sample", index):
            return self.dataset[index]

    def _finished(self, task: Task, samples: Any) -> Any:
        if self.left():
            return None
        with self._draws(BATCH, task.number):
            try:
                batch = self.collate(samples)
            except BaseException as error:
                error.add_note(f"(whyidle.data.Loader: while collating batch {task.number})")
                raise
        return batch if self.pin is None else self.pin(batch)

    def _draws(self, kind: int, place: int) -> Any:
        if self.seed is None:
            return nullcontext()
        return drawing_from(seed_of(self.seed, kind, place))

    @contextmanager
    def inside(self, number: int | None, start: Callable[[int], None] | None) -> Iterator[None]:
        """What a thread works within: one CPU for torch, own random numbers, the user's start."""
        import torch

        if number is not None:
            torch.get_num_threads()  # what a thread starts with; asked later it would undo the next
            torch.set_num_threads(1)
        with torch_draws() if self.seed is not None else nullcontext():
            if number is not None and start is not None:
                with self._draws(THREAD, number):
                    start(number)
            yield


@contextmanager
def _noting(task: Task, what: str, index: Any) -> Iterator[None]:
    """Say in an error's notes which sample it came from."""
    try:
        yield
    except BaseException as error:
        shown = repr(index)
        shown = shown if len(shown) <= 200 else shown[:200] + "..."
        error.add_note(f"(whyidle.data.Loader: {what} {shown}, in batch {task.number})")
        raise


def _never() -> bool:
    return False


class StreamReading(Reading):
    """Reads batches of a data set that is only iterated: drawn one at a time, collated in turn.

    ``size`` None: each item is a batch. Threads take their batch's number as they draw, so that
    order is the stream's.
    """

    def __init__(self, *given: Any, size: int | None, drop_last: bool) -> None:
        super().__init__(*given)
        self._size, self._drop_last = size, drop_last
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        self._next = 0
        self._items: Iterator[Any] | None = None
        self._ended = False

    def begin(self, number: int, skipped: int) -> None:
        """Start at batch ``number``, after reading ``skipped`` batches for nothing."""
        self._items = iter(self.dataset)
        self._next = number
        for batch in range(skipped):
            self._drawn(Task(batch, batch * (self._size or 1), None))

    def _fetched(self, task: Task) -> Fetched:
        with self._turn:
            while self._next != task.number and not self._ended and not self.left():
                self._turn.wait(0.1)
            try:
                samples = None if self._ended or self.left() else self._drawn(task)
            finally:
                self._next += 1
                self._turn.notify_all()
            if samples is None:
                return Fetched(end=True)
            tell = getattr(self.dataset, "state_dict", None)
            state = None if tell is None else tell()
        return Fetched(self._finished(task, samples), state=state)

    def _drawn(self, task: Task) -> Any:
        assert self._items is not None
        found: list[Any] = []
        for place in range(self._size or 1):
            with self._draws(SAMPLE, task.first + place):
                try:
                    found.append(next(self._items))
                except StopIteration:
                    self._ended = True
                    break
                except BaseException as error:
                    self._ended = True
                    error.add_note(
                        f"(whyidle.data.Loader: item {task.first + place} of the stream, in batch "
                        f"{task.number})"
                    )
                    raise
        if not found or (self._ended and self._drop_last and len(found) < (self._size or 1)):
            return None
        return found if self.batched else found[0]

"""``whyidle.data.Loader``: torch's DataLoader with threads in place of processes.

Where reading a sample drops the GIL (simplejpeg, OpenCV, Pillow's decoder, NumPy on large arrays)
threads reach the limit of the CPUs without handing batches over between processes. Batches, their
order and what each sample draws are the same for any number of threads.
"""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, Literal, Self

from whyidle.data import loader_state
from whyidle.data.loader_crew import Crew, Fetched, Task
from whyidle.data.loader_draws import draws, seed_of
from whyidle.data.loader_gil import LoaderHint, hint
from whyidle.data.loader_reading import Reading, StreamReading
from whyidle.data.loader_state import Position
from whyidle.errors import MissingPackage

ORDER, DRAWS = 0, 1


class Loader:
    """A drop-in for ``torch.utils.data.DataLoader`` whose workers are threads.

    Arguments are those of ``DataLoader`` and mean the same. ``num_workers`` are threads, which
    share the data set: it must bear being read by several at once. ``seed`` fixes order and
    augmentation of every epoch. ``draws`` says where random numbers of a sample come from: from a
    seed of its own (``"sample"``: the same whatever threads do) or from the global generators
    (``"shared"``). Workers that live on, start methods and worker seeds have no meaning for
    threads: ``persistent_workers`` and ``multiprocessing_context`` are taken and ignored.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        draws: Literal["sample", "shared"] = "sample",
    ) -> None:
        data = _torch_data()
        if num_workers < 0 or timeout < 0 or (prefetch_factor is not None and prefetch_factor < 1):
            raise ValueError("num_workers and timeout are 0 or more, prefetch_factor is 1 or more")
        if draws not in ("sample", "shared"):
            raise ValueError(f"draws is 'sample' or 'shared', not {draws!r}")
        self._order = None
        if seed is not None and generator is None and sampler is None and batch_sampler is None:
            self._order = generator = _generator()
        plain = data.DataLoader(  # checks the arguments, and makes sampler and collation
            dataset, batch_size, shuffle, sampler, batch_sampler, 0, collate_fn,
            drop_last=drop_last, generator=generator,
        )  # fmt: skip
        self.dataset = plain.dataset
        self.batch_size, self.drop_last = plain.batch_size, plain.drop_last
        self.sampler, self.batch_sampler = plain.sampler, plain.batch_sampler
        self.collate_fn, self.generator = plain.collate_fn, plain.generator
        self.num_workers, self.timeout = num_workers, timeout
        self.worker_init_fn, self.in_order = worker_init_fn, in_order
        self.prefetch_factor = prefetch_factor or 2
        self.pin_memory, self.pin_memory_device = pin_memory, pin_memory_device
        self.persistent_workers = persistent_workers
        self.multiprocessing_context = multiprocessing_context
        self.seed, self.draws = seed, draws
        self._plain = plain
        self._streamed = isinstance(dataset, data.IterableDataset)
        self._epoch = 0
        self._position: Position | None = None
        self._loaded: dict[str, Any] | None = None
        self._hinted = False

    def __len__(self) -> int:
        """Batches of an epoch, as ``DataLoader`` counts them."""
        return len(self._plain)

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch, or go on with the one that was loaded."""
        state, self._loaded = self._loaded, None
        if state is not None:
            self._epoch = state["epoch"]
        position, batches, first = self._begun(state)
        self._position = position
        self._epoch += 1
        return _Epoch(self, position, batches, first)

    def set_epoch(self, epoch: int) -> None:
        """The number of the next epoch, which order and augmentation follow from with ``seed``."""
        self._epoch = epoch
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: after the last batch that was handed out."""
        if self._loaded is not None:
            return self._loaded
        if self._position is None:
            return Position.fresh(self._epoch)
        return self._position.told()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration hand out exactly the batches that were left."""
        self._loaded = loader_state.checked(state)
        self._position = None

    def _begun(self, state: dict[str, Any] | None) -> tuple[Position, Iterator[Any], int]:
        """The epoch's position, its batches of indexes yet to come, and samples before them."""
        if self._order is not None:
            assert self.seed is not None
            self._order.manual_seed(seed_of(self.seed, self._epoch, ORDER))
        if state is None or state["begun"] is None:
            saved = loader_state.begun(self)
            batches = self._batches()
            position = Position(self._epoch, self._seed(), saved)
            return position, batches, 0
        with loader_state.again(self, state["begun"]):
            batches = self._batches()
            self._seed()
            position = Position(self._epoch, state["seed"], state["begun"])
            first = self._skip(batches, state, position) if not self._streamed else 0
        position.stream = state["stream"]
        if self._streamed:
            position.batches, first = state["batches"], 0
        return position, batches, first

    def _batches(self) -> Iterator[Any]:
        if self._streamed:
            return iter(())
        return iter(self.sampler if self.batch_sampler is None else self.batch_sampler)

    def _skip(self, batches: Iterator[Any], state: dict[str, Any], position: Position) -> int:
        """Draw and drop what was handed out already; samples that it held."""
        first = 0
        for number in range(state["batches"]):
            indexes = next(batches, None)
            position.drawn(number, indexes)
            position.got(number)
            first += len(indexes) if self._batched and indexes is not None else 1
        loader_state.moved(position.digest, state["digest"], state["batches"])
        position.ahead = set(state["ahead"])
        return first

    def _seed(self) -> int:
        """The seed of what samples draw in this epoch."""
        if self.seed is not None:
            return seed_of(self.seed, self._epoch, DRAWS)
        import torch

        drawn = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return int(drawn.item())

    @property
    def _batched(self) -> bool:
        return self.batch_sampler is not None if not self._streamed else self.batch_size is not None

    def _ended(self, position: Position) -> None:
        if self._position is position:
            self._position = None

    def _tell(self, found: str | None) -> None:
        if found is not None and not self._hinted:
            self._hinted = True
            warnings.warn(found, LoaderHint, stacklevel=4)


class _Epoch:
    """One pass over the data; dropping it stops its threads."""

    def __init__(
        self, loader: Loader, position: Position, batches: Iterator[Any], first: int
    ) -> None:
        self._loader, self._position, self._batches = loader, position, batches
        self._first, self._number = first, position.batches
        self._skipped, self._asked = set(position.ahead), 0
        self._any = not loader.in_order and not loader._streamed and loader.num_workers > 0
        self._reading = _reading(loader, position)
        if isinstance(self._reading, StreamReading):
            _restart(self._reading, loader, position)
        self._crew: Crew | None = None
        self._ends = weakref.finalize(self, ExitStack().close)
        self._over = False

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        try:
            number, fetched = self._inline() if self._loader.num_workers == 0 else self._taken()
        except BaseException:
            self._close()
            raise
        if fetched.end:
            self._finish()
            raise StopIteration
        self._position.got(number, fetched.state)
        if fetched.error is not None:
            raise fetched.error
        return fetched.batch

    def _drawn(self) -> Task | None:
        """The next batch to fetch; None after the last one."""
        while True:
            number, first = self._number, self._first
            if self._loader._streamed:
                size = self._loader.batch_size or 1
                self._number += 1
                return Task(number, number * size, None)
            try:
                indexes = next(self._batches)
            except StopIteration:
                return None
            self._position.drawn(number, indexes)
            self._number += 1
            self._first += len(indexes) if self._loader._batched else 1
            if number not in self._skipped:
                return Task(number, first, indexes)

    def _inline(self) -> tuple[int, Fetched]:
        """Fetch the next batch in this thread."""
        task = self._drawn()
        if task is None:
            return -1, Fetched(end=True)
        draws.begin()
        try:
            with self._reading.inside(None, None):
                fetched = self._reading(task)
        finally:
            draws.end()
        if isinstance(fetched.error, KeyboardInterrupt):
            raise fetched.error
        return task.number, fetched

    def _taken(self) -> tuple[int, Fetched]:
        """Keep the threads busy, and take the next batch from them."""
        loader = self._loader
        crew = self._crew or self._start()
        while self._asked < loader.num_workers * loader.prefetch_factor:
            task = self._drawn()
            if task is None:
                break
            crew.give(task)
            self._asked += 1
        if not self._asked:
            return -1, Fetched(end=True)
        self._asked -= 1
        return crew.take(None if self._any else self._due(), loader.timeout)

    def _due(self) -> int:
        """The lowest number that was not handed out yet."""
        number = self._position.batches
        while number in self._position.ahead:
            number += 1
        return number

    def _start(self) -> Crew:
        import torch

        loader, reading = self._loader, self._reading
        own = torch.get_num_threads()
        with ExitStack() as undo:
            draws.begin()
            undo.callback(draws.end)
            _one_thread_of_cv2(undo)
            crew = Crew(
                loader.num_workers,
                reading,
                lambda number: reading.inside(number, loader.worker_init_fn),
            )
            torch.set_num_threads(own)  # threads that begin later, such as autograd's
            undo.callback(crew.stop)
            self._ends.detach()
            self._ends = weakref.finalize(self, undo.pop_all().close)
        reading.left = lambda: crew.stopped
        self._crew = crew
        return crew

    def _finish(self) -> None:
        crew, self._crew = self._crew, None
        self._close()
        self._loader._ended(self._position)
        if crew is not None:
            self._loader._tell(hint(crew.seen, self._loader.num_workers))

    def _close(self) -> None:
        self._over = True
        self._ends()


def _reading(loader: Loader, position: Position) -> Reading:
    seed = position.seed if loader.draws == "sample" else None
    pin = _pin(loader) if loader.pin_memory else None
    given = (loader.dataset, loader.collate_fn, loader._batched, seed, pin)
    if loader._streamed:
        return StreamReading(*given, size=loader.batch_size, drop_last=loader.drop_last)
    return Reading(*given)


def _restart(reading: StreamReading, loader: Loader, position: Position) -> None:
    """Let a stream begin where it was: by its own state, or by reading up to there."""
    load = getattr(loader.dataset, "load_state_dict", None)
    if position.stream is not None and load is not None:
        load(position.stream)
        reading.begin(position.batches, 0)
    else:
        reading.begin(position.batches, position.batches)


def _pin(loader: Loader) -> Callable[[Any], Any] | None:
    """Puts a batch into memory that a GPU can copy from on its own; None without a GPU."""
    import torch

    if not torch.accelerator.is_available():
        return None
    from torch.utils.data._utils import pin_memory

    pin: Any = pin_memory.pin_memory
    device = torch.accelerator.current_device_index()

    def pinned(batch: Any) -> Any:
        torch.accelerator.set_device_index(device)
        return pin(batch)

    return pinned


def _one_thread_of_cv2(undo: ExitStack) -> None:
    """OpenCV's own threads would fight ours for the CPUs; they come back with the epoch's end."""
    cv2 = sys.modules.get("cv2")
    if cv2 is None or threading.current_thread() is not threading.main_thread():
        return
    with suppress(AttributeError):
        undo.callback(cv2.setNumThreads, cv2.getNumThreads())
        cv2.setNumThreads(1)


def _generator() -> Any:
    import torch

    return torch.Generator()


def _torch_data() -> Any:
    try:
        import torch.utils.data as data
    except ImportError as error:
        raise MissingPackage("torch", "whyidle.data.Loader") from error
    return data

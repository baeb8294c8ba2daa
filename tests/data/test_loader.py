"""Loader against torch's DataLoader: the same batches, errors and length, by threads."""

from __future__ import annotations

import gc
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)  # fmt: skip

from whyidle.data import Loader  # noqa: E402
from whyidle.data.loader_crew import Seen  # noqa: E402
from whyidle.data.loader_gil import Scaling, hint, scaling  # noqa: E402
from whyidle.errors import DataError  # noqa: E402


class Squares(Dataset):
    """Sample i is (i, i * i); now and then a thread is overtaken."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> tuple[int, Any]:
        if index % 5 == 0:
            time.sleep(0.001)
        return index, torch.full((3,), index * index)


class Stream(IterableDataset):
    """Counts up to 23."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(23))


def batches(loader: Any) -> list[Any]:
    return [tuple(part.tolist() for part in batch) for batch in loader]


def first_parts(samples: list[Any]) -> list[torch.Tensor]:
    return [torch.tensor([sample[0] for sample in samples])]


ARGUMENTS: list[dict[str, Any]] = [
    {"batch_size": 4},
    {"batch_size": 4, "drop_last": True},
    {"batch_size": 4, "shuffle": True},
    {"batch_size": 50, "shuffle": True},
    {"batch_size": None},
    {"batch_size": 3, "sampler": range(5, 15)},
    {"batch_sampler": [[3, 1], [2], [7, 7, 7]]},
    {"batch_size": 3, "collate_fn": first_parts},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=lambda a: "-".join(a))
@pytest.mark.parametrize("threads", [0, 1, 3])
def test_batches_and_their_order_are_those_of_a_dataloader(
    arguments: dict[str, Any], threads: int
) -> None:
    def made(kind: Any, **more: Any) -> list[Any]:
        loader = kind(Squares(), generator=torch.Generator().manual_seed(5), **arguments, **more)
        if arguments.get("batch_size", 1) is None:
            return [(index, part.tolist()) for index, part in loader]
        return batches(loader)

    assert made(Loader, num_workers=threads) == made(DataLoader)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_global_seed_gives_the_order_it_gives_a_dataloader(threads: int) -> None:
    torch.manual_seed(9)
    wanted = [batches(loader) for loader in [DataLoader(Squares(), 4, True)] * 3]
    torch.manual_seed(9)
    assert [batches(it) for it in [Loader(Squares(), 4, True, num_workers=threads)] * 3] == wanted


@pytest.mark.parametrize(
    "wrong",
    [
        {"shuffle": True, "sampler": range(3)},
        {"batch_size": 2, "batch_sampler": [[1]]},
        {"batch_size": None, "drop_last": True},
        {"num_workers": -1},
        {"prefetch_factor": 0},
        {"draws": "mine"},
    ],
    ids=str,
)
def test_arguments_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Loader(Squares(), **wrong)


@pytest.mark.parametrize("arguments", [{"batch_size": 4}, {"batch_size": 4, "drop_last": True}])
def test_the_length_is_that_of_a_dataloader(arguments: dict[str, Any]) -> None:
    assert len(Loader(Squares(), **arguments)) == len(DataLoader(Squares(), **arguments))


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("size", [None, 4, 23, 30])
def test_a_stream_gives_what_it_gives_a_dataloader(threads: int, size: int | None) -> None:
    for drop_last in (False, True) if size else (False,):
        arguments: dict[str, Any] = {"batch_size": size, "drop_last": drop_last}
        wanted = [torch.as_tensor(b).tolist() for b in DataLoader(Stream(), **arguments)]
        loader = Loader(Stream(), num_workers=threads, **arguments)
        assert [torch.as_tensor(b).tolist() for b in loader] == wanted


def test_a_stream_with_a_sampler_is_refused_as_by_dataloader() -> None:
    with pytest.raises(ValueError, match="sampler"):
        Loader(Stream(), sampler=[1, 2])


def test_out_of_order_gives_every_batch_once() -> None:
    loader = Loader(Squares(), 2, num_workers=3, in_order=False)
    assert sorted(batches(loader)) == batches(Loader(Squares(), 2))


class Whole(Squares):
    """Reads a batch at a time."""

    def __getitems__(self, indexes: list[int]) -> list[tuple[int, Any]]:
        return [self[index] for index in indexes]


def test_a_data_set_that_reads_whole_batches_is_asked_for_them() -> None:
    assert batches(Loader(Whole(), 4, num_workers=2)) == batches(DataLoader(Squares(), 4))


class Broken(Squares):
    """Sample 10 cannot be read."""

    def __getitem__(self, index: int) -> Any:
        if index == 10:
            raise KeyError("a lost picture")
        return super().__getitem__(index)


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_comes_in_its_turn_with_the_sample_and_the_line_of_the_data_set(
    threads: int,
) -> None:
    epoch = iter(Loader(Broken(), 4, num_workers=threads))
    assert [next(epoch)[0].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(KeyError, match="a lost picture") as caught:
        next(epoch)
    assert "sample 10, in batch 2" in "".join(caught.value.__notes__)
    told = "".join(traceback.format_exception(caught.value))
    assert 'raise KeyError("a lost picture")' in told
    assert next(epoch)[0].tolist() == [12, 13, 14, 15]


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_while_collating_names_the_batch(threads: int) -> None:
    def collate(samples: list[Any]) -> Any:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ") as caught:
        next(iter(Loader(Squares(), 4, num_workers=threads, collate_fn=collate)))
    assert "collating batch 0" in caught.value.__notes__[0]


@pytest.mark.parametrize("threads", [0, 2])
def test_stop_iteration_of_a_sample_does_not_end_the_epoch_in_silence(threads: int) -> None:
    class Stops(Squares):
        def __getitem__(self, index: int) -> Any:
            raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(Loader(Stops(), 4, num_workers=threads))


def test_an_error_of_a_stream_names_the_item() -> None:
    class Torn(IterableDataset):
        def __iter__(self) -> Iterator[int]:
            yield from range(5)
            raise OSError("torn")

    epoch = iter(Loader(Torn(), 2, num_workers=2))
    next(epoch), next(epoch)
    with pytest.raises(OSError, match="torn") as caught:
        next(epoch)
    assert "item 5" in caught.value.__notes__[0]
    assert list(epoch) == []


def test_an_error_of_the_start_function_is_raised() -> None:
    def start(worker: int) -> None:
        raise RuntimeError(f"worker {worker} has no licence")

    with pytest.raises(RuntimeError, match="no licence"):
        list(Loader(Squares(), 4, num_workers=2, worker_init_fn=start))
    assert threads_left() == []


def threads_left() -> list[str]:
    gc.collect()
    return [t.name for t in threading.enumerate() if t.name.startswith("loader-")]


def test_no_thread_is_left_after_an_epoch_a_break_an_error_or_a_dropped_iterator() -> None:
    for _ in Loader(Squares(), 4, num_workers=3):
        pass
    assert threads_left() == []
    for _ in Loader(Squares(), 2, num_workers=3):
        break
    assert threads_left() == []
    epoch = iter(Loader(Squares(), 2, num_workers=3))
    next(epoch)
    del epoch
    assert threads_left() == []
    with pytest.raises(KeyError):
        list(Loader(Broken(), 4, num_workers=3))
    assert threads_left() == []


def test_ctrl_c_while_waiting_ends_the_threads() -> None:
    class Slow(Squares):
        def __getitem__(self, index: int) -> Any:
            if index == 2:
                signal.raise_signal(signal.SIGINT)
                time.sleep(0.05)
            return super().__getitem__(index)

    with pytest.raises(KeyboardInterrupt):
        for _ in Loader(Slow(), 1, num_workers=2):
            pass
    assert threads_left() == []


def test_a_batch_that_does_not_come_in_time_is_an_error() -> None:
    free = threading.Event()

    class Stuck(Squares):
        def __getitem__(self, index: int) -> Any:
            free.wait(30)
            return super().__getitem__(index)

    epoch = iter(Loader(Stuck(), 4, num_workers=1, timeout=0.01))
    threading.Timer(0.2, free.set).start()
    with pytest.raises(DataError, match="waited 0.01 s"):
        next(epoch)
    assert threads_left() == []


def test_torch_keeps_its_number_of_threads() -> None:
    before = torch.get_num_threads()
    inside: list[int] = []

    class Counts(Squares):
        def __getitem__(self, index: int) -> Any:
            inside.append(torch.get_num_threads())
            return super().__getitem__(index)

    list(Loader(Counts(), 4, num_workers=2))
    assert set(inside) == {1} and torch.get_num_threads() == before


def test_batches_fetched_ahead_are_bounded() -> None:
    read: list[int] = []

    class Counts(Squares):
        def __getitem__(self, index: int) -> Any:
            read.append(index)
            return super().__getitem__(index)

    epoch = iter(Loader(Counts(), 1, num_workers=2, prefetch_factor=3))
    next(epoch)
    time.sleep(0.05)
    assert len(read) <= 1 + 2 * 3


@pytest.mark.parametrize("threads", [0, 2])
def test_two_epochs_at_once_do_not_disturb_each_other(threads: int) -> None:
    loader = Loader(Squares(), 4, num_workers=threads)
    assert [a[0].tolist() == b[0].tolist() for a, b in zip(loader, loader, strict=True)] == [
        True
    ] * 6


SAMPLERS: list[Any] = [
    lambda: RandomSampler(Squares(), replacement=True, num_samples=40),
    lambda: WeightedRandomSampler([1.0] * 23, 23, generator=torch.Generator().manual_seed(1)),
    lambda: SequentialSampler(Squares()),
]


@pytest.mark.parametrize("make", SAMPLERS)
def test_samplers_of_torch_give_their_order(make: Any) -> None:
    torch.manual_seed(2)
    wanted = batches(DataLoader(Squares(), 4, sampler=make()))
    torch.manual_seed(2)
    assert batches(Loader(Squares(), 4, sampler=make(), num_workers=2)) == wanted
    sampler = BatchSampler(SequentialSampler(Squares()), 5, True)
    assert len(Loader(Squares(), batch_sampler=sampler)) == 4


def test_threads_that_wait_for_the_gil_are_hinted_at() -> None:
    held = Seen(batches=40, busy_s=20, cpu_s=10, gil_s=0.2, began=0, ended=10)
    told = hint(held, threads=2)
    assert told is not None and "used 1.0 CPUs" in told and "5.0 ms" in told


@pytest.mark.parametrize(
    "seen",
    [
        Seen(batches=40, busy_s=20, cpu_s=19, gil_s=0.0004, ended=10),  # GIL dropped, CPUs used
        Seen(batches=40, busy_s=20, cpu_s=2, gil_s=0.0004, ended=10),  # waits for storage
        Seen(batches=3, busy_s=20, cpu_s=10, gil_s=0.2, ended=10),  # too few to say
        Seen(),
    ],
)
def test_threads_that_do_not_wait_for_the_gil_are_left_alone(seen: Seen) -> None:
    assert hint(seen, threads=2) is None


def test_one_thread_has_nothing_to_wait_for() -> None:
    assert hint(Seen(batches=40, busy_s=20, cpu_s=10, gil_s=0.2, ended=10), threads=1) is None


def test_scaling_counts_samples_and_says_who_drops_the_gil() -> None:
    found = scaling(lambda index: time.sleep(0.001), range(10), threads=2, seconds=0.05)
    assert found.one > 0 and found.all > 0
    assert Scaling(2, 100, 190).drops_gil and not Scaling(2, 100, 105).drops_gil
    assert Scaling(4, 100, 290).drops_gil and not Scaling(4, 100, 250).drops_gil


def test_an_error_while_measuring_is_the_users_own() -> None:
    with pytest.raises(KeyError):
        scaling(Broken().__getitem__, [10], threads=2, seconds=0.01)

"""A loader that is saved after any batch and goes on elsewhere."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from torch.utils.data import (  # noqa: E402
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
)  # fmt: skip

from whyidle.data import Loader  # noqa: E402
from whyidle.errors import UsageError  # noqa: E402


class Drawing(Dataset):
    """Each sample is its index and what it draws."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, random.random(), float(np.random.rand()), float(torch.rand(1))


class Shuffled:
    """A user's sampler, which draws from the global state of random or of NumPy."""

    def __init__(self, numpy: bool) -> None:
        self.numpy = numpy

    def __len__(self) -> int:
        return 22

    def __iter__(self) -> Iterator[int]:
        order = list(range(22))
        np.random.shuffle(order) if self.numpy else random.shuffle(order)
        return iter(order)


def loader(kind: str, **more: Any) -> Loader:
    data = Drawing()
    kinds: dict[str, dict[str, Any]] = {
        "in order": {},
        "global seed": {"shuffle": True},
        "seed": {"shuffle": True, "seed": 4},
        "generator": {"shuffle": True, "generator": torch.Generator().manual_seed(8)},
        "replacement": {"sampler": RandomSampler(data, True, 30)},
        "distributed": {"sampler": DistributedSampler(data, 2, 1, seed=5)},
        "random": {"sampler": Shuffled(False)},
        "numpy": {"sampler": Shuffled(True)},
    }
    return Loader(data, 3, collate_fn=list, **kinds[kind], **more)


KINDS = ["in order", "global seed", "seed", "generator", "replacement", "distributed", "random",
         "numpy"]  # fmt: skip


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_after_every_batch_exactly_the_remaining_batches_come(kind: str, threads: int) -> None:
    running = loader(kind, num_workers=threads)
    next(iter(running))  # not the first epoch
    got, states = [], [running.state_dict()]
    for batch in running:
        got.append(batch)
        states.append(json.loads(json.dumps(running.state_dict())))
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    for after, state in enumerate(states[1:], 1):
        fresh = loader(kind, num_workers=2 - threads)
        fresh.load_state_dict(state)
        assert fresh.state_dict() == state
        assert list(fresh) == got[after:]


@pytest.mark.parametrize("kind", ["seed", "generator"])
def test_the_epochs_after_a_resumed_one_are_those_of_the_run_that_went_on(kind: str) -> None:
    whole = loader(kind)
    epochs = [list(whole) for _ in range(3)]
    running = loader(kind)
    state = [running.state_dict() for _ in running][2]
    fresh = loader(kind)
    fresh.load_state_dict(state)
    assert [list(fresh) for _ in range(3)] == [epochs[0][3:], *epochs[1:]]


def test_between_epochs_a_state_begins_the_next_one() -> None:
    running = loader("seed", num_workers=1)
    list(running)
    state = running.state_dict()
    fresh = loader("seed")
    fresh.load_state_dict(state)
    assert list(fresh) == list(running)


def test_the_state_after_a_break_is_where_the_loop_was_left() -> None:
    running = loader("global seed", num_workers=2)
    kept = iter(running)
    got = [next(kept), next(kept)]
    state = running.state_dict()
    got_after = list(kept)
    fresh = loader("global seed")
    fresh.load_state_dict(state)
    assert list(fresh) == got_after and len(got) == 2


def test_resumed_twice_it_still_goes_on() -> None:
    running = loader("global seed")
    whole = []
    states = []
    for batch in running:
        whole.append(batch)
        states.append(running.state_dict())
    second = loader("global seed", num_workers=1)
    second.load_state_dict(states[1])
    epoch = iter(second)
    next(epoch)
    third = loader("global seed")
    third.load_state_dict(second.state_dict())
    assert list(third) == whole[3:]


def test_out_of_order_no_batch_comes_twice_and_none_is_lost() -> None:
    running = loader("seed", num_workers=3, in_order=False)
    epoch = iter(running)
    got = [next(epoch) for _ in range(4)]
    fresh = loader("seed", num_workers=3, in_order=False)
    fresh.load_state_dict(running.state_dict())
    assert sorted(got + list(fresh)) == sorted(loader("seed"))


def test_batches_already_handed_out_of_order_are_skipped() -> None:
    running = loader("seed")
    whole = list(running)
    again = loader("seed")
    epoch = iter(again)
    next(epoch)
    state = {**again.state_dict(), "ahead": [2, 4]}
    for threads, in_order in ((0, True), (2, True), (2, False)):
        fresh = loader("seed", num_workers=threads, in_order=in_order)
        fresh.load_state_dict(state)
        left = [whole[k] for k in (1, 3, 5, 6, 7)]
        assert sorted(fresh) == sorted(left) if not in_order else list(fresh) == left


def test_a_checkpoint_of_torch_takes_it() -> None:
    running = loader("global seed")
    epoch = iter(running)
    next(epoch)
    file = io.BytesIO()
    torch.save(running.state_dict(), file)
    file.seek(0)
    fresh = loader("global seed")
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert list(fresh) == list(epoch)


def test_another_batch_size_or_data_set_is_refused() -> None:
    running = loader("seed")
    epoch = iter(running)
    next(epoch)
    other = Loader(Drawing(), 4, True, seed=4, collate_fn=list)
    other.load_state_dict(running.state_dict())
    with pytest.raises(UsageError, match="order is not the one"):
        iter(other)


def test_a_state_of_something_else_is_refused() -> None:
    with pytest.raises(UsageError, match="no state of whyidle"):
        loader("seed").load_state_dict({"_snapshot": {}})


def test_global_generators_stay_where_they_are_when_a_state_is_taken_up() -> None:
    running = loader("global seed")
    epoch = iter(running)
    next(epoch)
    torch.manual_seed(77), random.seed(77), np.random.seed(77)
    fresh = loader("global seed")
    fresh.load_state_dict(running.state_dict())
    iter(fresh)
    assert torch.initial_seed() == 77
    found = float(torch.rand(1)), random.random(), float(np.random.rand())
    torch.manual_seed(77), random.seed(77), np.random.seed(77)
    assert found == (float(torch.rand(1)), random.random(), float(np.random.rand()))


class Stream(IterableDataset):
    """A stream that can be told where to begin."""

    def __init__(self, stateful: bool) -> None:
        self.at = 0
        self.loads = 0
        if stateful:
            self.state_dict = lambda: {"at": self.at}
            self.load_state_dict = self._load

    def _load(self, state: dict[str, int]) -> None:
        self.at, self.loads = state["at"], self.loads + 1

    def __iter__(self) -> Iterator[tuple[int, float]]:
        for number in range(self.at, 22):
            self.at = number + 1
            yield number, random.random()
        self.at = 0


@pytest.mark.parametrize("stateful", [True, False])
@pytest.mark.parametrize("threads", [0, 3])
def test_a_stream_goes_on_by_its_own_state_or_by_reading_up_to_it(
    stateful: bool, threads: int
) -> None:
    running = Loader(Stream(stateful), 3, num_workers=threads, seed=1, collate_fn=list)
    got, states = [], []
    for batch in running:
        got.append(batch)
        states.append(json.loads(json.dumps(running.state_dict())))
    assert [n for batch in got for n, _ in batch] == list(range(22))
    for after, state in enumerate(states[:-1], 1):
        data = Stream(stateful)
        fresh = Loader(data, 3, num_workers=2, seed=1, collate_fn=list)
        fresh.load_state_dict(state)
        assert list(fresh) == got[after:]
        assert data.loads == int(stateful)

"""What samples draw: independent of threads, and distributed as under a DataLoader."""

from __future__ import annotations

import math
import random
import sys
import time
import types
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from torch.utils.data import DataLoader, Dataset  # noqa: E402

from whyidle.data import Loader  # noqa: E402
from whyidle.data.loader_draws import seed_of  # noqa: E402

DRAWS: dict[str, Callable[[], Any]] = {
    "random": lambda: random.random(),
    "random.gauss": lambda: random.gauss(0, 1),
    "random.shuffle": lambda: random.sample(range(100), 4),
    "numpy": lambda: float(np.random.rand()),
    "numpy.normal": lambda: np.random.normal(size=2).tolist(),
    "numpy.permutation": lambda: np.random.permutation(9).tolist(),
    "torch.rand": lambda: torch.rand(2).tolist(),
    "torch.randint": lambda: torch.randint(0, 1000, (2,)).tolist(),
    "torch.randperm": lambda: torch.randperm(9).tolist(),
    "torch.uniform_": lambda: torch.empty(2).uniform_(0, 3).tolist(),
    "torch.rand_like": lambda: torch.rand_like(torch.zeros(2, dtype=torch.float64)).tolist(),
    "torch.randn_like": lambda: torch.randn_like(torch.zeros(2)).tolist(),
    "torch.randint_like": lambda: torch.randint_like(torch.zeros(2), 1000).tolist(),
    "torch.bernoulli": lambda: torch.full((9,), 0.5).bernoulli().tolist(),
    "torch.multinomial": lambda: torch.multinomial(torch.ones(50), 4).tolist(),
    "torch.normal": lambda: torch.normal(0.0, 1.0, (2,)).tolist(),
}


class Draws(Dataset):
    """Each sample is one draw; threads overtake each other."""

    def __init__(self, draw: Callable[[], Any], count: int = 40, slow: bool = True) -> None:
        self.draw, self.count, self.slow = draw, count, slow

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if self.slow and index % 7 == 3:
            time.sleep(0.0005)
        return self.draw()


def drawn(data: Draws, threads: int, seed: int | None = 1, **more: Any) -> list[Any]:
    loader = Loader(data, 4, num_workers=threads, seed=seed, collate_fn=list, **more)
    return [sample for batch in loader for sample in batch]


@pytest.mark.parametrize("name", DRAWS)
def test_what_a_sample_draws_does_not_depend_on_threads(name: str) -> None:
    alone = drawn(Draws(DRAWS[name]), 0)
    assert drawn(Draws(DRAWS[name]), 3) == alone
    assert drawn(Draws(DRAWS[name]), 3, seed=2) != alone
    assert len({str(one) for one in alone}) > 30  # samples draw apart


def test_epochs_draw_apart_and_a_seed_repeats_them() -> None:
    def epochs() -> list[Any]:
        loader = Loader(Draws(DRAWS["random"]), 4, True, num_workers=2, seed=3, collate_fn=list)
        return [list(loader) for _ in range(2)]

    first, second = epochs()
    assert first != second and epochs() == [first, second]


@pytest.mark.parametrize("threads", [0, 2])
def test_the_global_generators_of_the_program_are_not_moved(threads: int) -> None:
    data = Draws(lambda: [random.random(), np.random.rand(), torch.rand(1)])
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    drawn(data, threads)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert after == before


def test_names_imported_before_are_reached_and_given_back() -> None:
    module = types.ModuleType("augmentations")
    exec("from random import random\nfrom numpy.random import rand", module.__dict__)
    sys.modules["augmentations"] = module
    try:
        kept = module.random
        data = Draws(lambda: (module.random(), module.rand()))
        assert drawn(data, 3) == drawn(data, 0)
        assert module.random is kept and random.random is kept
    finally:
        del sys.modules["augmentations"]


def test_the_main_thread_draws_as_ever_while_threads_read() -> None:
    random.seed(4)
    wanted = [random.random() for _ in range(10)]
    random.seed(4)
    loader = Loader(Draws(DRAWS["random"]), 4, num_workers=2, collate_fn=list)
    assert [random.random() for _ in loader] == wanted


def test_a_sample_that_seeds_disturbs_no_other() -> None:
    def seeds() -> float:
        random.seed(0)
        return random.random()

    state = random.getstate()
    assert len(set(drawn(Draws(seeds), 2))) == 1
    assert random.getstate() == state


def test_own_generators_given_to_torch_are_left_alone() -> None:
    own = torch.Generator()

    def draw() -> float:
        own.manual_seed(5)
        return float(torch.rand(1, generator=own))

    assert len(set(drawn(Draws(draw), 0))) == 1


def test_shared_draws_come_from_the_global_generator() -> None:
    random.seed(6)
    wanted = [random.random() for _ in range(40)]
    random.seed(6)
    assert drawn(Draws(random.random, slow=False), 0, draws="shared") == wanted


def test_collation_draws_from_a_seed_too() -> None:
    def collate(samples: list[Any]) -> float:
        return random.random()

    def run(threads: int) -> list[float]:
        return list(Loader(Draws(int), 4, num_workers=threads, seed=1, collate_fn=collate))

    assert run(0) == run(3) and len(set(run(0))) == 10


class Crops(Dataset):
    """The usual augmentation: a flip (torch), a crop's corner (random), a scale (NumPy)."""

    def __len__(self) -> int:
        return 6000

    def __getitem__(self, index: int) -> tuple[int, int, float]:
        flip = int(torch.rand(1).item() < 0.5)
        return flip, random.randint(0, 15), float(np.random.uniform(0.08, 1.0))


def columns(kind: Any, **more: Any) -> list[list[Any]]:
    loader = kind(Crops(), 500, collate_fn=list, **more)
    return list(map(list, zip(*(s for batch in loader for s in batch), strict=True)))


def chi_square(one: list[int], other: list[int]) -> tuple[float, int]:
    """The statistic of two samples falling alike into bins, and its degrees of freedom."""
    a, b = Counter(one), Counter(other)
    bins = sorted(set(a) | set(b))
    return sum((a[k] - b[k]) ** 2 / (a[k] + b[k]) for k in bins), len(bins) - 1


def kolmogorov_smirnov(one: list[float], other: list[float]) -> float:
    """The largest distance of two empirical distributions, in units of its critical scale."""
    both = np.sort(np.concatenate([one, other]))
    gap = np.abs(
        np.searchsorted(np.sort(one), both, "right") / len(one)
        - np.searchsorted(np.sort(other), both, "right") / len(other)
    ).max()
    return float(gap * math.sqrt(len(one) * len(other) / (len(one) + len(other))))


@pytest.mark.filterwarnings("ignore::whyidle.data.loader_gil.LoaderHint")
def test_flips_crops_and_scales_are_distributed_as_under_a_dataloader() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    plain, ours = columns(DataLoader), columns(Loader, num_workers=2, seed=11)
    for column in (0, 1):
        found, freedom = chi_square(plain[column], ours[column])
        assert found < freedom + 4 * math.sqrt(2 * freedom)  # four sigma
    assert kolmogorov_smirnov(plain[2], ours[2]) < 1.95  # p = 0.001
    for left, right in ((0, 1), (0, 2), (1, 2)):  # one sample's draws are independent
        assert abs(np.corrcoef(ours[left], ours[right])[0, 1]) < 4 / math.sqrt(6000)
    for column in range(3):  # and so are neighbours
        assert abs(np.corrcoef(ours[column][:-1], ours[column][1:])[0, 1]) < 4 / math.sqrt(6000)


def test_the_tests_of_distribution_notice_a_difference() -> None:
    rng = random.Random(0)
    one = [rng.random() for _ in range(6000)]
    assert kolmogorov_smirnov(one, [x**1.1 for x in one]) > 1.95
    found, freedom = chi_square([int(x * 2) for x in one], [int(x > 0.45) for x in one])
    assert found > freedom + 4 * math.sqrt(2 * freedom)


def test_seeds_of_neighbours_share_no_bits_more_than_chance() -> None:
    seeds = [seed_of(1, 0, place) for place in range(2000)]
    assert len(set(seeds)) == 2000
    differing = [bin(a ^ b).count("1") for a, b in zip(seeds, seeds[1:], strict=False)]
    assert abs(sum(differing) / len(differing) - 31.5) < 0.5

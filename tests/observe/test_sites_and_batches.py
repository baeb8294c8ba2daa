"""Lines of the source that decide about speed, and what each batch cost where it was made."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.observe.jobs import events, needs_torch, observe, script

pytestmark = needs_torch
PYTHON = sys.executable

JOB = """
    import sys, time, torch
    from torch.utils.data import DataLoader, Dataset, IterableDataset
    class Read(Dataset):
        def __len__(self): return 12
        def __getitem__(self, index):
            time.sleep(0.002)
            with open("sample", "rb") as file: file.read()
            return torch.ones(8)
    class Endless(IterableDataset):
        def __iter__(self): return iter(torch.ones(9, 8))
    def collate(samples):
        time.sleep(0.003)
        return torch.stack(samples)
    def main():
        open("sample", "wb").write(bytes(100_000))
        torch.manual_seed(1)                                                        # seed
        torch.set_num_threads(1)                                                    # threads
        torch.set_float32_matmul_precision("high")                                  # precision
        torch.backends.cudnn.benchmark = True                                       # cudnn
        torch.autograd.set_detect_anomaly(True)                                     # anomaly
        torch.use_deterministic_algorithms(False)                                   # deterministic
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.AdamW(model.parameters(), 0.1, foreach=True)        # optimizer
        for method in (None, *sys.argv[1:]):
            workers = 0 if method is None else 2
            loader = DataLoader(Read(), 4, num_workers=workers, collate_fn=collate,
                                multiprocessing_context=method)                     # loader
            for _ in range(2):
                for batch in loader:
                    with torch.autocast("cpu"):                                     # autocast
                        model(batch).sum().backward()
                    optimizer.step()
        for batch in DataLoader(Endless(), 4):
            pass
    if __name__ == "__main__":
        main()
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with loaders in the process itself, and forked and spawned workers."""
    folder = tmp_path_factory.mktemp("job")
    path = script(folder, JOB)
    ran = observe(folder, PYTHON, str(path), "fork", "forkserver", options=("--no-profile",))
    assert ran.returncode == 0, ran.stderr
    assert "Not observed" not in ran.stderr
    return folder


def line_of(folder: Path, comment: str) -> int:
    """The number of the line that ends with this comment."""
    lines = (folder / "job.py").read_text().splitlines()
    return 1 + next(n for n, line in enumerate(lines) if line.endswith(f"# {comment}"))


def trainer(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Events of the process that made steps, which is the one that told its optimizer."""
    for path in (folder / "bundle" / "processes").glob("*.jsonl"):
        if '"event":"optimizer"' in path.read_text():
            return events(folder, kind, of=path.name)
    raise AssertionError("no process made a step")


@pytest.mark.parametrize(
    ("what", "comment", "detail"),
    [
        ("seed", "seed", {"seed": 1}),
        ("threads", "threads", {"value": 1}),
        ("matmul_precision", "precision", {"precision": "high"}),
        ("cudnn_benchmark", "cudnn", {"value": True}),
        ("anomaly_mode", "anomaly", {"mode": True}),
        ("deterministic", "deterministic", {"mode": False}),
        ("autocast", "autocast", {"device_type": "cpu"}),
    ],
)
def test_a_switch_is_told_once_with_its_line(
    job: Path, what: str, comment: str, detail: dict[str, Any]
) -> None:
    (site,) = [event for event in trainer(job, "site") if event["what"] == what]
    assert (site["file"], site["line"]) == (str(job / "job.py"), line_of(job, comment))
    assert site["detail"] == detail


def test_the_optimizer_knows_the_line_that_made_it(job: Path) -> None:
    (optimizer,) = trainer(job, "optimizer")
    (site,) = [event for event in trainer(job, "site") if event["what"] == "optimizer"]
    assert optimizer["made_line"] == site["line"] == line_of(job, "optimizer")
    assert (site["detail"]["name"], site["detail"]["foreach"]) == ("AdamW", True)


def test_a_loader_knows_the_lines_that_made_and_iterate_it(job: Path) -> None:
    loaders = trainer(job, "loader")
    assert [(at["loader"], at["num_workers"], at["method"]) for at in loaders] == [
        (0, 0, None), (1, 2, "fork"), (2, 2, "forkserver"), (3, 0, None)
    ]  # fmt: skip
    assert all(abs(at["made_line"] - line_of(job, "loader")) <= 1 for at in loaders[:3])
    assert all(at["line"] == line_of(job, "autocast") - 1 for at in loaders[:3])
    assert [at["length"] for at in loaders] == [3, 3, 3, None]


def test_batches_are_timed_where_they_are_made(job: Path) -> None:
    """Four samples sleep for 2 ms each, collating for 3 ms; each sample reads 100,000 bytes."""
    rows = [row for event in events(job, "batches") for row in event["rows"]]
    made = [row for row in rows if row[0] != 3]
    assert sorted((row[0], row[1]) for row in made if row[1] is not None) == [
        (loader, worker)
        for loader, workers in ((1, (0, 1)), (2, (0, 1)))
        for worker in workers
        for _ in range(4 if worker == 0 else 2)
    ]
    assert sum(row[1] is None for row in made) == 6
    for _, _, _, _, wall_ns, cpu_ns, collate_ns, read_bytes, items in made:
        assert wall_ns >= 11_000_000 > cpu_ns
        assert 3_000_000 <= collate_ns < wall_ns
        assert 400_000 <= read_bytes < 500_000
        assert items == 4
    assert [row[8] for row in rows if row[0] == 3] == [4, 4, 1]


def test_a_worker_says_for_whom_it_works(job: Path) -> None:
    (main,) = {event["pid"] for event in trainer(job, "process")}
    told = [event for event in events(job, "process") if event["role"] == "worker"]
    assert len(told) == 8  # two workers, two epochs, two ways to start them
    assert {(event["worker"], event["trainer"]) for event in told} == {(0, main), (1, main)}


def test_warnings_keep_the_place_they_had_without_us(tmp_path: Path) -> None:
    """``detect_anomaly`` warns of its caller's line, and so it does with a hook in between."""
    source = """
        import torch
        with torch.autograd.detect_anomaly():
            torch.ones(1)
    """
    path = script(tmp_path, source)
    ran = observe(tmp_path, PYTHON, str(path), options=("--no-profile",))
    assert f"{path}:2: UserWarning: Anomaly" in ran.stderr


def test_waits_are_told_by_loader_without_those_of_evaluations(tmp_path: Path) -> None:
    job = script(
        tmp_path,
        """
        import time, torch
        class Slow(torch.utils.data.Dataset):
            def __init__(self, seconds): self.seconds = seconds
            def __len__(self): return 12
            def __getitem__(self, index):
                time.sleep(self.seconds)
                return torch.ones(8)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        train = torch.utils.data.DataLoader(Slow(0.004))
        extra = torch.utils.data.DataLoader(Slow(0.001))
        valid = torch.utils.data.DataLoader(Slow(0.02))
        for one, other in zip(train, extra):
            model(one + other).sum().backward()
            optimizer.step()
        model.eval()
        for batch in valid:
            model(batch)
        model.train()
        """,
    )
    ran = observe(tmp_path, PYTHON, str(job), options=("--no-profile",))
    assert ran.returncode == 0, ran.stderr
    waited: dict[int, int] = {}
    for event in events(tmp_path, "waits"):
        for number, lasted_ns, _ in event["rows"]:
            waited[number] = waited.get(number, 0) + lasted_ns
    assert set(waited) == {0, 1}
    assert waited[0] >= 11 * 4_000_000  # that of the first step is start-up
    assert waited[0] > waited[1] >= 11 * 1_000_000
    assert "Slow at job.py:10 (" in ran.stderr

"""A small job of pipeline and data-parallel groups, run to its hang, with one dump per rank.

Knows nothing of whyidle. Hosts enqueue until a synchronisation; each device does its operations
one after the other; an operation ends once every member's device has come to it. A fault stops
one rank at a planted operation.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Fault = Literal["crash", "host_stops", "device_stops", "unreadable", "skips", "other_call", "size"]
Op = tuple[str, str, tuple[int, ...]]  # group, name, members; ("", "sync", ()) waits for all


@dataclass
class Job:
    """``stages`` x ``replicas`` ranks; rank = replica * stages + stage."""

    stages: int = 4
    replicas: int = 2
    steps: int = 3
    only_active: bool = True
    says_started: bool = False
    faults: dict[int, tuple[Fault, int]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.stages * self.replicas

    def groups(self) -> dict[str, tuple[str, list[int]]]:
        found = {"0": ("default_pg", list(range(self.size)))}
        for replica in range(self.replicas):
            ranks = [replica * self.stages + stage for stage in range(self.stages)]
            found[str(10 + replica)] = ("PIPELINE", ranks)
        for stage in range(self.stages):
            ranks = [replica * self.stages + stage for replica in range(self.replicas)]
            found[str(20 + stage)] = ("DATA", ranks)
        return found

    def program(self, rank: int) -> list[Op]:
        replica, stage = divmod(rank, self.stages)
        pipe, data = str(10 + replica), str(20 + stage)
        base, world = replica * self.stages, tuple(range(self.size))
        mates = tuple(r * self.stages + stage for r in range(self.replicas))
        ops: list[Op] = []
        for _ in range(self.steps):
            for ahead in (1, -1):
                before, after = stage - ahead, stage + ahead
                if 0 <= before < self.stages:
                    name = f"nccl:recv {stage}<-{before}"
                    ops.append((pipe, name, (base + before, rank)))
                if 0 <= after < self.stages:
                    ops.append((pipe, f"nccl:send {stage}->{after}", (rank, base + after)))
            ops.append((data, "nccl:_reduce_scatter_base", mates))
            ops.append((data, "nccl:_all_gather_base", mates))
            ops.append(("0", "nccl:all_reduce", world))
            ops.append(("", "sync", ()))
        return ops

    def run(self) -> dict[int, list[dict[str, Any]]]:
        """Entries of every rank when nothing moves any more."""
        programs = {rank: self.program(rank) for rank in range(self.size)}
        for rank, (kind, at) in self.faults.items():
            if kind == "skips":
                del programs[rank][at]
        entered: dict[int, list[dict[str, Any]]] = {rank: [] for rank in programs}
        place = dict.fromkeys(programs, 0)
        moving, clock = True, 0
        while moving:
            clock += 1
            moving = self._hosts(programs, entered, place, clock)
            moving |= self._devices(entered, clock)
        return entered

    def _hosts(self, programs: Any, entered: Any, place: Any, clock: int) -> bool:
        moved = False
        for rank, program in programs.items():
            while place[rank] < len(program):
                kind, at = self.faults.get(rank, ("none", -1))
                if kind in ("crash", "host_stops") and place[rank] >= at:
                    break
                group, name, members = program[place[rank]]
                if not group:
                    if any(not entry["ended"] for entry in entered[rank]):
                        break
                    if kind == "unreadable" and place[rank] >= at:
                        break
                    place[rank] += 1
                    continue
                if kind == "other_call" and place[rank] == at:
                    name = "nccl:broadcast"
                wrong = kind == "size" and place[rank] == at
                entered[rank].append(self._entry(entered[rank], rank, group, name, members, clock))
                entered[rank][-1]["elements"] = 999 if wrong else 1024
                place[rank] += 1
                moved = True
        return moved

    def _entry(
        self, before: list[Any], rank: int, group: str, name: str, members: Any, clock: int
    ) -> dict[str, Any]:
        p2p = "send" in name or "recv" in name
        same = [e for e in before if e["group"] == group and e["p2p"] == p2p]
        pair = [e for e in same if e["members"] == members]
        match = len(pair) if p2p else len(same)
        return {
            "group": group, "name": name, "members": members, "p2p": p2p, "place": len(before),
            "sequence": len(same) + 1, "match": (group, members if p2p else (), match),
            "at": clock * 1000 + rank, "begun": None, "ended": None,
        }  # fmt: skip

    def _devices(self, entered: dict[int, list[dict[str, Any]]], clock: int) -> bool:
        heads: dict[Any, dict[int, dict[str, Any]]] = {}
        moved = False
        for rank, entries in entered.items():
            head = next((e for e in entries if not e["ended"]), None)
            kind, at = self.faults.get(rank, ("none", -1))
            if head is None or (kind == "device_stops" and head["place"] >= at):
                continue
            if head["begun"] is None:
                head["begun"] = clock * 1000
                moved = True
            heads.setdefault(head["match"], {})[rank] = head
        for there in heads.values():
            members = next(iter(there.values()))["members"]
            alike = len({e["name"].split(" ")[0] for e in there.values() if not e["p2p"]}) <= 1
            alike &= len({e["elements"] for e in there.values()}) == 1
            if set(members) == set(there) and alike:
                for entry in there.values():
                    entry["ended"] = clock * 1000 + 500
                moved = True
        return moved

    def write(self, folder: Path, gone: tuple[int, ...] = ()) -> Path:
        """``_dump_RANK`` for every rank that is neither crashed nor in ``gone``."""
        folder.mkdir(exist_ok=True)
        for rank, entries in self.run().items():
            kind, at = self.faults.get(rank, ("none", -1))
            if kind != "crash" and rank not in gone:
                unreadable = at if kind == "unreadable" else None
                data = pickle.dumps(self.dump(rank, entries, unreadable), protocol=2)
                (folder / f"_dump_{rank}").write_bytes(data)
        return folder

    def dump(self, rank: int, entries: list[dict[str, Any]], unreadable: int | None) -> Any:
        mine = {name: about for name, about in self.groups().items() if rank in about[1]}
        numbers = {name: number for number, name in enumerate(sorted(mine, key=int))}
        status = {}
        for name, number in numbers.items():
            ops = [e for e in entries if e["group"] == name]
            ended = [e for e in ops if _ended(e, unreadable)]
            status[str(number)] = {
                "last_enqueued_collective": ops[-1]["sequence"] if ops else -1,
                "last_started_collective": -1,
                "last_completed_collective": ended[-1]["sequence"] if ended else -1,
            }
        shown = [e for e in entries if not (self.only_active and _ended(e, unreadable))]
        return {
            "version": "2.9",
            "nccl_version": "2.27.3",
            "pg_config": {
                name: {"name": name, "desc": desc, "ranks": str(ranks)}
                for name, (desc, ranks) in mine.items()
            },
            "pg_status": status,
            "entries": [self._told(e, numbers, mine, unreadable) for e in shown],
        }

    def _told(self, e: dict[str, Any], numbers: Any, mine: Any, unreadable: int | None) -> Any:
        ended = _ended(e, unreadable)
        begun = e["begun"] is not None and self.says_started and not (
            unreadable is not None and e["place"] >= unreadable
        )  # fmt: skip
        shape = [[e["elements"]]]
        return {
            "record_id": e["place"], "pg_id": numbers[e["group"]],
            "process_group": (e["group"], mine[e["group"]][0]),
            "collective_seq_id": 0 if e["p2p"] else e["sequence"],
            "p2p_seq_id": e["sequence"] if e["p2p"] else 0,
            "op_id": e["place"], "profiling_name": e["name"],
            "time_created_ns": 1_758_000_000_000_000_000 + e["at"],
            "input_sizes": shape, "input_dtypes": ["Float"],
            "output_sizes": shape, "output_dtypes": ["Float"],
            "state": "completed" if ended else "started" if begun else "scheduled",
            "time_discovered_started_ns": e["begun"] if begun else None,
            "time_discovered_completed_ns": e["ended"] if ended else None,
            "retired": ended, "timeout_ms": 600000, "is_p2p": e["p2p"],
            "frames": [
                {"name": "all_reduce", "filename": "/env/torch/distributed/c10d.py", "line": 9},
                {"name": "step", "filename": "/proj/train.py", "line": 40 + len(e["name"])},
            ],
        }  # fmt: skip


def _ended(entry: dict[str, Any], unreadable: int | None) -> bool:
    return bool(entry["ended"]) and not (unreadable is not None and entry["place"] >= unreadable)

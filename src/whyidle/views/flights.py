"""What flight recorders of several ranks say together: who entered which collective.

The rules that carry this come from how collectives work, not from any one recorder:

- operations of one group are numbered alike on every rank, and a rank enters them in that order;
- an all-reduce, all-gather, reduce-scatter, all-to-all or barrier that is done on one rank was
  entered by all of them;
- a send is done with the receive that matches it, in order, per pair of ranks.

A rank with several dumps is judged by its newest. A rank whose dump lacks a group has entered
nothing of it. A group is known by its name and its ranks, since old dumps only number groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from whyidle.model import Evidence

ALL_ENTER = r"all_?reduce|all_?gather|reduce_scatter|all_?to_?all|barrier"
"""Names of operations that end on no rank before every rank has entered."""

_PAIR = r"(?:send|recv) (\d+)(->|<-)(\d+)"


@dataclass(frozen=True)
class Instance:
    """One collective of one group, or one direction of a pair of ranks."""

    key: str
    sequence: int
    pair: tuple[int, int] | None = None  # sender and receiver of a point-to-point operation


@dataclass(frozen=True)
class Group:
    """One process group: its name, what it is for, and its ranks in the job (empty: unknown)."""

    name: str
    description: str | None
    ranks: tuple[int, ...]

    def told(self) -> str:
        """The group as a sentence names it."""
        return f"group {self.name}" + (f" ({self.description})" if self.description else "")


@dataclass(frozen=True)
class Flights:
    """The newest dump of every rank.

    ``operations`` is the collectives table of those dumps with ``key`` (its group), ``sender`` and
    ``receiver`` (ranks in the job, null for collectives), ``all_enter`` and ``pending``.
    """

    operations: pl.DataFrame
    groups: dict[str, Group]
    dumped: tuple[int, ...]
    absent_dumps: tuple[int, ...]  # ranks that some group holds and that left no dump
    entered: dict[tuple[str, int], int]  # (group, rank) -> number of the last collective entered
    entered_p2p: dict[tuple[str, int], int]
    done: dict[str, int]  # group -> number of the last collective that is done on any rank
    pending: dict[int, list[tuple[Instance, int]]] = field(default_factory=dict)
    """Per rank, what it entered and did not finish, oldest first, with the row in operations."""

    def members(self, instance: Instance) -> tuple[int, ...]:
        """Ranks that take part, as far as known."""
        return instance.pair if instance.pair else self.groups[instance.key].ranks


def flights(evidence: Evidence) -> Flights:
    """The dumps of ``evidence``, put side by side."""
    config = _newest(evidence)
    operations = evidence.table("collectives").join(
        config.select("source", "rank").unique(), on=["source", "rank"], how="semi"
    )
    keys = _keys(config)
    operations = _placed(_keyed(operations, keys), config)
    groups = _known_groups(operations, keys)
    dumped = tuple(sorted(config["rank"].unique().to_list()))
    held = {rank for group in groups.values() for rank in group.ranks}
    entered, entered_p2p = _entered(operations, keys)
    return Flights(
        operations=operations,
        groups=groups,
        dumped=dumped,
        absent_dumps=tuple(sorted(held - set(dumped))),
        entered=entered,
        entered_p2p=entered_p2p,
        done=_done(operations, entered),
        pending=_pending(operations),
    )


def _newest(evidence: Evidence) -> pl.DataFrame:
    """The groups table with a row of null group for dumps without one; newest dump per rank."""
    operations, groups = evidence.table("collectives"), evidence.table("groups")
    last = operations.group_by("source", "rank").agg(pl.col("created_ns").max().alias("last"))
    seen = pl.concat([last.select("source", "rank"), groups.select("source", "rank")]).unique()
    seen = seen.filter(pl.col("rank").is_not_null()).join(last, on=["source", "rank"], how="left")
    seen = seen.sort("last", "source", nulls_last=False).group_by("rank").last()
    return seen.select("source", "rank").join(groups, on=["source", "rank"], how="left")


def _keys(config: pl.DataFrame) -> pl.DataFrame:
    """The groups with their key: the name, and a number where one name means several groups."""
    text = pl.col("ranks").list.eval(pl.element().cast(pl.String)).list.join(",").fill_null("")
    named = config.filter(pl.col("group").is_not_null()).with_columns(text.alias("text"))
    number = pl.col("text").rank("dense").over("group").cast(pl.String)
    alone = pl.col("text").n_unique().over("group") == 1
    name = pl.col("group").cast(pl.String)
    key = pl.when(alone).then(name).otherwise(pl.concat_str(name, pl.lit("~"), number))
    return named.with_columns(key.alias("key")).drop("text")


def _keyed(operations: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    joined = operations.join(
        keys.select("rank", "group", "key"), on=["rank", "group"], how="left", maintain_order="left"
    )
    plain = pl.col("group").cast(pl.String).fill_null("?")
    return joined.with_columns(
        pl.coalesce("key", plain).alias("key"),
        pl.col("name").cast(pl.String).str.contains(f"(?i){ALL_ENTER}").alias("all_enter"),
        (pl.col("state") != "completed").fill_null(value=False).alias("pending"),
    ).sort("rank", "event", maintain_order=True)


def _placed(operations: pl.DataFrame, config: pl.DataFrame) -> pl.DataFrame:
    """Sender and receiver as ranks in the job; names hold their places in the group."""
    name = pl.col("name").cast(pl.String)
    one = name.str.extract(_PAIR, 1).cast(pl.Int64)
    two = name.str.extract(_PAIR, 3).cast(pl.Int64)
    sends = name.str.extract(_PAIR, 2) == "->"
    ranks = config.select("rank", "group", "ranks")
    joined = operations.join(ranks, on=["rank", "group"], how="left", maintain_order="left")
    place = pl.col("ranks").list
    mine, other = place.get(one, null_on_oob=True), place.get(two, null_on_oob=True)
    return joined.with_columns(
        pl.when(sends).then(mine).otherwise(other).cast(pl.Int64).alias("sender"),
        pl.when(sends).then(other).otherwise(mine).cast(pl.Int64).alias("receiver"),
    ).drop("ranks")


def _known_groups(operations: pl.DataFrame, keys: pl.DataFrame) -> dict[str, Group]:
    found: dict[str, Group] = {}
    rows = keys.unique("key", maintain_order=True)
    for row in rows.sort("key").iter_rows(named=True):
        found[row["key"]] = Group(row["group"], row["description"], tuple(row["ranks"] or ()))
    seen = operations.group_by("key", "group").agg(pl.col("rank").unique().sort())
    for key, name, ranks in seen.sort("key").iter_rows():
        if key not in found or not found[key].ranks:
            found[key] = Group(name or "?", None, tuple(ranks))
    return found


def _entered(
    operations: pl.DataFrame, keys: pl.DataFrame
) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
    """The last collective and the last send or receive that each rank entered in each group.

    The status that a dump keeps per group counts whichever of the two came last. It is taken for
    what the rank's own last entry there was; without one, for what the others did in that group,
    if they did only one.
    """
    last = operations.group_by("key", "rank", "p2p").agg(
        pl.col("sequence").max(), pl.col("event").max()
    )
    found: dict[bool, dict[tuple[str, int], int]] = {False: {}, True: {}}
    newest: dict[tuple[str, int], tuple[int, bool]] = {}
    kinds: dict[str, set[bool]] = {}
    for key, rank, p2p, sequence, event in last.iter_rows():
        if sequence is not None:
            found[p2p][key, rank] = sequence
        newest[key, rank] = max(newest.get((key, rank), (-1, False)), (event, p2p))
        kinds.setdefault(key, set()).add(p2p)
    for key, rank, enqueued in keys.select("key", "rank", "last_enqueued").iter_rows():
        if enqueued is None:
            continue
        if (key, rank) in newest:
            p2p = newest[key, rank][1]
        elif len(kinds.get(key, ())) == 1:
            (p2p,) = kinds[key]
        else:
            continue
        found[p2p][key, rank] = max(found[p2p].get((key, rank), 0), enqueued)
    return found[False], found[True]


def _done(operations: pl.DataFrame, entered: dict[tuple[str, int], int]) -> dict[str, int]:
    """The last collective that is done on any rank: entered, and nothing of it or before pending.

    Collectives of one group run one after the other on every device.
    """
    collectives = operations.filter(~pl.col("p2p") & pl.col("pending"))
    first = collectives.group_by("key", "rank").agg(pl.col("sequence").min())
    pending = {(key, rank): sequence for key, rank, sequence in first.iter_rows()}
    found: dict[str, int] = {}
    for (key, rank), last in entered.items():
        sequence = pending.get((key, rank))
        done = last if sequence is None else min(last, sequence - 1)
        found[key] = max(found.get(key, 0), done)
    return found


def _pending(operations: pl.DataFrame) -> dict[int, list[tuple[Instance, int]]]:
    rows = operations.with_row_index("at").filter(pl.col("pending"))
    columns = ("rank", "at", "key", "sequence", "sender", "receiver")
    found: dict[int, list[tuple[Instance, int]]] = {}
    for rank, at, key, sequence, sender, receiver in rows.select(columns).iter_rows():
        pair = None if sender is None or receiver is None else (sender, receiver)
        instance = Instance(key, -1 if sequence is None else sequence, pair)
        found.setdefault(rank, []).append((instance, at))
    return found

"""The device waits while the CPU samples a graph or simulates an environment.

Looks like: the GPU alternates strictly between 0 % and a burst; one core is at 100 % although the
machine's CPUs look idle; a machine without a GPU but with faster cores is not slower.

How we tell: at least a fifth of the device's empty time went by inside frames of a library that
samples graphs (DGL, PyTorch Geometric) or steps environments (Gymnasium, Stable-Baselines3 and
others): *seen*. It has no seconds of its own: they stand under the loader or under Python.

Change: sample on the GPU (DGL: ``use_uva=True``; PyTorch Geometric: cuGraph), step many
environments at once in processes of their own or on the GPU, and let the next rollout run while
the last one is learned from.

May be wrong: an environment that calls the policy itself counts as simulating meanwhile. Own
simulators and samplers have names that are not known here, and stand under Python.

Sources: cases dmlc/dgl#3674 (44.1 to 4.1 s an epoch), dmlc/dgl#2716 (3.4x),
Farama-Foundation/HighwayEnv#103, DLR-RM/stable-baselines3#682, openai/baselines#649.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from whyidle.diagnosis import Place, Remedy, Sign
from whyidle.stories import Story, loader_run
from whyidle.views import names
from whyidle.views.loading import LEAST, MOST_PLACES
from whyidle.views.nest import nearest

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views

TITLE = "Sampling or simulating on the CPU"
STATUS = "preview"
OBSERVES = ("blame", "frames")

_GRAPHS = re.compile(
    r"(^|/)(dgl/(sampling|dataloading|graphbolt|transforms)|torch_geometric/(loader|sampler)"
    r"|torch_sparse|torch_cluster|pyg_lib|ogb)(/|\.py)"
)
_ENVIRONMENTS = re.compile(
    r"(^|/)(gym|gymnasium|pettingzoo|highway_env|ale_py|dm_control|dm_env|mujoco|pybullet_envs"
    r"|procgen|minihack|nle|supersuit|envpool|stable_baselines3/common/(vec_env|monitor)"
    r"|baselines/common/vec_env|torchrl/envs|ray/rllib/env)(/|\.py)"
)
_WORDS = {"graphs": "sampling graphs", "environments": "stepping environments"}


def observations(views: Views) -> list[Sign]:
    """One sign for each kind of work that took a fair part of the empty time."""
    rows = views.blame.filter(pl.col("state") == "empty")
    all_ns = int((rows["end_ns"] - rows["start_ns"]).sum())
    rows = rows.filter(pl.col("span") >= 0)
    nest = views.host.nest
    kinds = names.told(nest.spans["name"], _kind)
    kinds = pl.select(pl.when(nest.spans["kind"] == "python").then(kinds)).to_series()
    if not rows.height or not kinds.is_not_null().any():
        return []
    at = nearest(nest, kinds.is_not_null().to_numpy())[rows["span"].to_numpy().astype(np.intp)]
    rows, at = rows.filter(pl.Series(at >= 0)), at[at >= 0]
    told = pl.DataFrame(
        {
            "kind": kinds.gather(at),
            "op": nest.spans["name"].gather(at).cast(pl.String),
            "rank": nest.spans["rank"].gather(at),
            "ns": rows["end_ns"] - rows["start_ns"],
        }
    )
    sums = told.group_by("kind", "op", "rank").agg(pl.col("ns").sum())
    sums = sums.sort("ns", "op", "rank", descending=[True, False, False])
    return [
        _sign(kind, mine, all_ns)
        for kind in _WORDS
        if (mine := sums.filter(pl.col("kind") == kind))["ns"].sum() >= max(LEAST * all_ns, 1)
    ]


def _kind(frame: str) -> str | None:
    if _GRAPHS.search(frame):
        return "graphs"
    return "environments" if _ENVIRONMENTS.search(frame) else None


def _sign(kind: str, mine: pl.DataFrame, all_ns: int) -> Sign:
    spent = int(mine["ns"].sum())
    return Sign(
        level="seen",
        what=f"{spent / 1e6:.4g} ms of the {all_ns / 1e6:.4g} ms that the device was empty went by "
        f"in {_WORDS[kind]} on the CPU, most of it in {mine['op'][0]}.",
        where=[
            Place(op=op, rank=rank)
            for op, rank in mine.head(MOST_PLACES).select("op", "rank").iter_rows()
        ],
        remedies=[_sample() if kind == "graphs" else _simulate()],
    )


def _sample() -> Remedy:
    return Remedy(
        what="Sample on the GPU",
        how="DGL: graph.pin_memory_() and DataLoader(..., use_uva=True, device='cuda', "
        "num_workers=0), features pinned as well; PyTorch Geometric: the loaders of cugraph-pyg. "
        "Else raise num_workers and keep features on the GPU.",
        safe=False,
        why_safe="The same distribution from another random generator: neighbours differ.",
        effect={"kind": "loader_wait_removed", "share_removed": 0.7},
        prove="Record the same steps again: kernels of the sampler, and little empty time.",
    )


def _simulate() -> Remedy:
    return Remedy(
        what="Step many environments at once",
        how="SubprocVecEnv or gymnasium.vector.AsyncVectorEnv with as many environments as free "
        "cores, envpool, or a simulator on the GPU; collect the next rollout while learning from "
        "the last.",
        safe=False,
        why_safe="More environments change the batch, and overlapped rollouts use a policy that is "
        "one update old.",
        effect={"kind": "loader_wait_removed", "share_removed": 0.5},
        prove="Steps of the environment per second, and the GPU's empty time per update.",
    )


def observed_example() -> tuple[Evidence, str]:
    """Three updates; before each, the device waits 4 ms for an environment."""
    story = Story()
    for number in range(3):
        begin = number * 10_000
        story.step(number, begin, begin + 10_000)
        story.frame("train.py(30): rollout", begin, begin + 5000)
        story.frame("gymnasium/core.py(560): step", begin + 500, begin + 4500)
        story.op("aten::mm", begin + 5000, begin + 5010)
        story.launch("gemm", (begin + 5002, begin + 5008), (begin + 5008, begin + 10_000))
    return story.evidence(), "12 ms of the"


def graph_run() -> Evidence:
    """Three steps; in each, 3 of 5 ms of the wait pass in sampling neighbours."""
    return loader_run("dgl/sampling/neighbor.py(400): sample_neighbors", 3000)

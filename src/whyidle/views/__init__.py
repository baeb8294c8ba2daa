"""Facts that several causes share, each computed once per diagnosis and for all ranks at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from whyidle.errors import NothingRecorded
from whyidle.model import DEVICE_KINDS, Evidence
from whyidle.views import activity as activity_view
from whyidle.views import collectives as collectives_view
from whyidle.views import kernels as kernels_view
from whyidle.views import loading as loading_view
from whyidle.views import windows as windows_view
from whyidle.views.allocator import DeviceMemory, device_memories
from whyidle.views.blame import (
    Feeders,
    blame_copies,
    blame_empty,
    blame_frame,
)
from whyidle.views.completeness import (
    device_is_missing,
    holds_signs,
    host_was_recorded,
    notes,
    recorded_range,
    sampled_ranks,
)
from whyidle.views.cpu_run import cpu_activity, cpu_windows
from whyidle.views.cpu_use import jobs
from whyidle.views.flights import Flights, flights
from whyidle.views.host import Host, host
from whyidle.views.moments import Moments
from whyidle.views.moments_telling import moment_notes
from whyidle.views.nest import nest
from whyidle.views.places import claims_of
from whyidle.views.rules import all_rules
from whyidle.views.sampled import Sampled, sampled
from whyidle.views.sampled_matches import Match, matched, sampled_notes
from whyidle.views.sampled_patterns import plateaus
from whyidle.views.scene import Scene
from whyidle.views.sites import sites
from whyidle.views.states import States, states

STEP = ("number", "start_ns", "end_ns")

Certainty = Callable[[pl.DataFrame, Host], pl.Series]


class Views:
    """The shared facts of one piece of evidence; each is computed when first asked for."""

    def __init__(self, evidence: Evidence, steps: windows_view.Steps | None = None) -> None:
        """``steps`` (A, B) narrows the judged window to steps A up to, not including, B."""
        self.evidence = evidence
        self.facts = evidence.facts
        self._steps = steps

    @cached_property
    def activity(self) -> pl.DataFrame:
        """Device work with its state and launch; see views.activity and views.cpu_run."""
        if self.has_device:
            return self._device_activity
        return cpu_activity(self.host, self._cpu_windows, self._device_activity)

    @cached_property
    def _device_activity(self) -> pl.DataFrame:
        return activity_view.activity(self.evidence)

    @cached_property
    def _cpu_windows(self) -> pl.DataFrame:
        return cpu_windows(self.evidence, self.marks)

    @cached_property
    def marks(self) -> pl.DataFrame:
        """Recorded steps; see views.windows."""
        return windows_view.marks(self.evidence, self._steps)

    @cached_property
    def windows(self) -> pl.DataFrame:
        """The judged window of every device; see views.windows."""
        found = self._all_windows
        return found if self._steps is None else windows_view.with_steps(found, self.marks)

    @cached_property
    def _all_windows(self) -> pl.DataFrame:
        if self.has_device:
            return windows_view.windows(self.activity, self.marks)
        return self._cpu_windows.drop("thread")

    @cached_property
    def states(self) -> States:
        """The state of every device at every instant; see views.states."""
        return states(self.activity, self.windows)

    @cached_property
    def host(self) -> Host:
        """What every host thread was doing; see views.host."""
        low, high = self._host_range
        return host(nest(self.evidence, low, high), self._device_activity)

    @cached_property
    def blame(self) -> pl.DataFrame:
        """Every empty and copy-only instant with its one activity; see views.blame."""
        empty, found = blame_empty(self.states, self.host, self.feeders)
        scene = Scene(self.states, self.host, found, self.activity, self.marks, self._holes)
        ruled = all_rules(empty, scene)
        self.host.forget_partition()
        return blame_frame(self.states, ruled, found, blame_copies(self.states, self.host))

    @cached_property
    def sites(self) -> pl.DataFrame:
        """Exact lines of the user's source that hooks told of; see views.sites."""
        return sites(self.evidence)

    @property
    def _holes(self) -> bool:
        """Whether what lies between recorded operators may be anything."""
        silent = self.has_device and not host_was_recorded(self.evidence)
        return bool(self.sampled_ranks) or device_is_missing(self.evidence) or silent

    @cached_property
    def feeders(self) -> Feeders:
        """Per window, the stepping thread and the threads that launch, busiest first."""
        calls = self.activity.filter(pl.col("caller").is_not_null())
        counts = calls.group_by("rank", "source", "caller").len()
        counts = counts.sort("len", "caller", descending=[True, False])
        callers: dict[tuple[int | None, int], list[int]] = {}
        for rank, source, caller in counts.select("rank", "source", "caller").iter_rows():
            callers.setdefault((rank, source), []).append(caller)
        marked = self.marks.unique(["rank", "source"], keep="first", maintain_order=True)
        marking = {(r, s): t for r, s, t in marked.select("rank", "source", "thread").iter_rows()}
        stepping: dict[int, int] = {}
        others: dict[int, list[int]] = {}
        for window, place in enumerate(self.windows.select("rank", "source").iter_rows()):
            mine = callers.get(place, [])
            first = [marking[place]] if place in marking else mine[:1]
            if first:
                stepping[window] = first[0]
            others[window] = list(dict.fromkeys([*first, *mine]))
        return Feeders(stepping, others)

    @cached_property
    def kernels(self) -> pl.DataFrame:
        """Compute kernels with family, fill and launching operator; see views.kernels."""
        return kernels_view.kernels(self)

    @cached_property
    def exposed(self) -> pl.DataFrame:
        """Stretches of communication alone, with their collective; see views.collectives."""
        return collectives_view.exposed(self)

    @cached_property
    def loading(self) -> pl.DataFrame:
        """What the loader did while the device waited for it; see views.loading."""
        return loading_view.loading(self)

    @property
    def waited_for_loader_ms(self) -> float:
        """Milliseconds of empty device time blamed on the loader, over all devices."""
        rows = self.blame.filter(pl.col("activity") == "loader")
        return int((rows["end_ns"] - rows["start_ns"]).sum()) / 1e6

    @cached_property
    def memories(self) -> list[DeviceMemory]:
        """What memory snapshots tell of every device; see views.allocator."""
        return device_memories(self.evidence)

    @cached_property
    def flights(self) -> Flights:
        """What the flight recorders of all ranks say together; see views.flights."""
        return flights(self.evidence)

    @cached_property
    def sampled(self) -> Sampled:
        """What samples say of each GPU over time; see views.sampled."""
        return sampled(self.evidence)

    @cached_property
    def moments(self) -> Moments:
        """What hooks timed in training processes over the whole run; see views.moments."""
        return Moments(self)

    @cached_property
    def plateaus(self) -> pl.DataFrame:
        """Stretches of sampled GPUs at exactly zero; see views.sampled_patterns."""
        return plateaus(self.sampled)

    @cached_property
    def matches(self) -> dict[int, Match]:
        """The traced device of each sampled GPU, by number, where that is known."""
        return matched(self)

    @cached_property
    def has_device(self) -> bool:
        """Whether any accelerator recorded work; without, the run is judged as a CPU run."""
        return bool(self.evidence.table("spans")["kind"].is_in(DEVICE_KINDS).any())

    def blamed(
        self, *activities: str, level: str | Certainty = "seen", state: str | None = None
    ) -> pl.DataFrame:
        """Claims for every empty or copy-only instant blamed on one of ``activities``.

        ``level`` is one for all, or a function of views.certainty that gives one per row.
        """
        rows = self.blame.filter(pl.col("activity").is_in(activities))
        if state is not None:
            rows = rows.filter(pl.col("state") == state)
        sure = level if isinstance(level, str) else level(rows, self.host)
        return claims_of(rows, self.host, sure)

    @cached_property
    def _range(self) -> tuple[int, int]:
        bounds = self.windows
        if bounds.height == 0:
            low, high = recorded_range(self.evidence)
            begins = self.sampled.gpus["start_ns"].to_list()
            return min([low, *begins]), high
        return int(bounds["start_ns"].to_numpy().min()), int(bounds["end_ns"].to_numpy().max())

    @property
    def _host_range(self) -> tuple[int, int]:
        """The judged range and whatever launched work in it, which may have been earlier."""
        low, high = self._range
        launched = self._device_activity["launch_ns"].drop_nulls()
        return (min(low, int(launched.to_numpy().min())) if len(launched) else low), high

    @property
    def origin_ns(self) -> int:
        """The earliest start of a window; instants in a diagnosis count from here."""
        return self._range[0]

    @property
    def end_ns(self) -> int:
        """The latest end of a window."""
        return self._range[1]

    def steps_of(self, rank: int | None, source: int) -> pl.DataFrame:
        """number, start_ns, end_ns of the steps of a rank in one source."""
        steps = self._steps_by_place.get((rank, source))
        return self.marks.clear().select(STEP) if steps is None else steps

    @cached_property
    def _steps_by_place(self) -> dict[tuple[Any, ...], pl.DataFrame]:
        """The steps of every (rank, source)."""
        steps = self.marks.select("rank", "source", *STEP).sort("start_ns", maintain_order=True)
        parts = steps.partition_by("rank", "source", as_dict=True, include_key=False)
        return dict(parts)

    @cached_property
    def cpu_jobs(self) -> pl.DataFrame:
        """What was read of each job's CPUs; see views.cpu_use."""
        return jobs(self.evidence)

    @cached_property
    def sampled_ranks(self) -> list[int | None]:
        """Ranks whose operators were thinned out: their running ids have large holes."""
        return sampled_ranks(self.evidence)

    @cached_property
    def unrecorded_s(self) -> list[float]:
        """Per window, empty seconds that are likely work the recorder dropped."""
        rows = self.blame.filter(pl.col("activity") == "unrecorded")
        took = (rows["end_ns"] - rows["start_ns"]).to_numpy()
        total = np.zeros(self.windows.height, dtype=np.int64)
        np.add.at(total, rows["window"].to_numpy(), took)
        return [int(nanoseconds) / 1e9 for nanoseconds in total]

    def check(self) -> None:
        """Raise NothingRecorded when there is nothing to judge or to tell of."""
        if self.windows.height or holds_signs(self.evidence):
            return
        path = self.evidence.sources[0].path if self.evidence.sources else "the evidence"
        raise NothingRecorded(
            path,
            "it holds no device activity and no host activity of any length",
            "Record with torch.profiler.profile(activities=[ProfilerActivity.CPU, "
            "ProfilerActivity.CUDA]) around a few training steps.",
        )

    @cached_property
    def notes(self) -> list[str]:
        """What a reader of the report should know about the evidence as a whole."""
        narrowed = self._steps is not None
        left = windows_view.left_out(self._all_windows, self.windows) if narrowed else []
        return [*left, *notes(self), *sampled_notes(self), *moment_notes(self)]

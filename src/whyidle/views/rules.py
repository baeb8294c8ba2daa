"""Second look at blame: rules that need more than one span to name an activity.

Each takes the segments of empty time and gives back segments that cover the same instants.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index, Ints, overlap_ns
from whyidle.views import names
from whyidle.views.activities import CODE, DISPATCH, READS
from whyidle.views.activity import EMPTY
from whyidle.views.blame import Segments, gathered, joined
from whyidle.views.first_use import first_use
from whyidle.views.host import Codes, Host
from whyidle.views.launch_blocking import blocking_calls, launch_blocking
from whyidle.views.scene import NS, Scene
from whyidle.views.unrecorded import relabel_inside, times_in, unrecorded

OUTLIER_NS, OUTLIER_RATIO = 1_000_000, 20
"""A first runtime call this long, and this many times the median call, is the profiler's start."""
RESTART_NS, RESTART_RATIO, RESTART_SETUP_NS = 20_000_000, 5, 5_000_000
"""A loader wait this long, this many times the median, after this long a setup, is a restart."""
HOST_OPERATOR_NS = 200_000
"""An operator that takes this long without calling the device computes on the host."""
RESERVES = ("aten::empty", "detach", "aten::detach", "aten::set_", "Torch-Compiled", "autograd::")
LOOP_CALLS, LOOP_SHARE, LOOP_WIDTH = 300, 0.3, 16
"""Tiny indexing operators per step, and their share of all operators, that make a Python loop;
operators are the loop's where that share holds among the neighbours."""
_INDEXING = re.compile(
    r"(^|: )(aten::)?(select|slice|index|index_put_|copy_|narrow|unbind|unsqueeze|squeeze|fill_"
    r"|Select|Slice|Index|CopySlices|Unsqueeze|Squeeze)(Backward\d*)?$"
)
_BUFFERS = re.compile(r"^Activity Buffer Request$")
_SPIKES = re.compile(r"_MultiProcessingDataLoaderIter\.__next__")


def all_rules(found: Segments, scene: Scene) -> Segments:
    """Every rule, in the order in which later ones may rely on earlier ones."""
    if not scene.host.nest.start.size:
        return found
    for rule in (
        first_use,
        profiler_start,
        profiler_buffers,
        unrecorded,
        cpu_roundtrip,
        python_loop,
        empty_cache,
        loader_restart,
        launch_blocking,
    ):
        found = rule(found, scene)
    return lost_lead(sampled(found, scene), scene)


def sampled(found: Segments, scene: Scene) -> Segments:
    """Where operators were dropped, the time between recorded ones is not Python's."""
    if not scene.sampled:
        return found
    return found.with_activity(
        np.isin(found.activity, [CODE["nothing"], CODE["python"]]), "unknown"
    )


def profiler_start(found: Segments, scene: Scene) -> Segments:
    """The first runtime call after the profiler starts may stall; that is not the user's loss.

    So is the tail of the last step in which nothing at all was recorded.
    """
    nest = scene.host.nest
    calls = np.flatnonzero((nest.spans["kind"] == "runtime").to_numpy())
    hit = np.zeros(found.start.size, dtype=bool)
    ranks = scene.rank_code(nest.spans["rank"])
    begins = nest.axis.take(nest.start, nest.thread)
    codes = nest.spans["name"].to_physical().to_numpy()
    for rank in np.unique(ranks[calls]):
        own = calls[ranks[calls] == rank]
        first = own[np.argmin(begins[own])]
        took = nest.end[own] - nest.start[own]
        lasted = int(nest.end[first] - nest.start[first])
        alike = took[(own != first) & (codes[own] == codes[first])]  # the same call, later
        usual = 2 * int(alike.max(initial=0))
        if lasted > max(OUTLIER_NS, usual, OUTLIER_RATIO * max(float(np.median(took)), 1.0)):
            hit |= found.span == first
    silent, cut = _silent_tail(found, scene)
    return found.with_activity(hit | silent, "profiler").with_activity(cut, "unknown")


def profiler_buffers(found: Segments, scene: Scene) -> Segments:
    """A buffer request stalls the launching thread, though it is filed under another lane."""
    weak = np.isin(found.activity, [CODE[name] for name in (*DISPATCH, "python", "nothing")])
    return relabel_inside(found, weak, times_in(scene, _BUFFERS, "overhead"), "profiler")


def _silent_tail(
    found: Segments, scene: Scene
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """The tail without a record; and the same where it outlasts all before it: a record cut off."""
    nest = scene.host.nest
    tail = scene.pieces.ender[found.piece] < 0
    quiet = np.zeros(found.start.size, dtype=bool)
    longer = np.zeros(found.start.size, dtype=bool)
    if scene.marks.height == 0 or not nest.start.size:
        return quiet, longer
    marks = np.isin(nest.spans["row"].to_numpy(), scene.marks["row"].to_numpy())
    ends = nest.axis.take(nest.end, nest.thread)
    ranks = scene.rank_code(nest.spans["rank"])
    for window, rank in enumerate(scene.rank_code(scene.states.windows["rank"])):
        own = (ranks == rank) & ~marks
        room = scene.states.windows.row(window, named=True)
        low, high = room["start_ns"], room["end_ns"]
        last = max(int(ends[own].max()), low) if own.any() else low
        edges = np.array([low, last, high], dtype=NS)
        begin, at, end = scene.states.axis.put(np.full(3, window), edges)
        mine = scene.pieces.group[found.piece] == window
        quiet |= mine & (found.start >= at)
        longer |= mine & (end - found.start > found.start - begin)
    quiet &= tail & (found.activity == CODE["nothing"])
    return quiet & ~longer, quiet & longer


_ROUNDTRIP = ("python", "op", "launch", "nothing", "scalar_read", "sync", "pageable_copy")


def cpu_roundtrip(found: Segments, scene: Scene) -> Segments:
    """Results fetched to the host, worked on there, and sent back inside one step."""
    pieces_, work = scene.pieces, scene.states.work
    if work.height == 0:
        return found
    text = work["name"].cast(pl.String)
    copies = (work["kind"] == "copy") & (work["bytes"].fill_null(1 << 20) > 8)
    out = (copies & text.str.contains(names.OUTBOUND) & ~_reads(scene)).to_numpy()
    back = (copies & text.str.contains(names.INBOUND)).to_numpy()
    piece = (pieces_.before >= 0) & (pieces_.ender >= 0)
    piece &= out[np.maximum(pieces_.before, 0)] & back[np.maximum(pieces_.ender, 0)]
    loads = np.isin(np.arange(pieces_.start.size), found.piece[found.activity == CODE["loader"]])
    piece &= ~loads & ~_crosses_step(scene)
    soft = [CODE[name] for name in _ROUNDTRIP]
    between = piece[found.piece] & np.isin(found.activity, soft)
    on_host = np.isin(found.span, _host_operators(scene)) & (found.activity == CODE["op"])
    return found.with_activity(between | on_host, "cpu_roundtrip")


def _host_operators(scene: Scene) -> Index:
    """Operators that take long and call nothing on the device: they compute on the host."""
    host = scene.host
    nest = host.nest
    calls = np.flatnonzero((nest.spans["kind"] == "runtime").to_numpy())
    if not calls.size:
        return calls
    launching = np.unique(host.operator[calls])
    long = nest.end - nest.start > HOST_OPERATOR_NS
    reserves = names.matching(nest.spans["name"], lambda n: n.startswith(RESERVES)).to_numpy()
    own = (host.operator >= 0) & ~np.isin(host.operator, launching) & long & ~reserves
    return np.flatnonzero(own & (nest.spans["kind"] == "op").to_numpy())


def _reads(scene: Scene) -> pl.Series:
    """Per device work, whether it was launched inside .item()."""
    launch = scene.states.work["launch"]
    at = scene.host.nest.index_of(launch.fill_null(2**32 - 1).to_numpy())
    operator = np.where(at >= 0, scene.host.nest.parent[at], -1)
    names_ = scene.host.nest.spans["name"]
    if not len(names_):
        return pl.repeat(False, len(launch), dtype=pl.Boolean, eager=True)
    reads = names.matching(names_, READS.search).to_numpy()
    return pl.Series((operator >= 0) & reads[np.maximum(operator, 0)])


def _crosses_step(scene: Scene) -> npt.NDArray[np.bool_]:
    crossed = np.zeros(scene.pieces.start.size, dtype=bool)
    for window in range(scene.states.windows.height):
        at = scene.mark_positions(window)[0]
        after = np.searchsorted(at, scene.pieces.end, "left")
        inside = after > np.searchsorted(at, scene.pieces.start, "right")
        crossed |= inside & (scene.pieces.group == window)
    return crossed


def python_loop(found: Segments, scene: Scene) -> Segments:
    """Thousands of tiny indexing operators per step: a Python loop over elements."""
    host = scene.host
    spans = host.nest.spans
    tops = np.flatnonzero(host.operator == np.arange(host.operator.size))
    tiny = names.matching(spans["name"], _INDEXING.search).to_numpy()
    steps = max(scene.marks.height, 1)
    if tops.size == 0 or tiny[tops].sum() < LOOP_CALLS * steps or tiny[tops].mean() < LOOP_SHARE:
        return found
    inside = np.zeros(host.operator.size, dtype=bool)
    inside[tops[_amid(tiny[tops])]] = True
    operator = np.where(found.span >= 0, host.operator[found.span], -1)
    looped = (operator >= 0) & inside[np.maximum(operator, 0)]
    soft = np.isin(found.activity, [CODE[a] for a in ("op", "launch", "python", "nothing")])
    between = (operator < 0) & (found.activity != CODE["op"])
    return found.with_activity(soft & (looped | between), "python_loop")


def _amid(tiny: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Operators between two tiny ones in a neighbourhood where those are frequent."""
    near = np.convolve(tiny, np.ones(LOOP_WIDTH), mode="same") >= LOOP_SHARE * LOOP_WIDTH
    index = np.arange(tiny.size)
    last = np.maximum.accumulate(np.where(tiny, index, -LOOP_WIDTH))
    coming = np.where(tiny, index, 2 * tiny.size + LOOP_WIDTH)[::-1]
    following = np.minimum.accumulate(coming)[::-1]
    return np.asarray(near & (following - last <= LOOP_WIDTH // 2))


_FREE = re.compile(r"^(cuda|hip)Free$|^(cu|hip)MemUnmap")


def empty_cache(found: Segments, scene: Scene) -> Segments:
    """Memory freed outside any operator in most steps is an explicit empty_cache in the loop.

    One that does not come back is only an allocator call.
    """
    host = scene.host
    frees = scene.spans_named("runtime", _FREE)
    explicit = host.activity[frees] == CODE["empty_cache"]
    frees = frees[(host.operator[frees] < 0) | explicit]
    at = host.nest.axis.take(host.nest.start[frees], host.nest.thread[frees])
    starts = scene.marks.sort("start_ns")["start_ns"].to_numpy()
    hit = np.unique(np.searchsorted(starts, at, side="right"))
    if starts.size > 1 and np.count_nonzero(hit > 0) >= max(2, starts.size / 2):
        return found.with_activity(found.activity == CODE["allocator"], "empty_cache")
    return found.with_activity(found.activity == CODE["empty_cache"], "allocator")


def loader_restart(found: Segments, scene: Scene) -> Segments:
    """Worker processes that start again at an epoch's start, and the late first batch.

    Seen in the loader's own frames; without frames, suspected of an outlying wait that follows a
    long unrecorded stretch. The first start in the recording is start-up, not a restart.
    """
    host, nest = scene.host, scene.host.nest
    waits = scene.spans_named("annotation", _SPIKES)
    found = _first_start(found, scene, waits)
    if waits.size < 3:
        return found
    took = nest.end[waits] - nest.start[waits]
    slow = waits[(took > RESTART_NS) & (took > RESTART_RATIO * np.median(took))]
    before = np.array([_quiet_before(host, index) for index in slow], dtype=NS)
    restarts = slow[(before > RESTART_SETUP_NS) & (slow > waits.min())]
    restarts = np.union1d(restarts, _first_after_restart(host, waits, took))
    inside = (found.span >= 0) & np.isin(host.scope[np.maximum(found.span, 0)], restarts)
    return found.with_activity(inside & (found.activity == CODE["loader"]), "loader_restart")


def _first_after_restart(host: Host, waits: Index, took: Ints) -> Index:
    """The waits for a first batch that follow a recorded start of workers, where outlying."""
    nest = host.nest
    started = np.flatnonzero(host.activity == CODE["loader_restart"])
    started = started[nest.start[started] > nest.start[waits].min()]
    after = np.searchsorted(nest.start[waits], nest.end[started], side="left")
    first = np.unique(after[after < waits.size])
    return np.asarray(waits[first[took[first] > RESTART_RATIO * np.median(took)]])


def _first_start(found: Segments, scene: Scene, waits: Index) -> Segments:
    """A start of workers before which no batch was asked for happens once."""
    host, nest = scene.host, scene.host.nest
    restart = found.activity == CODE["loader_restart"]
    if not restart.any():
        return found
    begins = nest.axis.take(nest.start, nest.thread)
    scope = host.scope[np.maximum(found.span, 0)]
    first = begins[waits].min() if waits.size else np.iinfo(NS).max
    return found.with_activity(restart & (begins[scope] <= first), "warm_up")


def _quiet_before(host: Host, index: int) -> int:
    """Nanoseconds before a span in which its thread recorded no operator or call."""
    inner = host.partition
    start = host.nest.start[index]
    busy = (inner.span >= 0) & (host.activity[inner.span] != CODE["nothing"])
    ends = inner.end[busy & (inner.end <= start)]
    low = host.nest.axis.put(host.nest.thread[[index]], np.array([0]))[0]
    return int(start - max(ends.max() if ends.size else low, low))


WAITING = ("scalar_read", "sync", "cpu_roundtrip", "pageable_copy", "anomaly")


def lost_lead(found: Segments, scene: Scene) -> Segments:
    """Dispatch after a synchronisation is its loss, up to the launch lead it destroyed.

    While the host waits, the device works off what was queued; without the wait the host would
    have gone on queueing for just as long. That lead would have hidden as much later dispatch.
    """
    blocking = blocking_calls(scene)
    windows = range(scene.states.windows.height)
    groups = [_one_window(found, scene, window, blocking) for window in windows]
    return gathered(groups) if groups else found


def _one_window(found: Segments, scene: Scene, window: int, blocking: Index) -> Segments:
    host = scene.host
    if scene.states.windows.height > 1:
        found = found.take(np.flatnonzero(scene.pieces.group[found.piece] == window))
    waiting = (names.SYNCHRONISATIONS, names.BLOCKING_COPIES)
    every = np.concatenate([scene.spans_named("runtime", rule) for rule in waiting])
    kinds = [CODE[a] for a in WAITING]
    every = every[np.isin(host.activity[every], kinds)]
    waits = scene.of_rank(np.unique(np.concatenate([every, blocking])), window)
    start, end = scene.host_positions(waits, window)
    order = np.argsort(end, kind="stable")
    waits, start, end = waits[order], start[order], end[order]
    if not waits.size:
        return found
    lead = (end - start) - overlap_ns(start, end, scene.states.sets[EMPTY])
    dispatch = np.isin(found.activity, [CODE[name] for name in DISPATCH])
    index = np.flatnonzero(dispatch)
    after = np.searchsorted(end, found.start[index], side="right") - 1
    index, after = index[after >= 0], after[after >= 0]
    if index.size == 0:
        return found
    covered = _covered(found.end[index] - found.start[index], lead[after], after)
    charged = covered > 0
    index, wait, covered = index[charged], waits[after[charged]], covered[charged]
    if index.size == 0:
        return found
    blocks = np.isin(wait, blocking)
    code = np.where(blocks, CODE["launch_blocking"], host.activity[wait]).astype(np.int8)
    return _charged(found, host, index, wait, code, covered)


def _covered(took: Ints, lead: Ints, group: Index) -> Ints:
    """How much of each dispatch interval its wait's lead covers, in order of time."""
    total = np.cumsum(took) - took
    first = np.concatenate([[True], group[1:] != group[:-1]])
    used = total - np.maximum.accumulate(np.where(first, total, 0))
    return np.asarray(np.clip(lead - used, 0, took))


def _charged(
    found: Segments, host: Host, index: Index, wait: Index, code: Codes, covered: Ints
) -> Segments:
    """Give the first ``covered`` of the chosen segments to their waits."""
    chosen = found.take(index)
    head = replace(
        chosen,
        end=chosen.start + covered,
        activity=code,
        span=wait,
        thread=host.nest.thread[wait].astype(np.intp),
    )
    over = np.flatnonzero(covered < chosen.end - chosen.start)
    rest = replace(chosen, start=chosen.start + covered).take(over)
    others = np.ones(found.start.size, dtype=bool)
    others[index] = False
    return joined([found.take(np.flatnonzero(others)), head, rest])

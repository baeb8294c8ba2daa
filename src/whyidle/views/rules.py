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
from whyidle.views.blame import Segments, joined
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
_COLLECT = re.compile(r"^<built-in function collect>$")
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
    hit = np.isin(found.span, _outlying_first_calls(scene))
    silent, cut = _silent_tail(found, scene)
    return found.with_activity(hit | silent, "profiler").with_activity(cut, "unknown")


def _outlying_first_calls(scene: Scene) -> Index:
    """The first runtime call of each rank, where it outlasts the rank's others by far."""
    nest = scene.host.nest
    calls = np.flatnonzero((nest.spans["kind"] == "runtime").to_numpy())
    if not calls.size:
        return calls
    rank = scene.rank_code(nest.spans["rank"])[calls]
    begins = nest.axis.take(nest.start[calls], nest.thread[calls])
    calls, rank = (column[np.lexsort((begins, rank))] for column in (calls, rank))
    begin = np.flatnonzero(np.concatenate([[True], rank[1:] != rank[:-1]]))
    number = np.repeat(np.arange(begin.size), np.diff(np.append(begin, rank.size)))
    took = nest.end[calls] - nest.start[calls]
    codes = nest.spans["name"].to_physical().to_numpy()[calls]
    later = np.zeros(begin.size, dtype=NS)  # the longest later call of the same name
    alike = codes == codes[begin][number]
    alike[begin] = False
    np.maximum.at(later, number[alike], took[alike])
    usual = OUTLIER_RATIO * np.maximum(_medians(took, number), 1.0)
    least = np.maximum(np.maximum(usual, OUTLIER_NS), 2 * later)
    return np.asarray(calls[begin[took[begin] > least]])


def _medians(values: Ints, group: Index) -> npt.NDArray[np.float64]:
    """The median of each group; groups are 0.. without a hole, in order."""
    ordered = values[np.lexsort((values, group))]
    count = np.bincount(group)
    first = np.cumsum(count) - count
    return np.asarray((ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2)


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
    if scene.marks.height == 0 or not nest.start.size:
        nowhere = np.zeros(found.start.size, dtype=bool)
        return nowhere, nowhere
    states = scene.states
    own = ~np.isin(nest.spans["row"].to_numpy(), scene.marks["row"].to_numpy())
    ranks, mine = np.unique(scene.rank_code(states.windows["rank"]), return_inverse=True)
    code = scene.rank_code(nest.spans["rank"])
    own &= np.isin(code, ranks)
    low, high = (states.windows[name].to_numpy() for name in ("start_ns", "end_ns"))
    # what a rank did after its own windows is none of theirs, however long others were recorded
    closes = np.full(ranks.size, np.iinfo(NS).min)
    np.maximum.at(closes, mine, high)
    place = np.minimum(np.searchsorted(ranks, code), ranks.size - 1)
    own &= nest.axis.take(nest.start, nest.thread) < closes[place]
    last = np.full(ranks.size, np.iinfo(NS).min)
    ends = nest.axis.take(nest.end, nest.thread)
    np.maximum.at(last, place[own], ends[own])
    every = np.arange(low.size)
    begin, at, end = (
        states.axis.put(every, edge) for edge in (low, np.maximum(last[mine], low), high)
    )
    window = scene.pieces.group[found.piece]
    quiet = found.start >= at[window]
    longer = end[window] - found.start > found.start - begin[window]
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
    begins = np.sort(scene.mark_positions[1])
    after = np.searchsorted(begins, scene.pieces.end, "left")
    return np.asarray(after > np.searchsorted(begins, scene.pieces.start, "right"))


def python_loop(found: Segments, scene: Scene) -> Segments:
    """Thousands of tiny indexing operators per step: a Python loop over elements."""
    host = scene.host
    spans = host.nest.spans
    tops = np.flatnonzero(host.operator == np.arange(host.operator.size))
    tiny = names.matching(spans["name"], _INDEXING.search).to_numpy()
    rank, of_window, of_step = scene.ranks
    count = max((int(numbers.max(initial=-1)) + 1 for numbers in scene.ranks), default=0)
    steps = np.maximum(np.bincount(of_step, minlength=count), 1)
    calls = np.bincount(rank[tops], minlength=count)
    few = np.bincount(rank[tops[tiny[tops]]], minlength=count)
    loops = (few >= LOOP_CALLS * steps) & (few >= LOOP_SHARE * calls)
    if not loops.any():
        return found
    inside = np.zeros(host.operator.size, dtype=bool)
    inside[tops[_amid(tiny[tops], rank[tops])]] = True
    inside &= loops[rank]
    operator = np.where(found.span >= 0, host.operator[found.span], -1)
    looped = (operator >= 0) & inside[np.maximum(operator, 0)]
    soft = np.isin(found.activity, [CODE[a] for a in ("op", "launch", "python", "nothing")])
    between = (operator < 0) & (found.activity != CODE["op"])
    between &= loops[of_window[scene.pieces.group[found.piece]]]
    return found.with_activity(soft & (looped | between), "python_loop")


def _amid(tiny: npt.NDArray[np.bool_], rank: Index) -> npt.NDArray[np.bool_]:
    """Operators between two tiny ones of their rank, where those are frequent around them."""
    apart = np.cumsum(np.diff(rank, prepend=rank[:1]) != 0) * 2 * LOOP_WIDTH
    at = np.arange(tiny.size) + apart
    spread = np.zeros(tiny.size + int(apart[-1]), dtype=bool)
    spread[at] = tiny
    return np.asarray(_amid_one(spread)[at])


def _amid_one(tiny: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    near = np.convolve(tiny, np.ones(LOOP_WIDTH), mode="same") >= LOOP_SHARE * LOOP_WIDTH
    index = np.arange(tiny.size)
    last = np.maximum.accumulate(np.where(tiny, index, -LOOP_WIDTH))
    coming = np.where(tiny, index, 2 * tiny.size + LOOP_WIDTH)[::-1]
    following = np.minimum.accumulate(coming)[::-1]
    return np.asarray(near & (following - last <= LOOP_WIDTH // 2))


_FREE = re.compile(r"^(cuda|hip)Free$|^(cu|hip)MemUnmap")


def empty_cache(found: Segments, scene: Scene) -> Segments:
    """Memory tidied up in most steps: freed outside any operator, or garbage collected by a call.

    What does not come back is only an allocator call, or a collection.
    """
    host = scene.host
    frees = scene.spans_named("runtime", _FREE)
    explicit = host.activity[frees] == CODE["empty_cache"]
    frees = frees[(host.operator[frees] < 0) | explicit]
    collects = scene.spans_named("python", _COLLECT)
    emptied = _in_most_steps(found, scene, frees)
    once = ~emptied & (found.activity == CODE["empty_cache"])
    found = found.with_activity(emptied & (found.activity == CODE["allocator"]), "empty_cache")
    found = found.with_activity(once, "allocator")
    collected = _in_most_steps(found, scene, collects)
    return found.with_activity(collected & (found.activity == CODE["collector"]), "empty_cache")


def _in_most_steps(found: Segments, scene: Scene, calls: Index) -> npt.NDArray[np.bool_]:
    """Per segment, whether these calls come in at least half of its rank's steps, and in two."""
    nest = scene.host.nest
    at = nest.axis.take(nest.start[calls], nest.thread[calls])
    rank, of_window, of_step = scene.ranks
    begins = scene.marks["start_ns"].to_numpy()
    recurs = []
    for number in np.unique(rank[calls]):
        starts = np.sort(begins[of_step == number])
        hit = np.unique(np.searchsorted(starts, at[rank[calls] == number], side="right"))
        if starts.size > 1 and np.count_nonzero(hit > 0) >= max(2, starts.size / 2):
            recurs.append(number)
    return np.isin(of_window[scene.pieces.group[found.piece]], recurs)


def loader_restart(found: Segments, scene: Scene) -> Segments:
    """Worker processes that start again at an epoch's start, and the late first batch.

    Seen in the loader's own frames; without frames, suspected of an outlying wait that follows a
    long unrecorded stretch. The first start in the recording is start-up, not a restart.
    """
    host, nest = scene.host, scene.host.nest
    waits = scene.spans_named("annotation", _SPIKES)
    found = _first_start(found, scene, waits)
    waits, number = _by_rank(waits, scene.ranks[0])
    waits, number = (column[np.bincount(number)[number] >= 3] for column in (waits, number))
    if not waits.size:
        return found
    waits, number = _by_rank(waits, scene.ranks[0])
    took = nest.end[waits] - nest.start[waits]
    usual = RESTART_RATIO * _medians(took, number)[number]
    first = np.concatenate([[True], number[1:] != number[:-1]])
    slow = waits[(took > RESTART_NS) & (took > usual) & ~first]
    restarts = slow[_quiet_before(host, slow) > RESTART_SETUP_NS]
    restarts = np.union1d(restarts, _first_after_restart(scene, waits, number, took > usual))
    inside = (found.span >= 0) & np.isin(host.scope[np.maximum(found.span, 0)], restarts)
    return found.with_activity(inside & (found.activity == CODE["loader"]), "loader_restart")


def _by_rank(waits: Index, rank: Index) -> tuple[Index, Index]:
    """The spans in order of rank, and a number from 0 for each one's rank."""
    waits = waits[np.argsort(rank[waits], kind="stable")]
    return waits, np.unique(rank[waits], return_inverse=True)[1]


def _first_after_restart(
    scene: Scene, waits: Index, number: Index, outlying: npt.NDArray[np.bool_]
) -> Index:
    """The waits for a first batch that follow a recorded start of workers, where outlying."""
    host, nest, rank = scene.host, scene.host.nest, scene.ranks[0]
    started = np.flatnonzero(host.activity == CODE["loader_restart"])
    found = [waits[:0]]
    for one in range(int(number[-1]) + 1 if started.size else 0):
        mine, late = waits[number == one], outlying[number == one]
        own = started[rank[started] == rank[mine[0]]]
        own = own[nest.start[own] > nest.start[mine].min()]
        after = np.searchsorted(nest.start[mine], nest.end[own], side="left")
        after = np.unique(after[after < mine.size])
        found.append(mine[after[late[after]]])
    return np.concatenate(found)


def _first_start(found: Segments, scene: Scene, waits: Index) -> Segments:
    """A start of workers before which no batch was asked for happens once."""
    host, nest = scene.host, scene.host.nest
    restart = found.activity == CODE["loader_restart"]
    if not restart.any():
        return found
    begins = nest.axis.take(nest.start, nest.thread)
    scope = host.scope[np.maximum(found.span, 0)]
    rank = scene.ranks[0]
    first = np.full(int(rank.max()) + 1, np.iinfo(NS).max)
    np.minimum.at(first, rank[waits], begins[waits])
    return found.with_activity(restart & (begins[scope] <= first[rank[scope]]), "warm_up")


def _quiet_before(host: Host, index: Index) -> Ints:
    """Nanoseconds before each span in which its thread recorded no operator or call."""
    inner = host.partition
    start = host.nest.start[index]
    busy = (inner.span >= 0) & (host.activity[inner.span] != CODE["nothing"])
    ends = inner.end[busy]
    low = host.nest.axis.put(host.nest.thread[index], np.zeros(index.size, dtype=NS))
    before = np.searchsorted(ends, start, side="right") - 1
    known = before >= 0
    if ends.size:
        low = np.where(known, np.maximum(ends[np.maximum(before, 0)], low), low)
    return np.asarray(start - low)


WAITING = ("scalar_read", "sync", "cpu_roundtrip", "pageable_copy", "anomaly")


def lost_lead(found: Segments, scene: Scene) -> Segments:
    """Dispatch after a synchronisation is its loss, up to the launch lead it destroyed.

    While the host waits, the device works off what was queued; without the wait the host would
    have gone on queueing for just as long. That lead would have hidden as much later dispatch.
    """
    host = scene.host
    blocking = blocking_calls(scene)
    waits, window, start, end = _waits(scene, blocking)
    if not waits.size:
        return found
    lead = (end - start) - overlap_ns(start, end, scene.states.sets[EMPTY])
    dispatch = np.isin(found.activity, [CODE[name] for name in DISPATCH])
    index = np.flatnonzero(dispatch)
    after = np.searchsorted(end, found.start[index], side="right") - 1
    same = (after >= 0) & (window[after] == scene.pieces.group[found.piece[index]])
    index, after = index[same], after[same]
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


def _waits(scene: Scene, blocking: Index) -> tuple[Index, Index, Ints, Ints]:
    """(span, window, start, end) of every wait for the device, in order of its end."""
    waiting = (names.SYNCHRONISATIONS, names.BLOCKING_COPIES)
    every = np.concatenate([scene.spans_named("runtime", rule) for rule in waiting])
    every = every[np.isin(scene.host.activity[every], [CODE[name] for name in WAITING])]
    waits, window = scene.in_windows(np.unique(np.concatenate([every, blocking])))
    start, end = scene.host_positions(waits, window)
    order = np.argsort(end, kind="stable")
    return waits[order], window[order], start[order], end[order]


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

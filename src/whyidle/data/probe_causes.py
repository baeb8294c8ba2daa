"""What may hold a loader back: one function per cause, each from the record of a probe.

A cause says what a sample would cost without it, as far as its remedy can be expected to go; the
verdict turns that into rates and puts the largest gain first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from whyidle.data import predict
from whyidle.data.predict import Costs
from whyidle.data.probe_record import Probe, Stage
from whyidle.diagnosis import Level
from whyidle.render.numerals import about, digits, duration
from whyidle.render.numerals import count as counted

REMOVABLE = {"decode": 0.3, "transform": 0.6, "sample": 0.5, "python": 0.8, "waiting": 0.9}
"""Share of a stage's seconds that its remedy can be expected to take away: decoders differ by 1.2
to 1.5 times, a resize in OpenCV from one in Pillow by 3, vectorised from plain Python by more."""

HEAVY = 0.25
WAITS = 0.15
HELD = 0.7
"""Code that holds the interpreter's lock for a larger share of the time is Python."""

AMPLIFIED = 4.0
LARGE_BYTES = 16_384
OTHER_THREADS = 0.25
FIRST, EARLY, NORMAL, LAST = range(4)


@dataclass(frozen=True)
class Way:
    """One thing to do: ``after`` are the costs then, None where no rate follows from it.

    ``workers`` is the number to set with it; None leaves it as it is.
    """

    what: str
    how: str
    safe: bool
    why_safe: str
    after: Costs | None = None
    workers: int | None = None


@dataclass(frozen=True)
class Suspect:
    """A cause that the probe shows. ``rank``: facts that end or bind everything come first."""

    cause: str
    title: str
    level: Level
    told: list[str]
    ways: list[Way]
    rank: int = NORMAL
    stage: str | None = None
    place: tuple[str, int] | None = None
    extra: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """What the causes look at."""

    probe: Probe
    costs: Costs
    place: tuple[str, int] | None
    prefetch: int
    workers: int

    @property
    def sample_s(self) -> float:
        """Wall seconds of a sample in one process."""
        return self.probe.sample.mean_s if self.probe.sample else self.costs.alone_s

    def of(self, *kinds: str) -> list[Stage]:
        """The stages of these kinds."""
        return [one for one in self.probe.stages if one.kind in kinds]

    @property
    def scale(self) -> float:
        """A sample's CPU seconds in a loader's worker over those of its stages one by one."""
        total = sum(one.cpu_s for one in self.of(*INSIDE, "collate", "handover"))
        return self.costs.worker_cpu_s / total if total > 0 else 1.0

    def heavy(self, cpu_s: float) -> bool:
        """Whether so much CPU time of stages is a large part of what a sample takes a worker."""
        all_s = self.costs.worker_cpu_s + self.costs.worker_wait_s
        return cpu_s * self.scale >= HEAVY * all_s

    def without(self, cpu_s: float = 0.0, wait_s: float = 0.0) -> Costs:
        """The costs without so much CPU time and waiting of stages."""
        return predict.without(self.costs, cpu_s=cpu_s * self.scale, wait_s=wait_s)

    @property
    def tune(self) -> str:
        """The command that sets the loader."""
        return f"whyidle data tune {self.probe.spec}"

    def pack(self, rest: str = "") -> str:
        """The command that packs the data set."""
        return f"whyidle data pack {self.probe.spec} DST --to blob{rest}"


INSIDE = ("read", "decode", "transform", "sample")
SAME = "The samples stay the same."


def suspects(seen: Seen) -> Iterator[Suspect]:
    """Everything that this probe shows."""
    for look in (
        _shared_memory, _quota, _waiting, _chunks, _library_threads, _floats, _python, _decoding,
        _transforms, _own_code, _handing_over, _few_workers,
    ):  # fmt: skip
        found = look(seen)
        if found is not None:
            yield found


def _shared_memory(seen: Seen) -> Suspect | None:
    free, given = seen.probe.limits.shm_free, seen.probe.handover
    if free is None or given is None:
        return None
    workers = max(seen.workers, 1)
    batch = given.bytes * seen.probe.batch_size
    need = batch * (seen.prefetch * workers + 1)
    if need <= 0.8 * free:
        return None
    fits = int((0.8 * free / batch - 1) / seen.prefetch) if batch else 0
    way = (
        Way(f"Use at most {counted(fits, 'worker')}.", seen.tune, True, SAME)
        if fits >= 1
        else Way(
            "Load without workers, or by threads, which need no shared memory.",
            "num_workers=0, or whyidle.data.Loader", True, SAME,
        )
    )  # fmt: skip
    larger = Way(
        "Give the container more shared memory.",
        f"docker run --shm-size={_size(2 * need).replace(' ', '').lower()}, or in Kubernetes an "
        "emptyDir of medium Memory at /dev/shm", True, "It only raises a limit.",
    )  # fmt: skip
    return Suspect(
        "data.shm_small", "Shared memory is too small for the workers' batches", "deduced",
        [
            f"{counted(workers, 'worker')} that load {seen.prefetch} batches ahead need "
            f"{_size(need)} of /dev/shm; {_size(free)} are free. The job dies with a bus error, "
            "or hangs."
        ],
        [larger, way], FIRST,
    )  # fmt: skip


def _quota(seen: Seen) -> Suspect | None:
    limits, costs = seen.probe.limits, seen.costs
    if not limits.held_by_quota or limits.quota is None:
        return None
    freed = replace(costs, cpus=float(limits.affinity) * costs.cpus / limits.cpus)
    best = predict.pick(predict.rates(freed, predict.candidates(freed.cpus)))
    held = max(one.rate for one in seen.probe.rates)
    if best.rate < 1.1 * held:
        return None
    return Suspect(
        "data.cpu_quota", "A CPU quota holds the loader back", "deduced",
        [
            f"The control group allows {digits(limits.quota)} CPUs; the process may run on "
            f"{limits.affinity}, which is the number that loaders are usually sized by."
        ],
        [
            Way(
                f"Ask for {limits.affinity} CPUs.", "the CPU limit of the container or the job",
                True, "It only raises a limit.", freed, best.workers,
            ),
            Way(
                "Size the loader by the quota.", seen.tune, True, SAME, costs, seen.probe.pick
            ),
        ],
        EARLY,
    )  # fmt: skip


def _waiting(seen: Seen) -> Suspect | None:
    waits = sum(one.waiting_s for one in seen.of(*INSIDE))
    in_worker = seen.costs.worker_cpu_s + seen.costs.worker_wait_s
    if waits < WAITS * max(seen.sample_s, in_worker):
        return None
    most = max(seen.of(*INSIDE), key=lambda one: one.waiting_s)
    told = [
        f"{duration(waits)} of the {duration(seen.sample_s)} that a sample takes go by without "
        f"work: waiting for storage, a network or a lock; mostly in {most.name}."
    ]
    limits, storage = seen.probe.limits, seen.probe.storage
    if limits.network:
        told.append(f"The files lie on {limits.file_system}, across a network.")
    if storage is not None and storage.opens > 1.5:
        told.append(f"A sample opens {digits(storage.opens)} files.")
    gone = seen.without(wait_s=REMOVABLE["waiting"] * waits)
    return Suspect(
        "data.storage_waiting", "Samples wait for storage", "seen", told,
        [
            Way(
                "Have more workers wait at the same time.", seen.tune, True, SAME,
                seen.costs, seen.probe.pick,
            ),
            Way(
                "Pack the samples into few large files, read in order or mapped.", seen.pack(),
                True, SAME, gone,
            ),
        ],
        stage=most.name, place=seen.place,
    )  # fmt: skip


def _chunks(seen: Seen) -> Suspect | None:
    storage = seen.probe.storage
    if storage is None or not storage.chunk_bytes or not storage.used_bytes:
        return None
    times = storage.chunk_bytes / storage.used_bytes
    reads = [one for one in seen.of("read") if one.wall_s >= WAITS * seen.sample_s]
    if times < AMPLIFIED or not reads:
        return None
    part = 1 - 1 / times
    gone = seen.without(
        cpu_s=part * sum(one.cpu_s for one in reads),
        wait_s=part * sum(one.waiting_s for one in reads),
    )
    return Suspect(
        "data.chunk_amplification", "Each sample reads and unpacks a whole chunk of others",
        "deduced",
        [
            f"Chunks of {_size(storage.chunk_bytes)} are read and unpacked for a sample of "
            f"{_size(storage.used_bytes)}: {times:.0f} times as much."
        ],
        [
            Way(
                "Store one sample per chunk.",
                f"whyidle data pack {seen.probe.spec} DST --to hdf5", True, SAME, gone,
            ),
            Way(
                "Read whole chunks, and shuffle chunks and then inside some of them.",
                "a sampler that keeps the samples of a chunk together", False,
                "The order is less random.", gone,
            ),
        ],
        stage=reads[0].name, place=seen.place,
    )  # fmt: skip


def _library_threads(seen: Seen) -> Suspect | None:
    threads = seen.probe.threads
    if threads is None:
        return None
    cpus, workers = seen.probe.limits.cpus, max(seen.workers, 1)
    opencv = threads.opencv or 0
    other = threads.other_cpu_share or 0.0
    off = 0.0
    if opencv > 1 and threads.with_s and threads.without_s:
        off = max(1 - threads.without_s / threads.with_s, 0.0)
    if max(off, other) < OTHER_THREADS:
        return None
    if opencv > 1:
        what = f"OpenCV would use {opencv} threads in each process that loads"
        how = "cv2.setNumThreads(0) in a worker_init_fn"
        title, cause = "OpenCV's own threads crowd the CPUs", "data.opencv_threads"
    else:
        what, cause = "A library works in threads of its own", "data.library_threads"
        how = "OMP_NUM_THREADS=1 (and its kin) before the job starts"
        title = "Threads of a library crowd the CPUs"
    told = [
        f"{what}: with {counted(workers, 'worker')} on {digits(cpus)} CPUs they get in each "
        "other's way."
    ]
    if off:
        told.append(
            f"A sample costs {duration(threads.with_s or 0)} of CPU time with them and "
            f"{duration(threads.without_s or 0)} without."
        )
    costs, part = seen.costs, min(off or other, 0.95)
    waits = sum(one.waiting_s for one in seen.of(*INSIDE))  # for the other threads to be done
    gone = predict.without(costs, cpu_s=part * costs.worker_cpu_s, wait_s=part * waits)
    level: Level = "seen" if off else "suspected"
    return Suspect(cause, title, level, told, [Way("Use one thread.", how, True, SAME, gone)])


def _floats(seen: Seen) -> Suspect | None:
    given = seen.probe.handover
    if given is None or given.float_share <= 0.5 or given.bytes < LARGE_BYTES:
        return None
    if given.wall_s is None or given.narrow_s is None:
        return None
    inside = sum(one.cpu_s for one in seen.of("transform", "sample"))
    part = 1.0 if given.eight_bits else 2 / 3
    saved = part * max(given.wall_s - given.narrow_s, 0.0)
    convert = min(given.convert_s or 0.0, inside) if given.eight_bits else 0.0
    if saved + convert < 0.1 * (seen.costs.worker_cpu_s + seen.costs.worker_wait_s):
        return None
    gone = seen.without(cpu_s=saved + convert)
    told = [
        f"A sample is handed over as {_size(given.bytes)} of 32-bit numbers: collating and "
        f"handing over take {duration(given.wall_s)}, as 8-bit numbers {duration(given.narrow_s)}."
    ]
    if given.eight_bits:
        told.append("They hold no more than 256 different values per channel, so 8 bits would do.")
    what, how = (
        ("Hand over uint8 and normalise on the device.", f"{seen.tune}: it writes the change")
        if given.eight_bits
        else ("Hand over 16-bit numbers, or convert on the device.", "x.half() at the end")
    )
    return Suspect(
        "data.float32_handover", "32-bit numbers make handing over slow",
        "deduced" if given.eight_bits else "suspected", told,
        [
            Way(
                what, how, given.eight_bits,
                "The device computes the same normalisation."
                if given.eight_bits else "Values are rounded to 16 bits.",
                gone,
            )
        ],
    )  # fmt: skip


def _holds_the_lock(seen: Seen) -> bool:
    threads = seen.probe.threads
    return threads is not None and (threads.lock_share or 0.0) > HELD


def _python(seen: Seen) -> Suspect | None:
    inside = seen.of("transform", "sample")
    if not inside or not _holds_the_lock(seen):
        return None
    most = max(inside, key=lambda one: one.cpu_s)
    if not seen.heavy(most.cpu_s):
        return None
    threads = seen.probe.threads
    held = (threads.lock_share if threads is not None else None) or 0.0
    gone = seen.without(cpu_s=REMOVABLE["python"] * most.cpu_s)
    return Suspect(
        "data.python_heavy", "Python code holds samples up", "deduced",
        [
            f"{most.name} takes {duration(most.cpu_s)} of CPU time per sample, and the "
            f"interpreter's lock is held for {about(held)} of the time: it is Python, and threads "
            "would not help."
        ],
        [
            Way(
                "Vectorise it, or do it once and store the result.",
                f"NumPy or torch in place of the loop; or {seen.pack()}", False,
                "Someone has to write it.", gone,
            ),
            Way(
                "Meanwhile use worker processes, not threads.", seen.tune, True, SAME,
                seen.costs, seen.probe.pick,
            ),
        ],
        stage=most.name, place=seen.place,
    )  # fmt: skip


def _decoding(seen: Seen) -> Suspect | None:
    decode = sum(one.cpu_s for one in seen.of("decode"))
    if not seen.heavy(decode):
        return None
    gone = seen.without(cpu_s=REMOVABLE["decode"] * decode)
    fewer = seen.without(cpu_s=0.5 * decode)
    return Suspect(
        "data.decode_heavy", "Decoding holds samples up", "seen",
        [f"Decoding takes {duration(decode)} of CPU time per sample."],
        [
            Way(
                "Use a faster decoder.", f"{seen.tune}: it tries those installed on these files",
                False, "Decoders round pixels differently.", gone,
            ),
            Way(
                "Store the images once at the largest size that training needs.",
                seen.pack(" --resize PIXELS"), False, "Stored pixels change.", fewer,
            ),
        ],
        stage="decode",
    )  # fmt: skip


def _transforms(seen: Seen) -> Suspect | None:
    found = seen.of("transform")
    if not found or _holds_the_lock(seen):
        return None
    most = max(found, key=lambda one: one.cpu_s)
    if not seen.heavy(most.cpu_s):
        return None
    name = most.name.removeprefix("transform ")
    gone = seen.without(cpu_s=REMOVABLE["transform"] * most.cpu_s)
    return Suspect(
        "data.transform_heavy", f"The transform {name} holds samples up", "seen",
        [f"{name} takes {duration(most.cpu_s)} of CPU time per sample."],
        [
            Way(
                f"Do {name} with a faster library, or on the device.",
                f"{seen.tune}: it names what is known for it", False,
                "Other code gives other numbers.", gone,
            )
        ],
        stage=most.name,
    )  # fmt: skip


def _own_code(seen: Seen) -> Suspect | None:
    found = seen.of("sample")
    if not found or _holds_the_lock(seen):
        return None
    off = found[0].cpu_s
    if not seen.heavy(off):
        return None
    gone = seen.without(cpu_s=REMOVABLE["sample"] * off)
    return Suspect(
        "data.sample_code_heavy", "The data set's own code holds samples up", "seen",
        [
            f"__getitem__ itself, without reading, decoding and transforms that are known, takes "
            f"{duration(off)} of CPU time per sample."
        ],
        [
            Way(
                "Do it once and store the result.", seen.pack(), True, SAME, gone
            )
        ],
        stage=found[0].name, place=seen.place,
    )  # fmt: skip


def _handing_over(seen: Seen) -> Suspect | None:
    given = seen.probe.handover
    if given is None or given.wall_s is None or seen.workers == 0:
        return None
    if given.wall_s <= seen.sample_s:
        return None
    return Suspect(
        "data.handover", "Handing over takes longer than making a sample", "seen",
        [
            f"A sample takes {duration(seen.sample_s)} to make, and {duration(given.wall_s)} to "
            "collate in a worker and hand over."
        ],
        [
            Way("Load without workers.", "num_workers=0", True, SAME, seen.costs, 0),
            Way(
                "Slice whole batches from memory instead of collating single samples.",
                "__getitems__ in the data set, which takes a list of indexes", True, SAME,
            ),
        ],
        rank=NORMAL,
    )  # fmt: skip


def _few_workers(seen: Seen) -> Suspect | None:
    had, pick = seen.probe.workers, seen.probe.pick
    if had is None or pick is None or pick <= had:
        return None
    rates = {one.workers: one.rate for one in seen.probe.rates}
    if rates[pick] < 1.15 * rates[had]:
        return None
    return Suspect(
        "data.workers_too_few", "The loader has too few workers", "deduced",
        [f"It has {counted(had, 'worker')}; {pick} would be faster."],
        [Way(f"Use {counted(pick, 'worker')}.", seen.tune, True, SAME, seen.costs, pick)],
        LAST,
    )  # fmt: skip


def _size(found: float) -> str:
    """Bytes in the unit that leaves one to four digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if found < 1000:
            return f"{digits(found)} {unit}"
        found /= 1000
    return f"{digits(found)} TB"

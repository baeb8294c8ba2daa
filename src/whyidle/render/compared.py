"""The wording that all reports of a comparison share."""

from __future__ import annotations

from whyidle.comparison import Comparison, KernelLine, Line, Side, SignLine, StepTime
from whyidle.render.numerals import about, count, duration, percent
from whyidle.render.plain import clean, elide

VERDICTS = {
    "more than noise": "the steps of the two runs differ by more than steps of one run do",
    "within noise": "steps of one run differ as much among themselves",
    "cannot tell": "too few steps, or one side does not show it",
}
"""What each verdict means."""

HOW_SURE = (
    "More than noise: the difference stands out among those of all ways to deal the interior steps "
    "out to before and after; two runs of one program show such a line in at most 5% of tables. "
    "Intervals hold for one line by itself. What differs between runs but not between steps "
    "(another node, a warmer GPU) cannot be told from the change."
)
"""What the verdicts rest on, in full."""

MARKS = {"more than noise": "!", "within noise": "~", "cannot tell": "?"}
"""One sign per verdict, for tables."""

TINY = 0.001
"""Share of a step, or of wall time, below which a change is not worth a line."""


def amount(value: float | None, comparison: Comparison) -> str:
    """A figure of a line in the unit of the comparison; words where it is not known."""
    if value is None:
        return "not judged"
    return duration(value) if comparison.unit == "step" else percent(value)


def signed(value: float | None, comparison: Comparison) -> str:
    """A change with its sign; empty where it is not known."""
    if value is None:
        return ""
    if value == 0:
        return "none"
    if comparison.unit == "step":
        return ("+" if value > 0 else "-") + duration(abs(value))
    return f"{value * 100:+.1f} points"


def interval(line: Line, comparison: Comparison) -> str:
    """The bounds of a change; empty where so few steps cannot bound it."""
    if line.low is None or line.high is None:
        return ""
    return f"{signed(line.low, comparison)} to {signed(line.high, comparison)}"


def per(comparison: Comparison) -> str:
    """What the figures are per."""
    many = max(comparison.before.devices, comparison.after.devices) > 1
    if comparison.unit == "share":
        return "share of wall time"
    return "per step and device" if many else "per step"


def side(found: Side) -> str:
    """One side in a few words: its devices, its steps."""
    parts = [
        ", ".join(
            clean(name) if many == 1 else f"{many} x {clean(name)}"
            for name, many in found.hardware.items()
        )
        or count(found.devices, "device")
    ]
    if found.step_s is None or found.shortest_s is None or found.longest_s is None:
        return " · ".join([*parts, f"{duration(found.wall_s)} of device time, no steps marked"])
    steps = count(found.steps, "interior step")
    if found.steps == 1:
        return " · ".join([*parts, f"{steps} of {duration(found.step_s)}"])
    spread = f"{duration(found.shortest_s)} to {duration(found.longest_s)}"
    return " · ".join([*parts, f"{steps}, median {duration(found.step_s)} ({spread})"])


def names(comparison: Comparison) -> tuple[str, str]:
    """What the two sides are called, short enough for a heading."""
    before, after = comparison.before.name, comparison.after.name
    return elide(clean(before), 60), elide(clean(after), 60)


def sentences(comparison: Comparison) -> list[str]:
    """What a person should take home, sentence by sentence; the first one stands alone."""
    if comparison.same:
        return ["The two show no difference at all."]
    step = comparison.step
    found = [_step_sentence(step)] if step is not None else [_share_sentence(comparison)]
    changed = [line for line in worth(comparison) if line.verdict == "more than noise"]
    for line in changed[:2]:
        found.append(_cause_sentence(line, comparison))
    if not changed and (step is None or step.verdict == "within noise"):
        unsure = comparison.unit == "share" or any(
            line.verdict == "cannot tell" for line in comparison.causes
        )
        found.append(
            "Whether any cause changed cannot be told from this."
            if unsure
            else "No cause changed by more than noise."
        )
    return found


def _step_sentence(step: StepTime) -> str:
    before, after = duration(step.before_s), duration(step.after_s)
    steps = f"{len(step.before)} before, {len(step.after)} after"
    if step.verdict == "within noise":
        said = f"A step takes {after}, before {before}"
        return f"{said}: no difference beyond the noise between steps ({steps})."
    said = f"A step takes {after} instead of {before}: {factor(step)}"
    if step.verdict == "cannot tell":
        few = f"{count(len(step.before), 'step')} before and {len(step.after)} after"
        return f"{said}, but {few} are too few to tell that from noise."
    return f"{said}. That is more than the noise between steps ({steps})."


def factor(step: StepTime) -> str:
    """How many times as fast, or as long, with the bounds where they are known."""
    faster = step.ratio < 1
    values = [step.ratio, step.ratio_low, step.ratio_high]
    told = [None if v is None else 1 / v if faster and v > 0 else v for v in values]
    word = "as fast" if faster else "as long"
    bounds = sorted(v for v in told[1:] if v is not None)
    between = f" ({bounds[0]:.2f}x to {bounds[1]:.2f}x)" if len(bounds) == 2 else ""
    return f"{told[0]:.2f}x {word}{between}"


_SEEN = {"trace": "traced", "samples": "only sampled", "neither": "seen without device time"}


def _share_sentence(comparison: Comparison) -> str:
    kinds = [comparison.before.seen_by, comparison.after.seen_by]
    if kinds[0] != kinds[1]:
        told = f"the run before was {_SEEN[kinds[0]]}, the one after {_SEEN[kinds[1]]}"
        return f"The two cannot be set side by side: {told}."
    if kinds[0] == "neither":
        return "No device time was recorded on either side, so only signs can be compared."
    lost = [
        sum(getattr(line, when) or 0.0 for line in comparison.causes)
        for when in ("before", "after")
    ]
    old, new = map(about, lost)
    if not comparison.causes:
        return "No steps to compare, and no cause lost any time on either side."
    return f"No steps to compare: {old} of the time was lost before, {new} after."


def remarks(comparison: Comparison) -> list[str]:
    """The notes; causes of which one side shows nothing stand together."""
    groups: dict[str, list[str]] = {}
    for line in comparison.causes:
        if line.note:
            groups.setdefault(line.note, []).append(f"“{line.title}”")
    return [*comparison.notes, *(f"{', '.join(who)}: {why}" for why, who in groups.items())]


def _cause_sentence(line: Line, comparison: Comparison) -> str:
    name = f"“{elide(clean(line.title), 80)}”"
    before, after = amount(line.before, comparison), amount(line.after, comparison)
    if line.how == "vanished":
        return f"{name} is gone; it cost {before} {per(comparison)}."
    if line.how == "appeared":
        return f"{name} is new: {after} {per(comparison)}."
    word = "grew" if line.how == "grew" else "fell"
    return f"{name} {word} from {before} to {after} {per(comparison)}."


def base(comparison: Comparison) -> float:
    """What shares of a change are taken of: the longer step, or the whole."""
    step = comparison.step
    return max(step.before_s, step.after_s) if step is not None else 1.0


def worth(comparison: Comparison) -> list[Line]:
    """The causes whose line is worth showing, in their order: sure changes first."""
    least = TINY * base(comparison)
    sizes = {line.what: abs(line.change or 0.0) for line in comparison.causes}
    return [
        line
        for line in comparison.causes
        if line.note or sizes[line.what] >= least or line.how in ("appeared", "vanished")
    ]


def kernels(comparison: Comparison) -> list[KernelLine]:
    """Device work that changed by more than noise, or of which that cannot be told."""
    if comparison.kernels is None:
        return []
    least = TINY * base(comparison)
    return [
        row
        for row in comparison.kernels.rows
        if row.verdict != "within noise"
        and (abs(row.change) >= least or row.before_calls != row.after_calls)
    ]


def sign_words(line: SignLine) -> str:
    """Whether a sign is new, gone, still there or another one, and what it says now."""
    if line.before == line.after:
        return f"as before: {line.after}"
    if line.before is None:
        return f"new: {line.after}"
    if line.after is None:
        return f"gone; before: {line.before}"
    return f"now: {line.after} Before: {line.before}"


def kernel_name(row: KernelLine, width: int) -> str:
    """The work's name, or both where another runs at the same place."""
    old, new = short(row.before_name or ""), short(row.after_name or "")
    name = f"{old} -> {new}" if row.replaced else new or old
    return elide(name, width)


def short(name: str) -> str:
    """A kernel's name without return type, namespaces and template arguments."""
    bare = clean(name).removeprefix("void ")
    head = bare.split("<")[0].split("(")[0] or bare
    return head.rsplit("::", 1)[-1] or bare


def place(row: KernelLine, width: int) -> str:
    """The call path, its outermost parts given up first."""
    parts = [clean(part) for part in row.path]
    shown = " > ".join(parts)
    while len(parts) > 1 and len(shown) > width:
        parts = parts[1:]
        shown = "… > " + " > ".join(parts)
    return elide(shown, width) or "no known call path"


def kernel_summary(comparison: Comparison) -> str:
    """How much of the device work could be matched, and how much of it stayed."""
    told = comparison.kernels
    if told is None:
        return ""
    share = percent(told.matched)
    same = count(told.same, "call path")
    return f"{share} of the device work is on both sides under one call path; {same} within noise."

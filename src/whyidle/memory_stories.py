"""Tells what a memory snapshot kept of a small run: for the examples of causes and for tests."""

from __future__ import annotations

from typing import Any

from whyidle.model import ALLOCATIONS, MEMORY_BLOCKS, Evidence, SourceInfo, frame

MIB = 1 << 20
ORIGIN_NS = 1_700_000_000_000_000_000
BASE = 0x7F00_0000_0000


class MemoryStory:
    """Collects events of one device, 100 us apart; ``evidence()`` ends the story.

    Sizes are MiB, addresses MiB above a base. ``line`` is the line of train.py that asks.
    """

    def __init__(self, *, rank: int | None = 0, device: int = 0, clock: bool = True) -> None:
        """One rank with one device; ``clock``: whether the recorder kept times."""
        self._rank, self._device, self._clock = rank, device, clock
        self._events: list[dict[str, Any]] = []
        self._segments: dict[int, int] = {}
        self._held: dict[int, tuple[int, str]] = {}

    def grow(self, at: int, size: int, line: int = 1) -> MemoryStory:
        """The driver gives a segment."""
        self._segments[at] = size
        return self._event("segment_alloc", at, size, _stack(line))

    def shrink(self, at: int, stack: str | None = None) -> MemoryStory:
        """A segment goes back to the driver."""
        return self._event("segment_free", at, self._segments.pop(at), stack)

    def alloc(self, at: int, size: int, line: int) -> MemoryStory:
        """A block is handed out."""
        self._held[at] = (size, _stack(line))
        return self._event("alloc", at, size, _stack(line))

    def free(self, at: int) -> MemoryStory:
        """A block comes back."""
        size, stack = self._held.pop(at)
        self._event("free_requested", at, size, stack)
        return self._event("free_completed", at, size, stack)

    def oom(self, size: int, device_free: int, line: int) -> MemoryStory:
        """A request fails."""
        self._event("oom", 0, size, _stack(line))
        self._events[-1] |= {"address": None, "free_bytes": device_free * MIB}
        return self

    def _event(self, action: str, at: int, size: int, stack: str | None) -> MemoryStory:
        number = len(self._events)
        self._events.append(
            {
                "source": 0, "event": number, "rank": self._rank, "device": self._device,
                "action": action, "t_ns": ORIGIN_NS + number * 100_000 if self._clock else None,
                "address": BASE + at * MIB, "bytes": size * MIB, "lane": 0, "free_bytes": None,
                "stack": stack,
            }
        )  # fmt: skip
        return self

    def evidence(self) -> Evidence:
        """The snapshot at the end of the story."""
        blocks = [
            self._block(segment, size, *part)
            for segment, size in sorted(self._segments.items())
            for part in self._parts(segment, size)
        ]
        tables = {
            "allocations": frame(ALLOCATIONS, self._events or None),
            "memory_blocks": frame(MEMORY_BLOCKS, blocks or None),
        }
        count = len(self._events) + len(blocks)
        source = SourceInfo(path="snapshot.pickle", reader="example", rank=self._rank, events=count)
        return Evidence(tables, sources=(source,))

    def _parts(self, segment: int, size: int) -> list[tuple[int, int, str | None]]:
        """(address, MiB, stack or None when free) of the blocks of a segment, in order."""
        parts: list[tuple[int, int, str | None]] = []
        at = segment
        for address, (taken, stack) in sorted(self._held.items()):
            if segment <= address < segment + size:
                if address > at:
                    parts.append((at, address - at, None))
                parts.append((address, taken, stack))
                at = address + taken
        return [*parts, (at, segment + size - at, None)] if at < segment + size else parts

    def _block(self, segment: int, size: int, at: int, part: int, stack: str | None) -> Any:
        return {
            "source": 0, "rank": self._rank, "device": self._device,
            "segment": BASE + segment * MIB, "segment_bytes": size * MIB,
            "segment_kind": "large", "pool": None, "expandable": False, "lane": 0,
            "address": BASE + at * MIB, "bytes": part * MIB,
            "requested_bytes": part * MIB if stack else 0,
            "state": "active_allocated" if stack else "inactive", "stack": stack,
        }  # fmt: skip


def _stack(line: int) -> str:
    return f"torch/nn/functional.py(77): linear\ntrain.py({line}): step\ntrain.py(9): main"

"""A small caching allocator that keeps the history PyTorch would: for tests, and of no use else.

Blocks are split and merged inside segments; a segment is taken from a device of limited size; when
it is full, free segments go back and the request is tried again; then it fails. Every event is
written as ``torch.cuda.memory._snapshot()`` writes it. The allocator counts its own truth.
"""

from __future__ import annotations

from typing import Any

MIB = 1 << 20
BASE = 0x7F3A_0000_0000
T0_US = 1_758_000_000_000_000


class Device:
    """One device; sizes in bytes."""

    def __init__(self, capacity: int = 1 << 40, segment: int = 20 * MIB, us: int = 50) -> None:
        self.capacity, self.segment_size, self.us = capacity, segment, us
        self.trace: list[dict[str, Any]] = []
        self.segments: dict[int, list[list[Any]]] = {}  # address -> [address, size, held or None]
        self.next_address = BASE
        self.allocated = self.reserved = 0
        self.peak = (0, {})  # bytes, {line: bytes}
        self.retries = self.failures = 0

    def alloc(self, size: int, line: int) -> int:
        rounded = -(-size // 512) * 512
        place = self._find(rounded) or self._segment(rounded, size, line)
        address, blocks, index = place
        whole = blocks[index][1]
        blocks[index] = [address, rounded, (size, line)]
        if whole > rounded:
            blocks.insert(index + 1, [address + rounded, whole - rounded, None])
        self.allocated += size
        self._note("alloc", address, size, line)
        if self.allocated > self.peak[0]:
            self.peak = (self.allocated, self.by_line())
        return address

    def free(self, address: int) -> None:
        for blocks in self.segments.values():
            for i, block in enumerate(blocks):
                if block[0] == address and block[2]:
                    size, line = block[2]
                    self.allocated -= size
                    self._note("free_requested", address, size, line)
                    self._note("free_completed", address, size, line)
                    block[2] = None
                    for j in (i, i - 1):
                        if 0 <= j < len(blocks) - 1 and not blocks[j][2] and not blocks[j + 1][2]:
                            blocks[j][1] += blocks.pop(j + 1)[1]
                    return
        raise AssertionError("not allocated")

    def empty_cache(self) -> None:
        for address in [a for a, blocks in self.segments.items() if not any(b[2] for b in blocks)]:
            self._give_back(address, [_frame("empty_cache", "/env/torch/cuda/memory.py", 9)])

    def by_line(self) -> dict[int, int]:
        held: dict[int, int] = {}
        for blocks in self.segments.values():
            for _, _, held_by in blocks:
                if held_by:
                    held[held_by[1]] = held.get(held_by[1], 0) + held_by[0]
        return held

    def _find(self, size: int) -> Any:
        fits = [
            (block[1], block[0], blocks, i)
            for blocks in self.segments.values()
            for i, block in enumerate(blocks)
            if not block[2] and block[1] >= size
        ]
        return min(fits, key=lambda fit: fit[:2])[1:] if fits else None

    def _segment(self, rounded: int, size: int, line: int) -> Any:
        wanted = max(rounded, self.segment_size)
        if self.reserved + wanted > self.capacity:
            free = [a for a, blocks in self.segments.items() if not any(b[2] for b in blocks)]
            for address in free:
                self._give_back(address, stack(line))
            if self.reserved + wanted <= self.capacity and free:
                self.retries += 1
        if self.reserved + wanted > self.capacity:
            self.failures += 1
            self._note("oom", None, size, line)
            self.trace[-1]["device_free"] = self.capacity - self.reserved
            raise MemoryError
        address, self.next_address = self.next_address, self.next_address + wanted + MIB
        self.segments[address] = [[address, wanted, None]]
        self.reserved += wanted
        self._note("segment_alloc", address, wanted, line)
        return address, self.segments[address], 0

    def _give_back(self, address: int, frames: list[Any]) -> None:
        size = sum(block[1] for block in self.segments.pop(address))
        self.reserved -= size
        self._note("segment_free", address, size, 0)
        self.trace[-1]["frames"] = frames

    def _note(self, action: str, address: int | None, size: int, line: int) -> None:
        entry: dict[str, Any] = {"action": action, "size": size, "stream": 0}
        if address is not None:
            entry["addr"] = address
        entry |= {"time_us": T0_US + self.us * len(self.trace), "frames": stack(line)}
        self.trace.append(entry | {"device": 0, "compile_context": "N/A", "user_metadata": ""})

    def blocks(self) -> list[dict[str, Any]]:
        """``segments`` as a snapshot holds them."""
        found = []
        for address, blocks in self.segments.items():
            told = [
                {
                    "address": at, "size": size, "requested_size": held[0] if held else 0,
                    "state": "active_allocated" if held else "inactive",
                    "frames": stack(held[1]) if held else [],
                }
                for at, size, held in blocks
            ]  # fmt: skip
            found.append(
                {
                    "device": 0, "address": address, "total_size": sum(b[1] for b in blocks),
                    "allocated_size": sum(b[1] for b in blocks if b[2]),
                    "active_size": sum(b[1] for b in blocks if b[2]),
                    "requested_size": sum(b[2][0] for b in blocks if b[2]),
                    "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
                    "is_expandable": False, "frames": stack(0), "blocks": told,
                }
            )  # fmt: skip
        return found

    def snapshot(self, most: int | None = None) -> dict[str, Any]:
        """The snapshot; of the history the last ``most`` entries, as a full ring keeps them."""
        return {
            "segments": self.blocks(),
            "device_traces": [self.trace[-most:] if most else self.trace],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
            "external_annotations": [],
        }


_FRAMES: dict[tuple[str, str, int], dict[str, Any]] = {}


def _frame(name: str, file: str, line: int) -> dict[str, Any]:
    found = {"name": name, "filename": file, "line": line}
    return _FRAMES.setdefault((name, file, line), found)


def stack(line: int) -> list[dict[str, Any]]:
    """C++ inside, then torch, then the user's line."""
    return [
        _frame("at::native::empty_cuda", "??", 0),
        _frame("linear", "/env/lib/python3.11/site-packages/torch/nn/functional.py", 125),
        _frame("step", "/proj/train.py", line),
        _frame("main", "/proj/train.py", 900),
    ]


def train(device: Device, steps: int, *, leak: int = 0, empty: bool = False) -> None:
    """Parameters on line 10, four activations on lines 20-23, a leak on line 30 if any."""
    for _ in range(3):
        device.alloc(8 * MIB, 10)
    for step in range(steps):
        held = [device.alloc((4 + layer) * MIB + step % 2, 20 + layer) for layer in range(4)]
        if step == 0:
            device.alloc(12 * MIB, 40)  # state of the optimizer
        if leak:
            device.alloc(leak, 30)
        for address in reversed(held):
            device.free(address)
        if empty:
            device.empty_cache()

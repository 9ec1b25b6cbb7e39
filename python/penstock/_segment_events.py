"""When segments came and went, for a history that says only what was allocated and freed.

A tensor of Penstock's is a segment of its own, whose addresses others have
later. A picture of the past that goes backwards from the segments of today, as
PyTorch's viewer does, needs a segment around whatever was allocated at a time.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Any

LIVE = ("active_allocated", "active_awaiting_free")


@dataclass
class _Segment:
    address: int
    size: int
    live: set[int]
    passing: bool  # it is there only for what is allocated in it


class _Segments:
    """The segments at a time, by address."""

    def __init__(self, found: list[dict[str, Any]]) -> None:
        self._all = [
            _Segment(s["address"], s["total_size"], {b["address"] for b in s["blocks"] if b["state"] in LIVE}, s["tensor"] and not any(s["pool"])) for s in found
        ]

    def _behind(self, address: int) -> int:
        return bisect.bisect_right(self._all, address, key=lambda s: s.address)

    def containing(self, address: int) -> _Segment | None:
        i = self._behind(address)
        s = self._all[i - 1] if i else None
        return s if s and address < s.address + s.size else None

    def add(self, address: int, size: int) -> _Segment:
        i = self._behind(address)
        if i < len(self._all):
            size = min(size, self._all[i].address - address)
        s = _Segment(address, size, set(), True)
        self._all.insert(i, s)
        return s

    def remove(self, s: _Segment) -> None:
        del self._all[self._behind(s.address) - 1]


def added(history: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A device's history, oldest first, that ends with these segments, with segment_alloc and segment_free where they are due."""
    now = _Segments(found)
    backwards: list[dict[str, Any]] = []
    for event in reversed(history):
        if event["action"] == "free_completed":
            s = now.containing(event["addr"])
            if s is None:
                s = now.add(event["addr"], event["size"])
                backwards.append({**event, "action": "segment_free", "size": s.size})
            s.live.add(event["addr"])
        backwards.append(event)
        if event["action"] == "alloc":
            s = now.containing(event["addr"])
            if s is not None:
                s.live.discard(event["addr"])
                if s.passing and not s.live:
                    now.remove(s)
                    backwards.append({**event, "action": "segment_alloc", "addr": s.address, "size": s.size})
    return backwards[::-1]

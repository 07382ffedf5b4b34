"""One rung of a halving search: its trials by metric, split at the share that goes on."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heappushpop

Entry = tuple[float, int, str]
"""Metric (smaller is better), place among equals, request id: entries sort from best to worst.

Holding no objects but numbers and strings, a hundred thousand of them cost the garbage collector
nothing."""


class Rung:
    """Ranks trials as they are measured, in O(log n) each.

    Only the border of the best 1/divisor is ever asked for. So the best are kept in a heap with the worst
    of them on top, the others in a heap with the best of them on top. Withdrawn trials stay in the heaps
    until they surface.

    Args:
        length: total length at which trials are measured here. divisor: one in ``divisor`` trials
        is among the best. at_least: the least number of trials among the best (0 or 1).
        equals_first: whether a trial is ranked before those with the same metric, or after them.

    Attributes:
        outstanding: how many trials are on their way here.
        measured: how many are ranked.
    """

    __slots__ = (
        "_at_least",
        "_best",
        "_divisor",
        "_inside",
        "_rest",
        "_step",
        "_tie",
        "_withdrawn",
        "length",
        "measured",
        "outstanding",
    )

    def __init__(self, length: int, divisor: float, at_least: int, equals_first: bool) -> None:
        self.length = length
        self.outstanding = 0
        self.measured = 0
        self._divisor = divisor
        self._at_least = at_least
        self._step = -1 if equals_first else 1
        self._tie = 0
        self._best: list[Entry] = []  # with metric and place negated
        self._rest: list[Entry] = []
        self._inside: set[str] = set()  # who is in _best and not withdrawn
        self._withdrawn: set[str] = set()

    def entry(self, request_id: str, metric: float) -> Entry:
        """The next trial's entry, for :meth:`add`."""
        self._tie += self._step
        return metric, self._tie, request_id

    def add(self, entry: Entry) -> Entry | None:
        """Ranks a trial. Returns its entry if it is among the best; else that of the trial that
        now is, because the share has grown by one; else None."""
        self.measured += 1
        if self._withdrawn:
            self._clear_tops()
        if len(self._inside) < self._share():
            entry = heappushpop(self._rest, entry)
            self._enter(entry)
            return entry
        metric, tie, request_id = entry
        if not self._best or metric > -self._best[0][0]:  # as most are
            heappush(self._rest, entry)
            return None
        worst, place, other = heappushpop(self._best, (-metric, -tie, request_id))
        if other == request_id:
            heappush(self._rest, entry)
            return None
        heappush(self._rest, (-worst, -place, other))
        self._inside.remove(other)
        self._inside.add(request_id)
        return entry

    def withdraw(self, request_id: str) -> None:
        """Takes a ranked trial out; the border moves if the share shrinks."""
        self.measured -= 1
        self._withdrawn.add(request_id)
        self._inside.discard(request_id)
        self._clear_tops()
        if len(self._inside) < self._share():
            self._enter(heappop(self._rest))
        elif len(self._inside) > self._share():
            entry = _turned(heappop(self._best))
            self._inside.remove(entry[2])
            heappush(self._rest, entry)

    def ranking(self) -> list[Entry]:
        """All entries from best to worst. O(n log n)."""
        entries = [*map(_turned, self._best), *self._rest]
        return sorted(entry for entry in entries if entry[2] not in self._withdrawn)

    def load(self, ranking: Iterable[tuple[str, float]]) -> None:
        """Takes (request id, metric), best first, into an empty rung."""
        entries: list[Entry] = [(metric, i, name) for i, (name, metric) in enumerate(ranking)]
        self.measured = len(entries)
        # Places to come lie after all of these, or before them.
        self._tie = self.measured if self._step > 0 else 0
        share = self._share()
        self._best = [*map(_turned, entries[:share])]
        heapify(self._best)
        self._rest = entries[share:]
        self._inside = {name for _, _, name in entries[:share]}

    def _share(self) -> int:
        """The number of trials that count as the best. Dividing floats is part of the definition."""
        share = int(self.measured / self._divisor)
        return share if share >= self._at_least else min(self._at_least, self.measured)

    def _enter(self, entry: Entry) -> None:
        heappush(self._best, _turned(entry))
        self._inside.add(entry[2])

    def _clear_tops(self) -> None:
        for heap in (self._best, self._rest):
            while heap and heap[0][2] in self._withdrawn:
                self._withdrawn.remove(heappop(heap)[2])


def _turned(entry: Entry) -> Entry:
    return -entry[0], -entry[1], entry[2]

"""Where a job that is moved in the queue stands: :func:`place_beside`, pure arithmetic.

A job's place is a number, in seconds since 1970 when nobody moved it. One that is moved gets the number in
the middle between its new neighbours; where these are too close, all get new numbers, a second apart.
"""

from __future__ import annotations

from collections.abc import Sequence

CLOSEST_S = 1e-5
"""Neighbours at least this far apart have room between them: well above what a double tells apart there."""
BESIDE_S = 1.0


def place_beside(
    line: Sequence[tuple[int, float]], anchor: int, *, ahead: bool, moved: int, now: float
) -> dict[int, float]:
    """The new places by job: of ``moved``, or of every job in ``line``.

    ``line``: the other jobs with their places, in order. ``now``: the end of the line, after which the next
    new job comes. Raises ValueError when ``anchor`` is not in line.
    """
    at = [job for job, _ in line].index(anchor)
    if not ahead:
        at += 1
    before = line[at - 1][1] if at > 0 else None
    after = line[at][1] if at < len(line) else None
    if before is None:
        assert after is not None
        return {moved: after - BESIDE_S}
    if after is None:
        return {moved: max(now, before + CLOSEST_S)}
    if after - before >= CLOSEST_S:
        return {moved: (before + after) / 2}
    order = [job for job, _ in line]
    order.insert(at, moved)
    last = min(now, line[-1][1])
    return {job: last - BESIDE_S * behind for behind, job in enumerate(reversed(order))}

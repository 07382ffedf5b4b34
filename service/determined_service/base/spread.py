"""Over how many agents a request for slots spreads: the one rule, for scheduling and for refusals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from enum import StrEnum
from heapq import nsmallest


class Spread(StrEnum):
    """The agents over which a request may spread when no agent has enough slots. It gets whole agents then:
    none of their slots may be held."""

    NONE = "none"  # over none: it runs on one agent or not at all
    EVEN = "even"  # over agents with the same number of slots
    UNEVEN = "uneven"  # over any, the widest first; of the last one it may use a part only

    @classmethod
    def of(cls, single_node: bool | None, uneven: bool) -> Spread:
        """By ``resources.is_single_node`` and ``scheduler.allow_heterogeneous_fits``."""
        if single_node:
            return cls.NONE
        return cls.UNEVEN if uneven else cls.EVEN


def most(wanted: int, widths: Mapping[int, int], spread: Spread) -> int:
    """The most slots that a request for ``wanted`` can use of whole agents.

    ``widths``: how many agents there are, by their slots. It fits if the answer is at least ``wanted``.
    """
    if spread is Spread.NONE:
        return 0
    even = max(
        (width * count for width, count in widths.items() if _divides(width, wanted)), default=0
    )
    if spread is Spread.EVEN or even >= wanted:
        return even
    return sum(width * count for width, count in widths.items())


def could_hold(wanted: int, widths: Mapping[int, int], spread: Spread) -> bool:
    """True if one agent is wide enough for ``wanted`` slots, or several are together."""
    widest = max((width for width, count in widths.items() if count), default=0)
    return wanted <= widest or most(wanted, widths, spread) >= wanted


def choose(
    wanted: int,
    ready: Mapping[int, Set[str]],
    spread: Spread,
    gain: Mapping[str, int] | None = None,
) -> list[tuple[str, int]] | None:
    """Agents, and how many slots of each, for ``wanted`` slots; None: they are not enough.

    ``ready``: by their slots, the agents that can be had as a whole. As few agents as possible; among equal
    ones the highest ``gain`` (0 or more; default 0), then by name.
    """
    if spread is Spread.NONE:
        return None
    for width in sorted(ready, reverse=True):
        if _divides(width, wanted) and len(ready[width]) * width >= wanted:
            chosen = _best(wanted // width, ready[width], gain or {})
            return [(one, width) for one in chosen]
    if spread is Spread.EVEN:
        return None
    found, missing = [], wanted
    for width in sorted(ready, reverse=True):
        for one in _best(len(ready[width]), ready[width], gain or {}):
            found.append((one, min(width, missing)))
            missing -= width
            if missing <= 0:
                return found
    return None


def _best(number: int, agents: Set[str], gain: Mapping[str, int]) -> Iterator[str]:
    # Mostly few have any, and ids alone are compared several times as fast as with a number before them.
    gains = ((-more, one) for one, more in gain.items() if more and one in agents)
    first = nsmallest(number, gains)
    yield from (one for _, one in first)
    if len(first) < number:
        others = agents - {one for _, one in first} if first else agents
        yield from nsmallest(number - len(first), others)


def _divides(width: int, wanted: int) -> bool:
    return width > 0 and wanted % width == 0

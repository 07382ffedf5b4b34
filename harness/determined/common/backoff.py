"""Waiting times between two tries."""

from __future__ import annotations

import random

# The operating system's numbers: the training code's own sequence stays as it is, and forks differ.
_CHANCE = random.SystemRandom()


class Backoff:
    """Waits that double from ``first`` to ``longest`` seconds, each shortened at random by up to a half.

    The randomness spreads the requests of many processes that lost the service at the same moment. The
    caller does the sleeping, so the class serves threads, event loops and waits that an event may end
    early.
    """

    def __init__(self, first: float, longest: float) -> None:
        self.first = first
        self.longest = longest
        self._tries = 0
        self._next = first

    @property
    def tries(self) -> int:
        """The number of waits since the start or the last :meth:`reset`."""
        return self._tries

    def next_delay(self) -> float:
        """The seconds to wait now; the next wait is longer."""
        delay = self._next * _CHANCE.uniform(0.5, 1.0)
        self._next = min(self._next * 2, self.longest)
        self._tries += 1
        return delay

    def reset(self) -> None:
        """Note that a try succeeded: the next wait is the first one again."""
        self._tries = 0
        self._next = self.first

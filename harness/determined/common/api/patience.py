"""Waits for a service that is away, for example because it is being restarted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from determined.common.api import errors

T = TypeVar("T")

LIMIT_S = 120.0
PAUSE_S = 1.0
OUTAGE_RETRIES = 200
"""``max_retries`` for a request of a process that must survive an outage of ten minutes. The waits sum up
to about 750 s, and to 600 s in unlucky cases.
"""


def patiently(
    ask: Callable[[], T],
    *,
    limit_s: float = LIMIT_S,
    on_wait: Callable[[errors.MasterNotFoundException], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Call ``ask()`` again and again while nothing answers, for ``limit_s`` seconds at most.

    ``on_wait`` is called once, when the waiting begins. Raises MasterNotFoundException after ``limit_s``,
    and any other exception of ``ask`` at once.
    """
    away_since: float | None = None
    while True:
        try:
            return ask()
        except errors.MasterNotFoundException as error:
            now = clock()
            if away_since is None:
                away_since = now
                if on_wait is not None:
                    on_wait(error)
            if now - away_since >= limit_s:
                raise
            sleep(PAUSE_S)

"""A machine that goes away: its leg is told while there is time to store a checkpoint.

SIGTERM is the notice, where the launcher says how many seconds are left (:attr:`AgentSide.grace_seconds`).
The service preempts the allocation, all nodes of a gang. What is not a trial hears of no preemption: its
process gets the SIGTERM. What has not ended shortly before the seconds are over is killed, so that its end
can still be told.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable

from determined.common.api import errors
from determined.common.backoff import Backoff
from determined.common.wire import paths
from determined.common.wire.legs import LegSpec, Notice, going_away
from determined_tasks.carrier import Carrier
from determined_tasks.exit_reason import LegResult, infrastructure
from determined_tasks.task_environment import AgentSide

logger = logging.getLogger(__name__)

RETRY_SECONDS = (0.1, 2.0)
POST_SECONDS = 5.0
FOR_THE_REPORT = 0.2
"""The share of the seconds that is left for the last log lines and the end's report, within these limits."""
LEAST_FOR_THE_REPORT, MOST_FOR_THE_REPORT = 1.0, 10.0
SERVERS = ("NOTEBOOK", "SHELL", "TENSORBOARD")
"""Kinds of tasks whose process never ends by itself: one that exits with 0 was ended."""


class GoingAway:
    """What follows a notice to one leg; nothing happens before :meth:`notice`.

    ``seconds``: how long the machine stays. ``stop`` kills the training process, with the end of the leg.
    """

    def __init__(
        self,
        spec: LegSpec,
        place: AgentSide,
        start_id: str,
        carrier: Carrier,
        stop: Callable[[LegResult], None],
        seconds: float,
    ) -> None:
        self._spec = spec
        self._place = place
        self._start_id = start_id
        self._carrier = carrier
        self._stop = stop
        self._seconds = seconds
        self._given_at: float | None = None
        self._over = threading.Event()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._reason = f"{place.agent_id} was told to end within {seconds:g} s"
        threading.Thread(target=self._wait, name="notice", daemon=True).start()

    def notice(self) -> None:
        """Safe in a signal handler; only the first one counts."""
        if self._given_at is None:
            self._given_at = time.monotonic()
            # No lock and no thread's start, which the interrupted code may be in the middle of.
            with contextlib.suppress(OSError):
                os.write(self._write, b"!")

    def end(self) -> None:
        """The process has ended."""
        self._over.set()

    def judged(self, result: LegResult) -> LegResult:
        """The end of the leg, of whose process ``result`` is the end.

        A clean exit is left as it is: the service knows whether the process was preempted or through.
        """
        if self._given_at is None:
            return result
        if result.report.exit_code == 0 and self._spec.task_type not in SERVERS:
            return result
        return infrastructure(str(result), leaving=self._reason)

    def _wait(self) -> None:
        if not os.read(self._read, 1):
            return
        kept = max(LEAST_FOR_THE_REPORT, min(self._seconds * FOR_THE_REPORT, MOST_FOR_THE_REPORT))
        assert self._given_at is not None
        own = max(0.0, self._seconds - kept)
        deadline = self._given_at + own
        self._carrier.reporter.say(going_away(self._reason), "WARNING")
        # A service that does not answer must not delay the end.
        threading.Thread(target=self._tell, args=(deadline,), name="tell", daemon=True).start()
        if self._spec.task_type != "TRIAL":
            self._carrier.ask_to_end()
        if not self._over.wait(max(0.0, deadline - time.monotonic())):
            words = f"its process had not ended after {own:g} s and was killed"
            self._stop(infrastructure(words, leaving=self._reason))

    def _tell(self, deadline: float) -> None:
        """Until the service has heard of it, or it is too late for a checkpoint."""
        path = paths.NOTICE.format(allocation_id=self._spec.allocation_id)
        node = self._spec.node if self._spec.nodes > 1 else None
        left = max(0.0, deadline - time.monotonic())
        report = Notice(self._reason, left, node, self._start_id).to_json()
        backoff = Backoff(*RETRY_SECONDS)
        with self._place.session() as service:
            while not self._over.is_set() and time.monotonic() < deadline:
                try:
                    service.post(path, json=report, timeout=POST_SECONDS)
                    return
                except errors.BadRequestException as error:
                    logger.warning("%s: %s", path, error)
                    return
                except errors.APIException as error:
                    logger.info("%s: not sent yet, trying again: %s", path, error)
                self._over.wait(backoff.next_delay())

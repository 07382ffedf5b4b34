"""A script outside of the cluster whose trial the service keeps: signs of life, output, the end."""

from __future__ import annotations

import contextlib
import logging
import threading

from determined import errors
from determined._info import ClusterInfo
from determined.core._connection import Connection
from determined.core._log_shipper import LogShipper

logger = logging.getLogger("determined.core")

# The service takes a trial for dead after five minutes without one.
HEARTBEAT_S = 60.0
RETRY_S = 10.0


class UnmanagedScript:
    """Between :meth:`start` and :meth:`close` the script's trial counts as running.

    The process of rank 0 gives signs of life and says how it ended, another one only when it failed: then
    its launcher may be quicker than rank 0. Every process ships what it prints.
    """

    def __init__(self, connection: Connection, info: ClusterInfo, rank: int) -> None:
        self._connection = connection
        self._path = f"/api/v1/trials/{info.trial.trial_id}"
        # Another start of the script is another run, which ends this one.
        self._run_id = info.trial._trial_run_id
        self._rank = rank
        self._logs = LogShipper(connection, info.task_id, rank)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._started = False

    def start(self) -> None:
        """May be called twice."""
        if self._started:
            return
        self._started = True
        self._logs.start()
        if self._rank == 0:
            self._thread = threading.Thread(
                target=self._run, name="determined-heartbeat", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        from determined.common.api.errors import APIException

        wait = HEARTBEAT_S  # the start itself was a sign of life
        while not self._stop.wait(wait):
            wait = HEARTBEAT_S
            try:
                self._connection.patch(self._path, json={"trialRunId": self._run_id}, max_retries=0)
            except errors.AllocationEnded as error:
                # The next report raises it where the training sees it.
                logger.error("%s", error)
                return
            except APIException as error:
                logger.warning(
                    "no sign of life could be given, again in %.0f s: %s", RETRY_S, error
                )
                wait = RETRY_S

    def close(self, failed: bool) -> None:
        """Say how the script ended and send the rest of its output; may be called twice."""
        from determined.common.api.errors import APIException

        if not self._started:
            return
        self._started = False
        self._stop.set()
        if self._rank == 0 or failed:
            state = "STATE_ERROR" if failed else "STATE_COMPLETED"
            with contextlib.suppress(errors.AllocationEnded):
                try:
                    body = {"state": state, "trialRunId": self._run_id}
                    self._connection.patch(self._path, json=body)
                except APIException as error:
                    logger.error("the service does not know that the trial has ended: %s", error)
        self._logs.close()

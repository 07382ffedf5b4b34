"""Reports of a script outside of the cluster to its trial: signs of life, output, the end."""

from __future__ import annotations

import logging
import threading
import traceback

from determined import errors
from determined._info import ClusterInfo
from determined.common.wire.times import UNMANAGED_HEARTBEAT_S as HEARTBEAT_S
from determined.core._connection import Connection
from determined.core._log_shipper import LogShipper

logger = logging.getLogger("determined.core")

RETRY_S = 10.0


class UnmanagedScript:
    """Between :meth:`start` and :meth:`close` the script's trial counts as running.

    The process of rank 0 gives signs of life and reports how the script ended. Another process reports its
    end only if it failed, because its launcher may end rank 0 before rank 0 can report. Every process ships
    its output.
    """

    def __init__(self, connection: Connection, info: ClusterInfo, rank: int) -> None:
        self._connection = connection
        self._path = f"/api/v1/trials/{info.trial.trial_id}"
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
            try:
                self._connection.patch(self._path, json={}, max_retries=0)
            except errors.AllocationEnded as error:
                # The next report raises it where the training sees it.
                logger.error("%s", error)
                return
            except APIException as error:
                if wait == HEARTBEAT_S:
                    logger.warning(
                        "the service does not receive signs of life; sending goes on: %s", error
                    )
                wait = RETRY_S
            else:
                if wait == RETRY_S:
                    logger.info("the service receives signs of life again")
                wait = HEARTBEAT_S

    def note(self, error: BaseException) -> None:
        """Write ``error`` to the trial's log, with its traceback unless it is an exit."""
        if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
            return
        text = str(error)
        if not isinstance(error, SystemExit):
            text = "".join(traceback.format_exception(error))
        for line in text.splitlines():
            self._logs.add("stderr", line + "\n")

    def close(self, failed: bool) -> None:
        """Report how the script ended and send the rest of its output; may be called twice.

        Raises errors.AllocationEnded if the script ended well but another process had taken the trial over.
        """
        if not self._started:
            return
        self._started = False
        self._stop.set()
        try:
            if self._rank == 0 or failed:
                self._say("STATE_ERROR" if failed else "STATE_COMPLETED")
        except errors.AllocationEnded:
            if not failed:
                raise
        finally:
            self._logs.close()

    def _say(self, state: str) -> None:
        from determined.common.api.errors import APIException

        try:
            self._connection.patch(self._path, json={"state": state})
        except APIException as error:
            logger.error("the service could not be told that the trial has ended: %s", error)

"""Tells a script when the cluster wants its trial to stop and give its slots back."""

from __future__ import annotations

import enum
import logging
import threading
import time
from typing import Any

from determined.core._connection import Connection
from determined.core._distributed import DistributedContext

logger = logging.getLogger("determined.core")

# Seconds a poll may hang at the service, and the first answer may take.
_POLL = 60.0
_FIRST_ANSWER = 5.0
# Seconds between polls that were not held.
_PAUSE = 0.5


class PreemptMode(enum.Enum):
    """The workers that may call ``should_preempt()``, and how they get the answer.

    WorkersAskChief: all workers call in step, the chief's answer counts. ChiefOnly: only the chief may
    call. WorkersAskMaster: any worker, any time; workers may get different answers.
    """

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"
    WorkersAskMaster = "WORKERS_ASK_MASTER"


class Watcher:
    """Long-polls the service in a thread until the preemption signal comes."""

    def __init__(self, connection: Connection, allocation_id: str) -> None:
        self._connection = connection
        self._path = f"/api/v1/allocations/{allocation_id}/signals/preemption"
        self._answered = threading.Event()
        self._preempt = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="determined-preempt", daemon=True)
        self._thread.start()

    def signalled(self) -> bool:
        """True if the signal has come. Waits only until the service has answered once.

        Raises errors.AllocationEnded, or the error with which the service answered.
        """
        if not self._answered.wait(_FIRST_ANSWER):
            logger.warning("the service has not answered yet whether this trial is preempted")
        self._connection.check()
        if self._failure is not None:
            raise self._failure
        return self._preempt

    def _run(self) -> None:
        try:
            timeout = 0.0
            while not self._preempt and not self._connection.closed:
                answer = self._poll(timeout)
                if answer is not None:
                    self._preempt = bool(answer.get("preempt"))
                    self._answered.set()
                    timeout = _POLL
        except BaseException as error:
            if not self._connection.closed:
                self._failure = error
            self._answered.set()

    def _poll(self, timeout: float) -> dict[str, Any] | None:
        """One poll; None while the service is away."""
        from determined.common.api.errors import APIException

        began = time.monotonic()
        try:
            answer: dict[str, Any] = self._connection.get(
                self._path, params={"timeout_s": timeout}, timeout=timeout + 10
            )
        except APIException as error:
            if error.status_code is not None and error.status_code < 500:
                raise
            logger.debug("asking for the preemption signal failed: %s", error)
            time.sleep(_PAUSE)
            return None
        if timeout and not answer.get("preempt") and time.monotonic() - began < _PAUSE:
            # A service that does not hold the poll must not be asked in a hot loop.
            time.sleep(_PAUSE)
        return answer


class PreemptContext:
    """``should_preempt()``: ask often, between batches; checkpoint and exit when it says True.

    Asking costs no request: a thread, started by the first call, holds a long poll. The context must have
    been started: ``with core.init() as core_context`` does that, or ``core_context.start()``.
    """

    _started = False

    def __init__(
        self,
        connection: Connection,
        allocation_id: str,
        dist: DistributedContext,
        preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    ) -> None:
        self._connection = connection
        self._allocation_id = allocation_id
        self._dist = dist
        self._mode = PreemptMode(preempt_mode)
        self._watcher: Watcher | None = None
        self._acknowledged = False

    def start(self) -> PreemptContext:
        """Allow ``should_preempt()``, whose first call begins to watch; may be called twice."""
        self._started = True
        return self

    def close(self) -> None:
        """May be called twice; the thread ends with the connection."""

    def __enter__(self) -> PreemptContext:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _may_ask(self) -> bool:
        return self._dist.rank == 0 or self._mode == PreemptMode.WorkersAskMaster

    def _check_call(self) -> None:
        if not self._started:
            raise RuntimeError(
                "should_preempt() was called before the preempt context was started: write "
                "`with core.init() as core_context:`, or call core_context.start() first"
            )
        if self._mode == PreemptMode.ChiefOnly and self._dist.rank != 0:
            raise RuntimeError("in the mode ChiefOnly, only the chief may call should_preempt()")

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """True if the trial should save a checkpoint and exit soon.

        The answer True is acknowledged to the service (once) unless ``auto_ack`` is False. An exit after
        the acknowledgement means "preempted": the trial goes on later from its last checkpoint. An exit
        without it means that the trial is done. Raises errors.AllocationEnded, RuntimeError before
        :meth:`start` and from a worker in the mode ChiefOnly.
        """
        self._check_call()
        preempt = False
        if self._may_ask():
            if self._watcher is None:
                self._watcher = Watcher(self._connection, self._allocation_id)
            preempt = self._watcher.signalled()
        if self._mode == PreemptMode.WorkersAskChief:
            preempt = bool(self._dist.broadcast(preempt))
        if preempt and auto_ack and self._may_ask():
            self.acknowledge_preemption_signal()
        return preempt

    def acknowledge_preemption_signal(self) -> None:
        """Tell the service that the script will now exit because of the signal. Further calls do nothing."""
        if not self._acknowledged:
            self._connection.post(
                f"/api/v1/allocations/{self._allocation_id}/signals/ack_preemption", json={}
            )
            self._acknowledged = True


class DummyPreemptContext(PreemptContext):
    """Off-cluster nobody preempts."""

    def __init__(
        self,
        dist: DistributedContext,
        preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    ) -> None:
        self._dist = dist
        self._mode = PreemptMode(preempt_mode)

    def should_preempt(self, auto_ack: bool = True) -> bool:
        self._check_call()
        if self._mode == PreemptMode.WorkersAskChief:
            self._dist.broadcast(False)
        return False

    def acknowledge_preemption_signal(self) -> None:
        """Nobody to tell."""

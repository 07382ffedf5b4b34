"""A leg's side of the conversation with the service: running, logs, exit, in this order."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from determined.common.api import Session, errors
from determined.common.backoff import Backoff
from determined.common.wire import paths
from determined.common.wire.legs import LegSpec, LogOwner, Port, PortState, Started
from determined.common.wire.message import Message
from determined_tasks.exit_reason import LegResult
from determined_tasks.log_lines import ParsedLine
from determined_tasks.log_shipping import LegLogShipper

logger = logging.getLogger(__name__)

RETRY_SECONDS = (0.1, 5.0)


class LegReporter:
    """Reports one leg. Nothing here waits for the network except :meth:`finish`, and :meth:`start` after
    :meth:`begin`.

    Order of calls: :meth:`begin` at most once; :meth:`start` at most once, when the process runs;
    :meth:`put` and :meth:`say` any number of times; :meth:`finish` once. No thread is started before the
    first of ``begin``, ``start`` and ``finish``: forks come before. ``on_refused`` is called when the service
    refuses the start, because the allocation has ended or because its ports are not its own, in a thread or
    in ``start``.
    """

    def __init__(
        self,
        service: Session,
        spec: LegSpec,
        agent_id: str,
        spool: Path,
        on_refused: Callable[[errors.BadRequestException], None],
        start_id: str = "",
        machine: str | None = None,
    ) -> None:
        self._service = service
        self._start_id = start_id
        self._allocation_id = spec.allocation_id
        # One-node legs have no need to say where they run.
        is_gang = spec.nodes > 1
        self._agent_id = agent_id if is_gang else None
        self._node = spec.node if is_gang else None
        self._on_refused = on_refused
        self.owner: LogOwner = {
            "task_id": spec.task_id,
            "allocation_id": spec.allocation_id,
            "agent_id": agent_id,
        }
        if is_gang:
            self.owner["node"] = spec.node
        if machine:
            self.owner["machine"] = machine
        self._shipper = LegLogShipper(service, self.owner, spool)
        self._thread: threading.Thread | None = None

    @property
    def is_full(self) -> bool:
        """True if the service is away and no more output can be stored: then the process must wait."""
        return self._shipper.is_full

    def begin(self, started: Started | None = None) -> None:
        """Ship messages from now on; the process may start much later, or run already."""
        self._thread = threading.Thread(target=self._work, args=(started,), name="leg-reporter")
        self._thread.start()

    def start(
        self,
        service: Session,
        pid: int | None,
        ports: Sequence[Port] = (),
        address: str = "",
    ) -> None:
        """Reports the process as running, its ports at ``address``, and ships logs as they come.

        After :meth:`begin` it waits for the service, on a connection of the caller's own.
        """
        started = Started(
            pid,
            socket.gethostname(),
            self._agent_id,
            address,
            list(ports),
            self._node,
            self._start_id,
        )
        if self._thread is None:
            self.begin(started)
        else:
            self._post_start(started, service)

    def port(self, service: Session, state: PortState) -> bool:
        """Reports that a port can be reached (any more), on a connection of the caller's own; one try.

        Whether the service knows it now. Only after the process was reported as running.
        """
        path = paths.PORT.format(allocation_id=self._allocation_id)
        try:
            service.post(path, json=state.to_json())
        except errors.APIException as error:
            logger.info("%s: not sent yet, trying again: %s", path, error)
            return False
        return True

    def _work(self, started: Started | None) -> None:
        if started is not None:
            self._post_start(started)
        self._shipper.run()

    def _post_start(self, started: Started, service: Session | None = None) -> None:
        refusal = self._post(paths.RUNNING, started, service)
        if refusal is not None:
            self._on_refused(refusal)

    def put(self, line: ParsedLine, stdtype: str, time_s: float) -> None:
        """A line of the process's output."""
        self._shipper.put(
            line.log, time_s=time_s, stdtype=stdtype, level=line.level, rank=line.rank
        )

    def say(self, text: str, level: str) -> None:
        """A line of the agent's own, put into the task's log."""
        self._shipper.put(
            f"{text}\n", time_s=time.time(), stdtype="stderr", level=level, source="agent"
        )

    def finish(self, result: LegResult) -> None:
        """Ship the rest and report the exit; waits until the service has both."""
        if self._thread is None:
            self.begin()
        self._shipper.finish()
        assert self._thread is not None
        self._thread.join()
        report = replace(
            result.report, agent_id=self._agent_id, node=self._node, start_id=self._start_id
        )
        self._post(paths.EXIT, report)

    def _post(
        self, where: str, report: Message, service: Session | None = None
    ) -> errors.BadRequestException | None:
        """Sends until the service answers; the refusal, if it refuses the report."""
        path = where.format(allocation_id=self._allocation_id)
        backoff = Backoff(*RETRY_SECONDS)
        while True:
            try:
                (service or self._service).post(path, json=report.to_json())
                return None
            except errors.BadRequestException as error:
                logger.warning("[%d] %s: %s", os.getpid(), path, error)
                return error
            except errors.APIException as error:
                logger.info("%s: not sent yet, trying again: %s", path, error)
            time.sleep(backoff.next_delay())

"""Ships a container's log to the service: each line once and in order, whoever is killed meanwhile.

The engine keeps the log, so it is the buffer while the service is away. Before a batch is sent it is written
down, with the place in the log that it ends at: the next supervisor sends it again under its number, which
the service stores once, and goes on from there.
"""

from __future__ import annotations

import base64
import logging
import queue
import re
import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from determined.common.api import Session
from determined.common.wire.legs import LogLine, LogOwner
from determined_tasks.containers.frames import LogFrame
from determined_tasks.log_lines import LineSplitter, parse
from determined_tasks.log_shipping import deliver
from determined_tasks.supervision import write_private
from determined_tasks.why_ended import WhyEnded

logger = logging.getLogger(__name__)

BATCH_SECONDS = 0.25
BATCH_BYTES = 1 << 20
WAITING_FRAMES = 4096
PROGRESS_SECONDS = 0.5
_INIT = re.compile(rb"\[FATAL tini \(\d+\)\] exec (.{1,500} failed: .{1,200})$")


@dataclass
class ShippedUpTo:
    """The position up to which the log is shipped: batch ``seq`` of ``stream`` ends after ``frames`` frames,
    and ``held`` is the unfinished line of each stream."""

    stream: str = field(default_factory=lambda: str(uuid.uuid4()))
    seq: int = 0
    frames: int = 0
    held: dict[str, bytes] = field(default_factory=dict)
    lines: list[LogLine] = field(default_factory=list)

    def write(self, path: Path) -> None:
        held = {name: base64.b64encode(data).decode() for name, data in self.held.items()}
        write_private(path, orjson.dumps({**self.__dict__, "held": held}))

    @classmethod
    def read(cls, path: Path) -> ShippedUpTo:
        """The place, or the log's beginning."""
        try:
            found = orjson.loads(path.read_bytes())
        except (OSError, ValueError):
            return cls()
        held = {name: base64.b64decode(data) for name, data in found.pop("held").items()}
        return cls(held=held, **found)


class LogPump:
    """:meth:`start`; :meth:`join` after the container's end. ``why`` is complete after that."""

    def __init__(
        self,
        service: Session,
        owner: LogOwner,
        frames: Iterable[LogFrame],
        record: Path,
        workdir: str,
    ) -> None:
        self.why = WhyEnded(Path(workdir))
        self.init_error: str | None = None
        """The reason why the container's first process could not start the program."""
        self._service = service
        self._owner = owner
        self._frames = frames
        self._record = record
        self._waiting: queue.Queue[LogFrame | None] = queue.Queue(WAITING_FRAMES)
        self._splitters = {"stdout": LineSplitter(), "stderr": LineSplitter()}
        self._thread = threading.Thread(target=self._run, name="log-pump", daemon=True)

    def start(self) -> None:
        threading.Thread(target=self._read, name="log-reader", daemon=True).start()
        self._thread.start()

    def join(self, timeout: float | None = None) -> bool:
        """Waits until all is shipped; whether it is."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _read(self) -> None:
        try:
            for frame in self._frames:
                self._waiting.put(frame)
        except Exception:
            logger.exception("the log of the container cannot be read on")
        finally:
            self._waiting.put(None)

    def _run(self) -> None:
        place = ShippedUpTo.read(self._record)
        if place.lines and not self._send(place):
            return
        for _ in range(place.frames):
            frame = self._waiting.get()
            if frame is None:
                return
            self._cut(frame)
        for name, splitter in self._splitters.items():
            splitter.close()
            self._feed(name, splitter.feed(place.held.get(name, b"")))
        goes_on = True
        while goes_on:
            place.lines = []
            goes_on = self._gather(place)
            if not place.lines:
                continue
            place.seq += 1
            place.held = {name: splitter.held for name, splitter in self._splitters.items()}
            place.write(self._record)
            if not self._send(place):
                return

    def _gather(self, place: ShippedUpTo) -> bool:
        """Fills ``lines``, by time or size. False: this was the end of the log."""
        deadline: float | None = None
        size = 0
        while size < BATCH_BYTES:
            try:
                frame = self._waiting.get(timeout=self._patience(deadline))
            except queue.Empty:
                for name, splitter in self._splitters.items():
                    self._add(place, name, time.time(), splitter.flush_progress())
                if place.lines:
                    return True
                deadline = None
                continue
            if frame is None:
                for name, splitter in self._splitters.items():
                    self._add(place, name, time.time(), splitter.close())
                return False
            place.frames += 1
            size += len(frame.data)
            self._add(place, frame.stream, frame.time_s, self._cut(frame))
            if deadline is None:
                deadline = time.monotonic() + BATCH_SECONDS
        return True

    def _patience(self, deadline: float | None) -> float | None:
        if deadline is not None:
            return max(0.0, deadline - time.monotonic())
        is_progress = any(splitter.is_progress for splitter in self._splitters.values())
        return PROGRESS_SECONDS if is_progress else None

    def _cut(self, frame: LogFrame) -> list[bytes]:
        lines = self._splitters[frame.stream].feed(frame.data)
        self._feed(frame.stream, lines)
        return lines

    def _feed(self, stream: str, lines: list[bytes]) -> None:
        for line in lines:
            self.why.feed(parse(line), stream)
            if line.startswith(b"[FATAL tini") and (found := _INIT.match(line)):
                self.init_error = found[1].decode(errors="replace")

    def _add(self, place: ShippedUpTo, stream: str, time_s: float, lines: list[bytes]) -> None:
        for line in lines:
            parsed = parse(line)
            place.lines.append(
                {
                    "t": time_s,
                    "stdtype": stream,
                    "level": parsed.level,
                    "rank": parsed.rank,
                    "source": "task",
                    "log": parsed.log,
                }
            )

    def _send(self, place: ShippedUpTo) -> bool:
        """Sends until the service has the batch; False when it takes no logs of the allocation."""
        body: dict[str, Any] = {
            **self._owner,
            "stream": place.stream,
            "seq": place.seq,
            "lines": place.lines,
        }
        return deliver(self._service, body)

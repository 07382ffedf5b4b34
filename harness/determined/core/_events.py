"""Reported metrics as TensorBoard event files."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from determined.common import installation

logger = logging.getLogger("determined.core")

# Files are uploaded whole each time they have grown: none grows for ever.
MAX_BYTES = 1 << 20

_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def tag(group: str, name: str) -> str:
    """The name of a metric's chart: ``Determined/loss`` for training, ``Determined/val_loss`` for
    validation, ``<group>/loss`` for other groups.
    """
    if group == "training":
        return f"Determined/{name}"
    if group == "validation":
        return f"Determined/{name}" if name.startswith("val") else f"Determined/val_{name}"
    return f"{group}/{name}"


def scalar(value: Any) -> float | None:
    """A frozen metric as a number; None for texts, lists and dicts, which have no chart."""
    if type(value) is float:  # nearly all of them
        return value
    if isinstance(value, int | float):
        return float(value)
    return _SPECIAL.get(value) if isinstance(value, str) else None


class EventFiles:
    """Writes reports to event files in ``directory``, some time after they were made.

    The training loop calls :meth:`add`, which only queues. One thread at a time calls :meth:`write`, which
    does the work. Without the package tensorboard nothing is written. ``begin_after``: the number of steps
    after which the trial goes on; the charts drop later points that earlier legs wrote. ``second``: the
    earliest second since the epoch that the names of the files may have.
    """

    def __init__(self, directory: Path, begin_after: int | None = None, second: int = 0) -> None:
        self._directory = directory
        self._begin_after = begin_after
        self._second = max(second, int(time.time()))
        self._queue: deque[tuple[str, int, Mapping[str, Any], float]] = deque()
        self._file: BinaryIO | None = None
        self._count = 0
        self._unable = False
        # Most reports have the names of earlier ones: making an event anew costs three times as much.
        self._event = functools.lru_cache(maxsize=32)(_event)

    def add(self, group: str, steps: int, metrics: Mapping[str, Any]) -> None:
        """Queue frozen metrics, reported after ``steps`` steps."""
        if not self._unable:
            self._queue.append((group, steps, metrics, time.time()))

    def write(self) -> None:
        """Write the queued reports. If that fails, log it once and stop writing."""
        if not self._queue or self._unable:
            return
        try:
            self._write_all()
        except ImportError:
            logger.info(
                "metrics are not written for TensorBoard, because its package is not installed: %s",
                installation.command("tensorboard"),
            )
            self._give_up()
        except OSError as error:
            logger.warning("metrics are not written for TensorBoard any more: %s", error)
            self._give_up()

    def close(self) -> None:
        """Write the queued records and close the file."""
        self.write()
        self._close_file()

    def in_fork(self) -> EventFiles:
        """The files of a forked process. TensorBoard reads them after this one's first file, which says
        which earlier points to drop, whichever of both is made first.
        """
        return EventFiles(self._directory, second=self._second + 1)

    def _give_up(self) -> None:
        self._unable = True
        self._queue.clear()
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write_all(self) -> None:
        while self._queue:
            group, steps, metrics, at = self._queue.popleft()
            numbers = {name: scalar(value) for name, value in metrics.items()}
            if None in numbers.values():
                numbers = {name: number for name, number in numbers.items() if number is not None}
            if not numbers:
                continue
            event, values = self._event(group, *numbers)
            event.wall_time, event.step = at, steps
            for value, number in zip(values, numbers.values(), strict=True):
                value.simple_value = number
            file = self._open()
            file.write(record(event.SerializeToString()))
            if file.tell() > MAX_BYTES:
                self._close_file()
        if self._file is not None:
            self._file.flush()

    def _open(self) -> BinaryIO:
        if self._file is not None:
            return self._file
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._directory.mkdir(parents=True, exist_ok=True)
        self._file = self._create()
        version = Event(wall_time=time.time(), file_version="brain.Event:2")
        self._file.write(record(version.SerializeToString()))
        if self._begin_after is not None and self._count == 0:
            start = SessionLog(status=SessionLog.START)
            event = Event(wall_time=time.time(), step=self._begin_after + 1, session_log=start)
            self._file.write(record(event.SerializeToString()))
        self._count += 1
        return self._file

    def _create(self) -> BinaryIO:
        # TensorBoard reads a directory's files in the order of their names.
        second = self._second if self._count == 0 else max(self._second, int(time.time()))
        name = f"events.out.tfevents.{second:010d}.{socket.gethostname()}.{os.getpid()}"
        for number in itertools.count(self._count):
            # Another context of this process may have made one in this second.
            with contextlib.suppress(FileExistsError):
                return (self._directory / f"{name}.{number:06d}").open("xb")
        raise AssertionError("unreachable")


def _event(group: str, *names: str) -> tuple[Any, list[Any]]:
    """An event of the metrics ``names``, and the positions of their values, in the same order."""
    # Imported here, in the background: protobuf and what tensorboard brings take a third of a second.
    from tensorboard.compat.proto.event_pb2 import Event

    event = Event()
    return event, [event.summary.value.add(tag=tag(group, name)) for name in names]


def record(content: bytes) -> bytes:
    """``content`` as one record of an event file (TFRecord: length, checksum, content, checksum).

    tensorboard's own writer takes its checksums byte by byte in Python: 30 us a report, in a thread that
    shares the interpreter with the training.
    """
    import google_crc32c

    length = struct.pack("<Q", len(content))
    sums = google_crc32c.value(length), google_crc32c.value(content)
    return b"".join((length, _masked(sums[0]), content, _masked(sums[1])))


def _masked(crc: int) -> bytes:
    """Rotate a checksum, as the format wants it, because the content may contain checksums itself."""
    rotated = ((crc >> 15) | (crc << 17)) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)

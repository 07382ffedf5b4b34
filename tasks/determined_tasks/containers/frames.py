"""Reads a container's log from the engine: whole, in order, over the engine's restarts."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from determined_tasks.containers import engine

if TYPE_CHECKING:
    from docker.api.client import APIClient

_HEADER = struct.Struct(">BxxxL")
_NAMES = {1: "stdout", 2: "stderr"}
RETRY_SECONDS = 0.5
LARGEST = 16 << 10
MARK_NS = 1_000_000_000


@dataclass(frozen=True)
class LogFrame:
    """One record of the engine's log: a line, or a part of a long one.

    ``time_s``: seconds since the epoch; ``time_ns`` is the same without loss.
    """

    stream: str
    time_s: float
    data: bytes
    time_ns: int = field(default=0, compare=False)


def parse(chunks: Iterable[bytes]) -> Iterator[LogFrame]:
    """The frames in the engine's answer, which comes in ``chunks`` of any size, with timestamps.

    A frame that is cut off at the end is left out.
    """
    held = bytearray()
    for chunk in chunks:
        held += chunk
        start = 0
        while len(held) - start >= _HEADER.size:
            kind, size = _HEADER.unpack_from(held, start)
            end = start + _HEADER.size + size
            if len(held) < end:
                break
            stamp, _, data = bytes(held[start + _HEADER.size : end]).partition(b" ")
            start = end
            time_ns = _nanoseconds(stamp.decode())
            yield LogFrame(_NAMES.get(kind, "stdout"), time_ns / 1e9, data, time_ns)
        del held[:start]


def _nanoseconds(stamp: str) -> int:
    whole, _, fraction = stamp.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return seconds * 1_000_000_000 + int(fraction.ljust(9, "0")[:9] or 0)


def mend(frames: Iterable[LogFrame]) -> Iterator[LogFrame]:
    """The frames with the ends of long lines, which the engine's ``local`` log leaves out.

    It cuts lines at :data:`LARGEST` bytes, and what follows such a part without an end is the line's last
    part. A frame without an end that follows none is what an engine that was stopped had read of a line: the
    next engine (with live-restore) begins with the rest.
    """
    ended: dict[str, bool] = {}
    is_part: dict[str, bool] = {}
    for frame in frames:
        lacks_end = ended.get(frame.stream, False)
        has_end = frame.data.endswith(b"\n")
        is_long = len(frame.data) >= LARGEST
        ended[frame.stream] = is_part.get(frame.stream, False) and not (is_long or has_end)
        is_part[frame.stream] = is_long and not has_end
        yield replace(frame, data=b"\n" + frame.data) if lacks_end else frame


def follow(client: APIClient, container: str) -> Iterator[LogFrame]:
    """Every frame from the container's start to its end.

    After an interruption the log is read from its beginning again, and what was seen is skipped: the
    engine's own ``since`` goes by times, which two streams do not keep in order. Ends early when the
    container is gone.
    """
    import requests
    from docker.errors import NotFound
    from urllib3.exceptions import HTTPError

    seen = 0
    mark = _Mark()
    url = f"{client.base_url}/v{client.api_version}/containers/{container}/logs"
    while True:
        try:
            for number, frame in enumerate(_read(client, url, {"follow": "1"})):
                if number >= seen:
                    seen += 1
                    mark.note(frame)
                    yield frame
            found = engine.inspect(client, container)
            if found is None:
                return
            if not (found["State"]["Running"] or found["State"]["Restarting"]):
                # The engine ends its answer with the container, and may store the last frames after that.
                rest = list(_read(client, url, {"follow": "0", "since": mark.since}))
                yield from rest[mark.count :]
                return
        except NotFound:
            return
        except (requests.RequestException, HTTPError, engine.EngineUnavailable):
            pass
        time.sleep(RETRY_SECONDS)


class _Mark:
    """A moment of the log, and how many of the frames that were read are not older.

    What the engine has since then begins with these frames, in any order of the others' times.
    """

    def __init__(self) -> None:
        self._time_ns = 0
        self.count = 0

    @property
    def since(self) -> str:
        return f"{self._time_ns // 1_000_000_000}.{self._time_ns % 1_000_000_000:09d}"

    def note(self, frame: LogFrame) -> None:
        if frame.time_ns > self._time_ns + MARK_NS:
            self._time_ns, self.count = frame.time_ns, 0
        if frame.time_ns >= self._time_ns:
            self.count += 1


def _read(client: APIClient, url: str, params: dict[str, str]) -> Iterator[LogFrame]:
    params = {"stdout": "1", "stderr": "1", "timestamps": "1", **params}
    with client.get(url, params=params, stream=True, timeout=None) as response:
        client._raise_for_status(response)
        yield from parse(response.iter_content(None))

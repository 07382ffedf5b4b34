"""A container's log: cut into frames, and shipped exactly once despite interruptions."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from determined.common.api import Session, errors
from determined_tasks.containers import log_pump
from determined_tasks.containers.frames import LARGEST, LogFrame, mend, parse
from determined_tasks.containers.log_pump import LogPump, ShippedUpTo
from tests.waiting import TIMEOUT_S

STAMP = "2026-01-02T03:04:05.678901234Z"
SECONDS = 1767323045.678901


def raw(kind: int, data: bytes, stamp: str = STAMP) -> bytes:
    payload = f"{stamp} ".encode() + data
    return struct.pack(">BxxxL", kind, len(payload)) + payload


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_frames_come_in_chunks_of_any_size(size: int) -> None:
    whole = raw(1, b"a b\n") + raw(2, b"\xff\0") + raw(1, b"", "2026-01-02T03:04:05Z")
    chunks = [whole[at : at + size] for at in range(0, len(whole), size)]
    first, second, third = parse([*chunks, raw(1, b"cut off")[:-1]])
    assert first == LogFrame("stdout", pytest.approx(SECONDS), b"a b\n")
    assert (second.stream, second.data) == ("stderr", b"\xff\0")
    assert (third.time_s, third.data) == (1767323045.0, b"")


def test_the_ends_of_long_lines_are_mended() -> None:
    parts = [b"x" * LARGEST, b"rest", b"next\n", b"y" * LARGEST, b"", b"end\n", b"no end"]
    given = [LogFrame("stdout", 1.0, part) for part in parts]
    given.insert(2, LogFrame("stderr", 1.0, b"between\n"))
    text = b"".join(frame.data for frame in mend(given) if frame.stream == "stdout")
    assert text == b"%s\nnext\n%s\nend\nno end" % (b"x" * LARGEST + b"rest", b"y" * LARGEST)


def test_a_line_that_an_engine_left_unfinished_goes_on_in_the_next_one() -> None:
    parts = [b"112\n", b"113", b"\n", b"11", b"4\n", b"115\n"]
    text = b"".join(frame.data for frame in mend(LogFrame("stdout", 0.0, part) for part in parts))
    assert text == b"112\n113\n114\n115\n"


class Link(Session):
    """Stores each number of a stream once, as the service does. Ends the pump after ``limit`` requests."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, int], list[str]] = {}
        self.limit: int | None = None
        self.lose_answer = False

    def post(self, path: str, **kwargs: Any) -> None:
        body = kwargs["json"]
        if self.limit == 0 and not self.lose_answer:
            raise Killed
        key = (str(body["stream"]), int(str(body["seq"])))
        lines: list[dict[str, str]] = body["lines"]
        self.stored.setdefault(key, [line["log"] for line in lines])
        if self.limit == 0:
            raise Killed
        if self.limit is not None:
            self.limit -= 1

    @property
    def text(self) -> str:
        return "".join(line for lines in self.stored.values() for line in lines)


class Killed(BaseException):
    pass


def frames(count: int) -> Iterator[LogFrame]:
    for number in range(count):
        # A line comes in three parts, and the parts of two streams between each other.
        for part in (f"{number}", "-x", "\n"):
            yield LogFrame("stdout", 1.0, part.encode())
            yield LogFrame("stderr", 1.0, b"Traceback (most recent call last):\nValueError: 7\n")


def pump(link: Link, record: Path, source: Iterable[LogFrame]) -> LogPump:
    owner = log_pump.LogOwner(task_id="t", allocation_id="a", agent_id="g")
    return LogPump(link, owner, source, record, "/run/determined/workdir")


@pytest.mark.parametrize("lose_answer", [False, True])
@pytest.mark.parametrize("kills", [1, 2, 5])
def test_each_line_is_stored_once_whenever_the_supervisor_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int, lose_answer: bool
) -> None:
    monkeypatch.setattr(log_pump, "BATCH_BYTES", 100)
    link, record = Link(), tmp_path / "place.json"
    link.lose_answer = lose_answer
    for number in range(kills):
        link.limit = 3 + number
        shipping = pump(link, record, frames(40))
        for frame in frames(40):
            shipping._waiting.put(frame)
        with pytest.raises(Killed):
            shipping._run()
    link.limit = None
    last = pump(link, record, frames(40))
    last.start()
    assert last.join(TIMEOUT_S)
    lines = link.text.splitlines()
    assert [line for line in lines if line.endswith("-x")] == [f"{i}-x" for i in range(40)]
    assert lines.count("ValueError: 7") == 120
    assert last.why.text == "ValueError: 7"
    assert len({stream for stream, _ in link.stored}) == 1


def test_an_unreadable_record_is_the_logs_beginning(tmp_path: Path) -> None:
    record = tmp_path / "place.json"
    record.write_text("{")
    assert ShippedUpTo.read(record).frames == 0
    place = ShippedUpTo(seq=3, frames=7, held={"stdout": b"\xff"}, lines=[])
    place.write(record)
    assert ShippedUpTo.read(record) == place
    assert record.stat().st_mode & 0o777 == 0o600


def test_a_service_that_knows_nothing_of_the_allocation_ends_the_shipping(tmp_path: Path) -> None:
    class Refuses(Link):
        def post(self, path: str, **kwargs: Any) -> None:
            raise errors.NotFoundException("no such allocation")

    shipping = pump(Refuses(), tmp_path / "place.json", [LogFrame("stdout", 1.0, b"x\n")])
    shipping.start()
    assert shipping.join(TIMEOUT_S)

"""The processes that read checkpoint files for the service."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import uuid
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from determined import storage
from determined_service.base.refusals import (
    ApiError,
    Conflict,
    Forbidden,
    NotFound,
    Unavailable,
)
from determined_service.downloads import readers as module
from determined_service.downloads.readers import Broken, Readers, Reading
from determined_service.public import downloads
from tests.waiting import until_async

FILES = {"big.bin": os.urandom(3 << 20), "empty": b"", "sub/notes.txt": b"hello"}
SIZE = sum(map(len, FILES.values()))
ALICE, BOB = 1, 2


class Stored:
    """A checkpoint in a directory, and questions for it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.section = {"type": "shared_fs", "host_path": str(root)}
        self.manager = storage.build(self.section)
        self.uuid = str(uuid.uuid4())
        with self.manager.store(self.uuid) as staging:
            for path, data in FILES.items():
                (staging.path / path).parent.mkdir(exist_ok=True)
                (staging.path / path).write_bytes(data)
            (staging.path / "hollow").mkdir()
        self.manifest = self.manager.manifest(self.uuid)

    def question(self, form: str = "bytes", **more: Any) -> dict[str, Any]:
        found = {
            "uuid": self.uuid,
            "storage": self.section,
            "own": self.section,
            "resources": orjson.dumps(dict(self.manifest.resources)).decode(),
            "checksums": orjson.dumps(dict(self.manifest.checksums)).decode(),
            "executable": orjson.dumps(sorted(self.manifest.executable)).decode(),
            "format": form,
        }
        if form == "bytes":
            found |= {"path": None, "start": 0, "end": SIZE}
        return found | more


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


@pytest.fixture
async def readers() -> AsyncIterator[Readers]:
    found = Readers()
    yield found
    await found.close()


async def whole(reading: Reading) -> bytes:
    try:
        return b"".join([piece async for piece in reading.pieces()])
    finally:
        reading.close()


async def test_one_process_gives_bytes_and_archives(stored: Stored, readers: Readers) -> None:
    async def ask(form: str, **more: Any) -> bytes:
        return await whole(await readers.read(stored.question(form, **more), ALICE))

    every = b"".join(FILES.values())
    assert await ask("bytes") == every
    assert await ask("bytes", start=SIZE - 7, end=SIZE - 2) == every[-7:-2]
    assert await ask("bytes", path="sub/notes.txt", start=1, end=4) == b"ell"
    for form in ("tar", "tgz"):
        with tarfile.open(fileobj=io.BytesIO(await ask(form))) as tar:
            found = {one.name: tar.extractfile(one) for one in tar.getmembers()}
            assert found.pop("hollow") is None
            assert found.pop("sub") is None
            assert {name: file.read() for name, file in found.items() if file} == FILES
    with zipfile.ZipFile(io.BytesIO(await ask("zip"))) as packed:
        assert packed.testzip() is None
        assert {name: packed.read(name) for name in FILES} == FILES
        assert {"hollow/", "sub/"} == set(packed.namelist()) - FILES.keys()
    assert len(readers._idle) == 1


@pytest.mark.parametrize(
    ("more", "kind", "said"),
    [
        ({"uuid": str(uuid.uuid4())}, NotFound, "there is no checkpoint"),
        ({"resources": '{"../x": 5}'}, Conflict, "leads out"),
        ({"resources": '{"not/there": 5}', "end": 5}, Conflict, "missing"),
        ({"resources": '{"sub/notes.txt": 9}', "end": 9}, Conflict, "has 5 bytes"),
        ({"own": {"type": "shared_fs", "host_path": "/elsewhere"}}, Forbidden, "--mode direct"),
        ({"checksums": '{"empty": "md5:00"}', "format": "tar"}, Conflict, "md5"),
    ],
)
async def test_unreadable_files_are_named_before_anything_is_sent(
    stored: Stored, readers: Readers, more: dict[str, Any], kind: type[ApiError], said: str
) -> None:
    question = stored.question(**more)
    if "checksums" in more:
        question["resources"] = '{"empty": 0}'
    with pytest.raises(kind, match=said):
        await whole(await readers.read(question, ALICE))


async def test_an_archive_of_a_changed_file_does_not_end_well(
    stored: Stored, readers: Readers
) -> None:
    path = stored.root / stored.uuid / "big.bin"
    path.write_bytes(FILES["big.bin"][:-1] + b"?")
    for form in ("tar", "tgz", "zip"):
        with pytest.raises(Broken, match=r"big\.bin differs from the stored file"):
            await whole(await readers.read(stored.question(form), ALICE))


async def test_a_reader_that_is_killed(stored: Stored, readers: Readers) -> None:
    reading = await readers.read(stored.question(), ALICE)
    (process,) = readers._busy
    process.kill()
    with pytest.raises(Broken):
        await whole(reading)
    assert await whole(await readers.read(stored.question(), ALICE)) == b"".join(FILES.values())


async def test_a_limit_of_connections_at_once(
    stored: Stored, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OF_ONE_USER", 2)
    monkeypatch.setattr(module, "AT_ONCE", 3)
    monkeypatch.setattr(module, "WAIT_S", 0.05)
    running = [await readers.read(stored.question(), user) for user in (ALICE, ALICE, BOB)]
    for user, said in ((ALICE, "2 of them yours"), (BOB, "3 downloads")):
        with pytest.raises(Unavailable, match=said):
            await readers.read(stored.question(), user)
    # Bob's download ends; Bob may start another one, and Alice may not start a third.
    running.pop().close()
    with pytest.raises(Unavailable):
        await readers.read(stored.question(), ALICE)
    monkeypatch.setattr(module, "WAIT_S", 60.0)
    waiting = asyncio.create_task(readers.read(stored.question(), ALICE))
    running.pop().close()
    running.append(await waiting)
    for reading in running:
        reading.close()
    assert not readers._of_user


class Silent:
    """A client that takes nothing."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def send(self, message: Any) -> None:
        self.sent.append(message["type"])
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def receive(self) -> Any:
        await asyncio.Event().wait()


async def test_a_client_that_takes_nothing_is_left(
    stored: Stored, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "SLOW_S", 0.05)
    client = Silent()
    reading = await readers.read(stored.question(), ALICE)
    scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
    await downloads._Stream(reading)(scope, client.receive, client.send)
    # Without the empty piece that ends an answer: the server closes the connection.
    assert client.sent == ["http.response.start", "http.response.body"]
    assert not readers._of_user


async def test_the_end_of_the_service_breaks_downloads_off(
    stored: Stored, readers: Readers
) -> None:
    reading = await readers.read(stored.question(), ALICE)
    process = next(iter(readers._busy))
    readers.end()
    with pytest.raises(Broken):
        await whole(reading)
    await until_async("the process gone", lambda: process.returncode is not None)
    with pytest.raises(Unavailable):
        await readers.read(stored.question(), ALICE)

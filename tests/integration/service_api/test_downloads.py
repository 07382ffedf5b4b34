"""Checkpoint files through the service."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from asgi_lifespan import LifespanManager

from determined import errors, storage
from determined.common.api import transport
from determined.experimental import Determined
from determined.experimental.client import DownloadMode
from determined.storage.base import Manifest
from determined_registry.database.tables import checkpoints
from determined_service.app import create_app
from determined_service.base.settings import Settings
from tests.integration.conftest import client_of, serve
from tests.integration.service_api.world import Leg, World
from tests.object_servers import free_port, moto, s3_section
from tests.waiting import TIMEOUT_S, until

SEARCHER = {"name": "single", "metric": "loss", "smaller_is_better": True}
FILES = {
    "model/weights.bin": os.urandom(2 << 20),
    "model/empty": b"",
    "notes ü.txt": b"hello",
    "metadata.json": b'{"steps_completed": 1}',
}
WHOLE = b"".join(data for _, data in sorted(FILES.items()))


def store(section: dict[str, Any], name: str, contents: dict[str, bytes]) -> Manifest:
    with storage.build(section).store(name) as staging:
        for path, data in contents.items():
            (staging.path / path).parent.mkdir(exist_ok=True)
            (staging.path / path).write_bytes(data)
            if path.endswith(".sh"):
                (staging.path / path).chmod(0o750)
    assert staging.manifest is not None
    return staging.manifest


async def report(
    leg: Leg, section: dict[str, Any], contents: dict[str, bytes] | None = None, **more: Any
) -> str:
    """Stores a checkpoint where ``section`` says and reports it."""
    name = str(uuid.uuid4())
    manifest = await asyncio.to_thread(store, section, name, contents or FILES)
    body = {
        "uuid": name,
        "taskId": leg.task_id,
        "allocationId": leg.allocation_id,
        "resources": dict(manifest.resources),
        "checksums": dict(manifest.checksums),
        "executable": sorted(manifest.executable),
        "metadata": {"steps_completed": 1},
        "state": "STATE_COMPLETED",
        **more,
    }
    answer = await leg.client.post("/api/v1/checkpoints", json=body)
    assert answer.status_code == 200, answer.text
    return name


@pytest.fixture
def section(settings: Settings) -> dict[str, Any]:
    """The cluster's own storage."""
    found = settings.default_checkpoint_storage
    assert found is not None
    Path(found["host_path"]).mkdir()
    return found


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, Any]:
    """A storage that the administrator has not named."""
    (tmp_path / "private").mkdir()
    (tmp_path / "secret").write_text("not yours")
    return {"type": "shared_fs", "host_path": str(tmp_path / "private")}


def stored_before(
    settings: Settings, section: dict[str, Any], contents: dict[str, bytes] | None = None
) -> str:
    """A checkpoint that the service of these settings knows when it starts."""

    async def prepare() -> str:
        app = create_app(settings)
        async with LifespanManager(app, startup_timeout=TIMEOUT_S, shutdown_timeout=TIMEOUT_S):
            world = World(app)
            try:
                return await report(await leg_in(world, section), section, contents)
            finally:
                for client in world.clients:
                    await client.aclose()

    return asyncio.run(prepare())


async def leg_in(world: World, section: dict[str, Any]) -> Leg:
    return await world.leg(config={"searcher": SEARCHER, "checkpoint_storage": section})


async def test_archives(world: World, user: httpx.AsyncClient, section: dict[str, Any]) -> None:
    name = await report(await leg_in(world, section), section)

    async def get(accept: str) -> httpx.Response:
        return await user.get(f"/checkpoints/{name}", headers={"Accept": accept})

    for accept in ("application/gzip", "*/*", "text/html,*/*;q=0.8", "application/x-tar"):
        answer = await get(accept)
        assert answer.status_code == 200, answer.text
        # A stream as the published client reads it.
        kind = "r|" if accept == "application/x-tar" else "r|gz"
        with tarfile.open(fileobj=io.BytesIO(answer.content), mode=kind) as tar:
            found = {one.name: tar.extractfile(one) for one in tar}
            assert found.keys() == {*FILES, "model"}
    zipped = await get("application/zip")
    assert zipped.headers["Content-Type"] == "application/zip"
    assert f"{name}.zip" in zipped.headers["Content-Disposition"]
    with zipfile.ZipFile(io.BytesIO(zipped.content)) as archive:
        assert {path: archive.read(path) for path in FILES} == FILES
    refused = await get("image/png")
    assert refused.status_code == 406
    assert "application/zip" in refused.json()["message"]


async def test_files_and_ranges_of_them(
    world: World, user: httpx.AsyncClient, section: dict[str, Any]
) -> None:
    name = await report(await leg_in(world, section), section)
    base = f"/api/v1/checkpoints/{name}"
    listing = (await user.get(f"{base}/files")).json()
    assert listing["size"] == str(len(WHOLE))
    assert [one["path"] for one in listing["files"]] == sorted(FILES)
    assert listing["directories"] == ["model/"]
    for one in listing["files"]:
        start, size = int(one["offset"]), int(one["size"])
        assert WHOLE[start : start + size] == FILES[one["path"]]
        assert one["checksum"].startswith("sha256:")
    answer = await user.get(f"{base}/contents")
    assert answer.status_code == 200
    assert answer.content == WHOLE
    etag = answer.headers["ETag"]
    assert etag == f'"{listing["version"]}"'
    asked = {"Range": "bytes=100-", "If-Range": etag}
    part = await user.get(f"{base}/contents", headers=asked)
    assert part.status_code == 206
    assert part.content == WHOLE[100:]
    assert part.headers["Content-Range"] == f"bytes 100-{len(WHOLE) - 1}/{len(WHOLE)}"
    # Of another list of files: everything.
    other = await user.get(f"{base}/contents", headers=asked | {"If-Range": '"old"'})
    assert (other.status_code, other.content) == (200, WHOLE)
    beyond = await user.get(f"{base}/contents", headers={"Range": f"bytes={len(WHOLE)}-"})
    assert beyond.status_code == 416
    assert beyond.headers["Content-Range"] == f"bytes */{len(WHOLE)}"
    for path, data in FILES.items():
        assert (await user.get(f"{base}/files/{path}")).content == data
    one = await user.get(f"{base}/files/notes ü.txt", headers={"Range": "bytes=-2"})
    assert (one.status_code, one.content) == (206, b"lo")
    assert one.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in one.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    "path", ["../x", "%2e%2e/%2e%2e/x", "model", "model/", "/etc/hostname", "nothing"]
)
async def test_only_the_checkpoints_own_files(
    world: World, user: httpx.AsyncClient, section: dict[str, Any], path: str
) -> None:
    name = await report(await leg_in(world, section), section)
    answer = await user.get(f"/api/v1/checkpoints/{name}/files/{path}")
    assert answer.status_code in (404, 405), answer.text


ADDRESSES = ("/checkpoints/{}", "/api/v1/checkpoints/{}/contents", "/api/v1/checkpoints/{}/files")


async def statuses(client: httpx.AsyncClient, name: str) -> dict[int, str]:
    answers = [await client.get(address.format(name)) for address in ADDRESSES]
    return {answer.status_code: answer.json()["message"] for answer in answers}


async def test_missing_things_are_reported(
    world: World, user: httpx.AsyncClient, anonymous: httpx.AsyncClient, section: dict[str, Any]
) -> None:
    leg = await leg_in(world, section)
    name = await report(leg, section)
    assert (await statuses(anonymous, name)).keys() == {401}
    assert (await statuses(user, str(uuid.uuid4()))).keys() == {404}
    assert (await statuses(user, "no-uuid")).keys() <= {400, 404}

    async def becomes(**values: Any) -> dict[int, str]:
        async with world.db.tx() as conn:
            where = checkpoints.c.uuid == uuid.UUID(name)
            await conn.execute(sa.update(checkpoints).where(where).values(**values))
        return await statuses(user, name)

    ((status, said),) = (await becomes(state="ERROR", reason="a file is short")).items()
    assert status == 409
    assert "is ERROR: a file is short" in said
    ((status, said),) = (await becomes(state="DELETED")).items()
    assert status == 404
    assert "was deleted" in said
    left = {"metadata.json": len(FILES["metadata.json"])}
    async with world.db.tx() as conn:
        where = checkpoints.c.uuid == uuid.UUID(name)
        await conn.execute(
            sa.update(checkpoints)
            .where(where)
            .values(state="PARTIALLY_DELETED", resources=left, reason=None)
        )
    answer = await user.get(f"/api/v1/checkpoints/{name}/contents")
    assert answer.content == FILES["metadata.json"]


async def test_being_deleted(
    world: World, user: httpx.AsyncClient, section: dict[str, Any]
) -> None:
    name = await report(await leg_in(world, section), section)
    body = {"checkpointUuids": [name]}
    gone = await user.request("DELETE", "/api/v1/checkpoints", json=body)
    assert gone.status_code == 200, gone.text
    ((status, said),) = (await statuses(user, name)).items()
    assert (status, "being deleted" in said) == (409, True)


async def test_removed_files(
    world: World, user: httpx.AsyncClient, section: dict[str, Any]
) -> None:
    name = await report(await leg_in(world, section), section)
    folder = Path(section["host_path"]) / name
    folder.rename(folder.with_name("elsewhere"))
    answers = {(await user.get(address.format(name))).status_code for address in ADDRESSES[:2]}
    assert answers == {404}


async def test_no_files_but_those_in_the_clusters_storage(
    world: World,
    user: httpx.AsyncClient,
    section: dict[str, Any],
    elsewhere: dict[str, Any],
    tmp_path: Path,
) -> None:
    """A user names any directory in a configuration, and reports any names of files."""
    for leg, more in (
        (await leg_in(world, elsewhere), {}),
        (await leg_in(world, section), {"storage": elsewhere}),
    ):
        name = await report(leg, elsewhere, **more)
        ((status, said),) = (await statuses(user, name)).items()
        assert status == 403
        assert "--mode direct" in said
    # Names that lead out (an earlier release stored them), and links, within the cluster's storage.
    leg = await leg_in(world, section)
    for resources, link in (
        ({"../../secret": 9}, None),
        ({"linked": 9}, tmp_path / "secret"),
    ):
        name = await report(leg, section)
        async with world.db.tx() as conn:
            where = checkpoints.c.uuid == uuid.UUID(name)
            given = {"resources": resources, "checksums": {}}
            await conn.execute(sa.update(checkpoints).where(where).values(**given))
        if link is not None:
            (Path(section["host_path"]) / name / "linked").symlink_to(link)
        for address in ADDRESSES[:2]:
            answer = await user.get(address.format(name))
            assert answer.status_code == 409, answer.text
            assert b"not yours" not in answer.content


async def test_in_s3(world: World, user: httpx.AsyncClient, tmp_path: Path) -> None:
    with moto(tmp_path) as server:
        own = s3_section(server, prefix="checkpoints", pack_small_files=True)
        other = s3_section(server)
        world.app.state.settings.default_checkpoint_storage = own
        leg = await leg_in(world, own)
        name = await report(leg, own)
        answer = await user.get(f"/api/v1/checkpoints/{name}/contents")
        assert answer.content == WHOLE
        packed = await user.get(f"/checkpoints/{name}", headers={"Accept": "application/zip"})
        with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
            assert {path: archive.read(path) for path in FILES} == FILES
        # The service does not contact a server that a user names, with any keys.
        private = await report(leg, other, storage=other | {"endpoint_url": server.url + "/"})
        ((status, said),) = (await statuses(user, private)).items()
        assert status == 403
        assert "--mode direct" in said
        # The owner's keys are used only for callers who may see them.
        theirs = {**own, "access_key": "alices", "secret_key": "alices"}
        name = await report(await leg_in(world, theirs), own)
        async with client_of(world.app, None) as stranger:
            await log_in_as_stranger(stranger, world)
            ((status, said),) = (await statuses(stranger, name)).items()
        assert status == 403
        assert "its owner and administrators" in said


async def log_in_as_stranger(client: httpx.AsyncClient, world: World) -> None:
    async with client_of(world.app, None) as admin:
        given = {"username": "admin", "password": "", "isHashed": True}
        token = (await admin.post("/api/v1/auth/login", json=given)).json()["token"]
        admin.headers["Authorization"] = f"Bearer {token}"
        body = {"user": {"username": "stranger", "active": True}, "password": "", "isHashed": True}
        assert (await admin.post("/api/v1/users", json=body)).status_code == 200
    login = {"username": "stranger", "password": "", "isHashed": True}
    token = (await client.post("/api/v1/auth/login", json=login)).json()["token"]
    client.headers["Authorization"] = f"Bearer {token}"


def test_a_damaged_file_breaks_the_archive_off(
    settings: Settings, section: dict[str, Any], tmp_path: Path
) -> None:
    name = stored_before(settings, section)
    path = Path(section["host_path"]) / name / "model" / "weights.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with serve(create_app(settings)) as url:
        client = Determined(url, "determined", "")
        headers = {"Authorization": f"Bearer {client._session.token}"}
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            httpx.get(f"{url}/checkpoints/{name}", headers=headers)
        with pytest.raises(errors.CheckpointCorrupted, match=r"weights\.bin"):
            client.get_checkpoint(name).download(str(tmp_path / "out"), DownloadMode.MASTER)


def test_programs_stay_executable(
    settings: Settings, section: dict[str, Any], tmp_path: Path
) -> None:
    programs = {"serve.sh", "tools/convert.sh"}
    files = dict.fromkeys((*programs, "weights.bin"), b"#!/bin/sh\n")
    name = stored_before(settings, section, files)
    with serve(create_app(settings)) as url:
        client = Determined(url, "determined", "")
        headers = {"Authorization": f"Bearer {client._session.token}"}

        def get(path: str, accept: str = "*/*") -> httpx.Response:
            answer = httpx.get(url + path, headers=headers | {"Accept": accept})
            assert answer.status_code == 200, answer.text
            return answer

        checkpoint = get(f"/api/v1/checkpoints/{name}").json()["checkpoint"]
        assert checkpoint["executable"] == sorted(programs)
        listed = get(f"/api/v1/checkpoints/{name}/files").json()["files"]
        assert {one["path"] for one in listed if one["executable"]} == programs
        content = io.BytesIO(get(f"/checkpoints/{name}").content)
        with tarfile.open(fileobj=content) as tar:
            modes = {one.name: one.mode for one in tar if one.isfile()}
        assert modes == dict.fromkeys(programs, 0o755) | {"weights.bin": 0o644}
        content = io.BytesIO(get(f"/checkpoints/{name}", "application/zip").content)
        with zipfile.ZipFile(content) as archive:
            modes = {one.filename: one.external_attr >> 16 for one in archive.infolist()}
        assert {path for path, mode in modes.items() if mode == 0o100755} == programs
        for mode in (DownloadMode.MASTER, DownloadMode.DIRECT):
            target = tmp_path / mode.name
            client.get_checkpoint(name).download(str(target), mode)
            found = {
                path.relative_to(target).as_posix()
                for path in target.rglob("*")
                if path.is_file() and os.access(path, os.X_OK)
            }
            assert found == programs


async def test_executable_files_belong_to_the_checkpoint(world: World) -> None:
    leg = await world.leg()
    body = {"uuid": str(uuid.uuid4()), "resources": {"a": 1, "b/": 0}}
    for given in (["../a"], ["b/"], ["a", 7], {"a": True}):
        answer = await leg.client.post("/api/v1/checkpoints", json=body | {"executable": given})
        assert answer.status_code == 400
        assert "executable" in answer.json()["message"]


class Process:
    """The service as a separate process, which can be killed and started again."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        config = settings.model_dump(mode="json") | {"port": self.port, "agent_token": "x"}
        self._file = folder / "service.json"
        self._file.write_text(json.dumps(config))
        self._log = folder / "service.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "determined_service"]
        env = os.environ | {"DET_SERVICE_CONFIG": str(self._file)}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        until("the service up", self._is_up, show=self._log.read_text)

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        try:
            return httpx.get(f"{self.url}/ready").status_code == 200
        except httpx.TransportError:
            return False

    def stop(self, how: int = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(TIMEOUT_S)


LARGE = {f"part-{number}.bin": os.urandom(12 << 20) for number in range(3)}
DOWNLOAD = """
import os, signal, sys
from determined.common.api import transport
from determined.experimental import Determined
from determined.experimental.client import DownloadMode

url, name, target, limit = *sys.argv[1:4], int(sys.argv[4])
read, seen = transport.Response.iter_bytes, 0

def counted(self):
    global seen
    for chunk in read(self):
        seen += len(chunk) if self.status_code == 206 else 0
        if limit and seen > limit:
            os.kill(os.getpid(), signal.SIGKILL)
        yield chunk

transport.Response.iter_bytes = counted
client = Determined(url, "determined", "")
client.get_checkpoint(name).download(target, DownloadMode.MASTER)
print(seen)
"""


@pytest.fixture
def process(settings: Settings, tmp_path: Path) -> Iterator[Process]:
    """Not started yet."""
    found = Process(settings, tmp_path)
    yield found
    found.stop()


def test_a_download_survives_the_service_and_the_client(
    settings: Settings,
    section: dict[str, Any],
    process: Process,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client is killed, the next one finds the service killed, then stopped, in the middle."""
    large = stored_before(settings, section, LARGE)
    process.start()
    target = tmp_path / "out"
    command = [sys.executable, "-c", DOWNLOAD, process.url, large, str(target)]
    killed = subprocess.run([*command, str(5 << 20)], capture_output=True, timeout=TIMEOUT_S)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (left,) = tmp_path.glob(".out-*.part")
    here = sum(path.stat().st_size for path in (left / "files").iterdir())
    assert 0 < here < 6 << 20
    assert not target.exists()

    steps = [(8 << 20, signal.SIGKILL), (16 << 20, signal.SIGTERM)]
    read = transport.Response.iter_bytes
    seen = 0

    def restarting(self: transport.Response) -> Iterator[bytes]:
        nonlocal seen
        for chunk in read(self):
            seen += len(chunk) if self.status_code == 206 else 0
            if steps and seen > steps[0][0]:
                process.stop(steps.pop(0)[1])
                process.start()
            yield chunk

    monkeypatch.setattr(transport.Response, "iter_bytes", restarting)
    client = Determined(process.url, "determined", "")
    client.get_checkpoint(large).download(str(target), DownloadMode.MASTER)
    assert steps == []
    assert {path: (target / path).read_bytes() for path in LARGE} == LARGE
    assert seen == sum(map(len, LARGE.values())) - here, "nothing was sent twice"
    assert list(tmp_path.glob(".out-*")) == []
    again = subprocess.run([*command, "0"], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert again.stdout.split()[-1] == "0", again.stderr

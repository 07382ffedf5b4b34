"""Object storages that break, return wrong data or are missing."""

from __future__ import annotations

import base64
import os
import re
import signal
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError, EndpointConnectionError

from determined import errors, storage
from determined.common import installation
from determined.storage import contents, files, s3, sending
from determined.storage.blobs import BlobClient
from determined.storage.objects import ObjectStorageManager
from determined.storage.s3 import S3Client, S3StorageManager
from tests.object_servers import KEYS, Server, moto, s3_client, s3_section
from tests.waiting import TIMEOUT_S


@pytest.fixture
def manager(s3_blobs: BlobClient, tmp_path: Path) -> ObjectStorageManager:
    return ObjectStorageManager(s3_blobs, tmp_path.name)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests use parts of as many kilobytes as there are gigabytes in real use."""
    monkeypatch.setattr(contents, "PART_BYTES", 10_000)
    monkeypatch.setattr(sending, "LARGE_BYTES", 10_000)


def listed(manager: ObjectStorageManager) -> list[str]:
    return sorted(manager.blobs.sizes(manager._prefix))


@pytest.mark.parametrize("bytes_", [s3.PART_BYTES - 1, s3.PART_BYTES, 2 * s3.PART_BYTES + 7])
def test_files_around_the_size_of_a_part(
    manager: ObjectStorageManager, tmp_path: Path, bytes_: int
) -> None:
    content = os.urandom(1 << 20) * 40
    with manager.store("big") as staging:
        (staging.path / "w").write_bytes(content[:bytes_])
    manager.verify("big")
    assert manager.download("big", tmp_path / "copy") == {"w": bytes_}
    assert (tmp_path / "copy" / "w").read_bytes() == content[:bytes_]
    manager.delete("big")
    assert listed(manager) == []


def test_a_file_is_hashed_once(
    manager: ObjectStorageManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same digests sign the parts and make the checksum."""

    def refuse(*_: Any) -> str:
        raise AssertionError("hashed once more")

    source = tmp_path / "source"
    source.mkdir()
    expected = {}
    for name, size in {"parts": 2 * s3.PART_BYTES + 7, "one": sending.LARGE_BYTES + 7}.items():
        (source / name).write_bytes(os.urandom(1 << 20) * (size >> 20) + bytes(7))
        expected[name] = files.checksum(source / name)
    with monkeypatch.context() as patch:
        patch.setattr(files, "checksum", refuse)
        assert manager.upload(source, "hashed").checksums == expected
    # More bytes than fit into the greatest number of parts; then a server that does not ask for digests.
    with monkeypatch.context() as patch:
        patch.setattr(s3, "MOST_PARTS", 2)
        assert manager.upload(source, "longer parts").checksums == expected
    assert isinstance(manager.blobs, S3Client)
    events = manager.blobs._client.meta.events
    hide = _without_digest(manager.blobs)
    events.register_last("before-send.s3", hide)
    try:
        assert manager.upload(source, "no digests").checksums == expected
    finally:
        events.unregister("before-send.s3", hide)
    for name in ("hashed", "longer parts", "no digests"):
        manager.verify(name)


def _without_digest(blobs: S3Client) -> Any:
    def hide(**_: Any) -> None:
        blobs._note_digest(AWSRequest(headers={}))

    return hide


def test_parts_that_fail_leave_nothing(
    manager: ObjectStorageManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(manager.blobs, S3Client)
    client, bucket = manager.blobs._client, manager.blobs._bucket
    real = client.upload_part
    monkeypatch.setattr(manager.blobs, "_patience", (0.0,))
    failures = [2, 2]

    def upload_part(**given: Any) -> Any:
        if failures and given["PartNumber"] == failures[0]:
            failures.pop()
            raise EndpointConnectionError(endpoint_url="on purpose")
        return real(**given)

    monkeypatch.setattr(client, "upload_part", upload_part)
    (tmp_path / "w").write_bytes(bytes(2 * s3.PART_BYTES + 7))
    with pytest.raises(errors.StorageError, match=r"cannot write s3://.*/w: .*on purpose"):
        manager.upload(tmp_path, "failed")
    assert listed(manager) == []
    prefix = manager._prefix
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket, Prefix=prefix)
    # One error does not fail the upload, and costs one part.
    failures.append(2)
    manager.upload(tmp_path, "worked")
    manager.verify("worked")


def test_an_upload_in_parts_that_the_server_has_forgotten_begins_anew(
    manager: ObjectStorageManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(manager.blobs, S3Client)
    client = manager.blobs._client
    real = client.complete_multipart_upload
    seen: list[str] = []

    def complete(**given: Any) -> Any:
        seen.append(given["UploadId"])
        if len(seen) == 1:
            # moto answers an unknown request with an error of its own.
            answer: Any = {"Error": {"Code": "NoSuchUpload", "Message": "on purpose"}}
            raise ClientError(answer, "CompleteMultipartUpload")
        return real(**given)

    monkeypatch.setattr(client, "complete_multipart_upload", complete)
    (tmp_path / "w").write_bytes(bytes(s3.PART_BYTES + 7))
    manager.upload(tmp_path, "forgotten")
    manager.verify("forgotten")
    assert len(set(seen)) == 2


def test_the_server_keeps_a_checksum(manager: ObjectStorageManager, tmp_path: Path) -> None:
    assert isinstance(manager.blobs, S3Client)
    content = os.urandom(1 << 20) * 17
    (tmp_path / "w").write_bytes(content)
    manager.upload(tmp_path, "kept")
    found = manager.blobs._client.head_object(
        Bucket=manager.blobs._bucket, Key=f"{manager._prefix}kept/w", ChecksumMode="ENABLED"
    )
    parts = [content[: s3.PART_BYTES], content[s3.PART_BYTES :]]
    crc = zlib.crc32(b"".join(zlib.crc32(part).to_bytes(4) for part in parts))
    # AWS appends the number of parts.
    assert found["ChecksumCRC32"].partition("-")[0] == base64.b64encode(crc.to_bytes(4)).decode()


@pytest.mark.parametrize("refused", ["CreateMultipartUpload", "CompleteMultipartUpload"])
def test_a_server_that_knows_no_checksums(s3_server: Server, tmp_path: Path, refused: str) -> None:
    """Such servers answer an element or a header that they do not know with an error."""
    manager = S3StorageManager.from_config(s3_section(s3_server) | {"prefix": tmp_path.name})
    assert isinstance(manager.blobs, S3Client)
    asked: list[bool] = []

    def refuse(params: dict[str, Any], **_: Any) -> Any:
        sent = str(params["headers"]) + str(params["body"])
        asked.append("crc32" in sent.lower())
        if asked[-1]:
            answer = {"Error": {"Code": "NotImplemented", "Message": "on purpose"}}
            return SimpleNamespace(status_code=501), answer | {
                "ResponseMetadata": {"HTTPStatusCode": 501}
            }
        return None

    manager.blobs._client.meta.events.register(f"before-call.s3.{refused}", refuse)
    (tmp_path / "w").write_bytes(bytes(s3.PART_BYTES + 7))
    for name in ("first", "second"):
        manager.upload(tmp_path, name)
        manager.verify(name)
    assert asked == [True, False, False]
    where = {"Bucket": manager.blobs._bucket, "Prefix": manager._prefix}
    assert "Uploads" not in manager.blobs._client.list_multipart_uploads(**where)


def test_many_parts(manager: ObjectStorageManager, tmp_path: Path, small_parts: None) -> None:
    content = os.urandom(123_456)
    with manager.store("parts") as staging:
        (staging.path / "w").write_bytes(content)
    manager.verify("parts")
    with manager.restore_path("parts") as path:
        assert (path / "w").read_bytes() == content
    manager.blobs.put(manager._folder("parts") + "w", content[:-1] + b"!")
    with pytest.raises(errors.CheckpointCorrupted, match="contents have changed"):
        manager.download("parts", tmp_path / "copy")
    assert not (tmp_path / "copy" / "w").exists()


class BreaksOff:
    """The body of an answer that ends with an error after some bytes, the first ``times`` times."""

    def __init__(self, body: Any, times: list[int]) -> None:
        self._body = body
        self._times = times

    def iter_chunks(self, size: int) -> Any:
        if not self._times:
            yield from self._body.iter_chunks(size)
            return
        yield self._body.read(self._times.pop())
        raise ConnectionResetError("on purpose")

    def close(self) -> None:
        self._body.close()


def test_a_download_goes_on_where_the_connection_broke(
    manager: ObjectStorageManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager.blobs, "_patience", (0.0, 0.0))
    content = os.urandom(50_000)
    with manager.store("broken") as staging:
        (staging.path / "w").write_bytes(content)
    assert isinstance(manager.blobs, S3Client)
    real = manager.blobs._client.get_object
    asked: list[Any] = []
    times: list[int] = []

    def get_object(**request: Any) -> Any:
        asked.append(request.get("Range"))
        answer = real(**request)
        if request["Key"].endswith("/w"):
            answer["Body"] = BreaksOff(answer["Body"], times)
        return answer

    monkeypatch.setattr(manager.blobs._client, "get_object", get_object)
    times += [10_000, 3_000]
    manager.download("broken", tmp_path / "copy")
    assert (tmp_path / "copy" / "w").read_bytes() == content
    assert asked[1:] == ["bytes=0-49999", "bytes=3000-49999", "bytes=13000-49999"]
    times += [1] * 3
    with pytest.raises(errors.StorageError, match=r"cannot read s3://.*/w: on purpose"):
        manager.verify("broken")


def test_checkpoints_of_another_tool(manager: ObjectStorageManager, tmp_path: Path) -> None:
    folder = manager._folder("old")
    for path, content in {"": b"", "sub/": b"", "sub/w": b"123", "deep/er/x": b""}.items():
        manager.blobs.put(folder + path, content)
    resources = {"sub/": 0, "sub/w": 3, "deep/": 0, "deep/er/": 0, "deep/er/x": 0}
    assert manager.manifest("old") == storage.Manifest(resources, {})
    manager.verify("old")
    manager.download("old", tmp_path / "copy")
    assert (tmp_path / "copy" / "sub" / "w").read_text() == "123"
    assert manager.delete("old", ["deep"]) == {"sub/": 0, "sub/w": 3}
    # A name that leads out of the directory.
    manager.blobs.put(manager._folder("evil") + "../../out", b"x")
    with pytest.raises(errors.CheckpointCorrupted, match="is outside of the checkpoint"):
        manager.download("evil", tmp_path / "copy")


def test_other_tools_find_the_files(s3_server: Server, tmp_path: Path) -> None:
    section = s3_section(s3_server, prefix="/some/prefix/")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w").write_text("w")
    (tmp_path / "hollow").mkdir()
    storage.build(section).upload(tmp_path, "ckpt")
    found = s3_client(s3_server).list_objects_v2(Bucket=section["bucket"])["Contents"]
    names = [one["Key"].removeprefix("some/prefix/ckpt/") for one in found]
    assert sorted(names) == [".determined-manifest.json", "hollow/", "sub/w"]


CHECKPOINT = "5c0b3f0e-6a0f-4b3b-9d57-1f7a55b0c1aa"

KILLED = """
import os, sys
from determined.storage.objects import ObjectStorageManager
from determined.storage.s3 import S3Client, S3StorageManager
bucket, url, prefix, at, uuid = sys.argv[1:]
calls = 0
class Dies(S3Client):
    def count(self):
        global calls
        calls += 1
        if calls == int(at):
            os.kill(os.getpid(), 9)
    def put(self, *args):
        self.count()
        super().put(*args)
    def delete(self, *args):
        self.count()
        super().delete(*args)
manager = ObjectStorageManager(Dies(bucket, url, "testing", "testing"), prefix)
manager.owner = "c.7"
with manager.store(uuid) as staging:
    for i in range(2):
        (staging.path / f"f{i}").write_text("x" * 100)
manager.delete(uuid)
"""


# Note, two files, manifest; then of deleting: manifest, files, note.
@pytest.mark.parametrize("at", [2, 4, 6, 7])
def test_a_process_that_is_killed_leaves_nothing_that_looks_like_a_checkpoint(
    s3_server: Server, s3_blobs: BlobClient, tmp_path: Path, at: int
) -> None:
    assert isinstance(s3_blobs, S3Client)
    arguments = [s3_blobs._bucket, s3_server.url, tmp_path.name, str(at), CHECKPOINT]
    # Its local leftovers are deleted with the test's directory.
    env = os.environ | {"DET_RUN_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments], timeout=TIMEOUT_S, check=False, env=env
    )
    assert done.returncode == -signal.SIGKILL
    manager = ObjectStorageManager(s3_blobs, tmp_path.name)
    assert listed(manager) != []
    with pytest.raises(errors.CheckpointNotFound):
        manager.manifest(CHECKPOINT)
    assert manager.sweep("c.7", lambda found: found) == [CHECKPOINT]
    assert listed(manager) == []


def test_parts_of_a_large_file_are_swept(s3_server: Server, s3_blobs: BlobClient) -> None:
    section = s3_section(s3_server)
    manager = storage.build(section)
    manager.owner = "c.7"
    manager.begin(CHECKPOINT)
    client, bucket = s3_client(s3_server), section["bucket"]
    client.create_multipart_upload(Bucket=bucket, Key=f"{CHECKPOINT}/w")
    assert manager.sweep("c.7", lambda found: []) == [CHECKPOINT]
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)


def test_a_missing_bucket(s3_server: Server) -> None:
    section = s3_section(s3_server) | {"bucket": "nowhere"}
    where = rf"cannot write s3://nowhere at {s3_server.url}/.*: NoSuchBucket"
    manager = storage.build(section)
    for call in (manager.validate, lambda: manager.begin("x")):
        with pytest.raises(errors.StorageError, match=where):
            call()
    with pytest.raises(errors.StorageError, match="NoSuchBucket") as caught:
        manager.verify("x")
    assert not isinstance(caught.value, errors.CheckpointNotFound)


def test_a_server_that_is_away(tmp_path: Path) -> None:
    blobs = S3Client("b", "http://127.0.0.1:9", *KEYS.values(), patience=())
    with pytest.raises(errors.StorageError, match=r"cannot write s3://b at http://127.0.0.1:9/"):
        ObjectStorageManager(blobs).validate()


@pytest.mark.parametrize(
    ("kind", "package"),
    [("s3", "boto3.session"), ("gcs", "google.cloud"), ("azure", "azure.storage.blob")],
)
def test_a_missing_package(monkeypatch: pytest.MonkeyPatch, kind: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(errors.StorageError, match=re.escape(installation.command(kind))):
        storage.build({"type": kind, "bucket": "b", "container": "c"})


class Trouble:
    """Kills the server when it has the third file of a checkpoint."""

    def __init__(self, server: Server, manager: ObjectStorageManager) -> None:
        self._server = server
        self._put = manager.blobs.put
        self._count = 0
        self._lock = threading.Lock()
        self.killed = threading.Event()
        manager.blobs.put = self.put  # type: ignore[method-assign]

    def put(self, key: str, content: bytes) -> None:
        self._put(key, content)
        with self._lock:
            self._count += 1
            # The note is first.
            if self._count == 4:
                self._server.kill()
                self.killed.set()


@pytest.mark.parametrize("comes_back", ["never", "empty", "whole"])
def test_a_server_that_is_killed_in_the_middle(tmp_path: Path, comes_back: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(20):
        (source / f"f{number}").write_bytes(bytes([number]) * 1000)
    with moto(tmp_path) as server:
        section = s3_section(server)
        manager = storage.build(section)
        assert isinstance(manager, ObjectStorageManager)
        memory = tmp_path / "s3" / section["bucket"]
        memory.mkdir()
        if comes_back == "never":
            keys = (section["access_key"], section["secret_key"])
            manager.blobs = S3Client(section["bucket"], server.url, *keys, patience=())
        trouble = Trouble(server, manager)

        def bring_back() -> None:
            assert trouble.killed.wait(TIMEOUT_S)
            if comes_back == "empty":
                for file in memory.iterdir():
                    file.unlink()
            if comes_back != "never":
                server.start()

        back = threading.Thread(target=bring_back)
        back.start()
        try:
            if comes_back == "whole":
                manager.upload(source, "ckpt")
            else:
                with pytest.raises(errors.StorageError, match="checkpoint storage"):
                    manager.upload(source, "ckpt")
        finally:
            back.join()
        if comes_back == "whole":
            manager.verify("ckpt")
            assert len(manager.download("ckpt", tmp_path / "copy")) == 20
        elif comes_back == "empty":
            with pytest.raises(errors.CheckpointNotFound):
                manager.manifest("ckpt")
            assert manager.blobs.sizes("") == {}

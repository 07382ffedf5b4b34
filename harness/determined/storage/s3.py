"""Checkpoints in S3, or in a storage with its protocol."""

from __future__ import annotations

import base64
import contextlib
import functools
import logging
import os
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

from determined import errors
from determined.storage import files
from determined.storage.blobs import BlobClient, NoSuchBlob, missing_package
from determined.storage.objects import ObjectStorageManager

logger = logging.getLogger("determined.storage")

THREADS = 10
# Of which the manifest's checksums are made: so the digest of a part is a piece of the file's.
PART_BYTES = files.PIECE_BYTES[files.PIECES]
MOST_PARTS = 10_000
HEX_DIGITS = 64
"""Of a SHA-256."""
# After these a server that is away is asked again; botocore's own attempts, with chance in their waits,
# end within a second. A list, not a Backoff: its length is the number of tries.
PATIENCE_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
DELETED_AT_ONCE = 1000
# What servers that do not know of checksums may say to them.
UNKNOWN = {"NotImplemented", "InvalidRequest", "InvalidArgument", "MalformedXML"}

T = TypeVar("T")


class StorageUnavailable(errors.StorageError):
    """The server does not answer, or says that it cannot just now."""


class UploadLost(errors.StorageError):
    """The server does not know the upload in parts (any more)."""


class NotUnderstood(errors.StorageError):
    """The server does not know the object or bucket."""


class S3StorageManager(ObjectStorageManager):
    """``s3://<bucket>/<prefix>/<storage id>/<path>``."""

    @classmethod
    def from_config(
        cls, config: dict[str, Any], container_path: str | None = None
    ) -> S3StorageManager:
        """``{"type": "s3", "bucket": …, "prefix": …, "endpoint_url": …, "access_key": …, "secret_key": …,
        "pack_small_files": …}``.

        Without keys the machine's identity is used, as by all AWS tools. Raises errors.StorageError.
        """
        blobs = S3Client(
            config.get("bucket"),
            config.get("endpoint_url"),
            config.get("access_key"),
            config.get("secret_key"),
        )
        return cls(blobs, config.get("prefix"), bool(config.get("pack_small_files")))


class S3Client(BlobClient):
    """A bucket by boto3. ``patience``: the waits (s) between tries while the server is away."""

    threads = THREADS
    hashes_files = True

    def __init__(
        self,
        bucket: str | None,
        endpoint_url: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        patience: Sequence[float] = PATIENCE_SECONDS,
    ) -> None:
        try:
            import boto3.session
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError as error:
            raise missing_package("s3", error) from error
        if not bucket:
            raise errors.StorageError("checkpoint_storage.bucket must be the name of a bucket")
        self._bucket = bucket
        self._patience = patience
        self.place = f"s3://{bucket}" + (f" at {endpoint_url}" if endpoint_url else "")
        config = Config(
            max_pool_connections=2 * THREADS,
            retries={"mode": "standard"},
            connect_timeout=10,
            tcp_keepalive=True,
            # The signature covers the transport, the manifest's checksums the storage, and one SHA-256 is
            # made for both; servers older than the other checksums refuse them.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"payload_signing_enabled": True},
        )
        try:
            self._client: Any = boto3.session.Session().client(
                "s3",
                endpoint_url=endpoint_url,
                aws_access_key_id=access_key,
                aws_secret_access_key=secret_key,
                config=config,
            )
        except (BotoCoreError, ValueError) as error:
            raise errors.StorageError(
                f"checkpoint storage: cannot use {self.place}: {error}"
            ) from error
        # Asking for leave first costs a small object a second round trip.
        self._client.meta.events.register("before-sign.s3", _do_not_ask)
        self._client.meta.events.register_first("before-send.s3", self._note_digest)
        self._sent = threading.local()
        self._pool = ThreadPoolExecutor(THREADS, "s3-parts")
        # Whether parts go with a CRC32, which the server keeps: until it turns out not to know it.
        self._with_crc = True

    def _call(self, action: str, key: str, call: Callable[[], T]) -> T:
        for delay in self._patience:
            try:
                with self._explained(action, key):
                    return call()
            except StorageUnavailable as error:
                logger.info("%s; again in %.1f s", error, delay)
                time.sleep(delay)
        with self._explained(action, key):
            return call()

    @contextlib.contextmanager
    def _explained(self, action: str, key: str) -> Iterator[None]:
        from boto3.exceptions import Boto3Error
        from botocore import exceptions as boto
        from urllib3.exceptions import HTTPError

        text = f"checkpoint storage: cannot {action} {self.place}/{key}"
        try:
            yield
        except boto.ClientError as error:
            answer = error.response.get("Error", {})
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = answer.get("Code", "")
            kind = errors.StorageError
            if code == "NoSuchKey":
                kind = NoSuchBlob
            elif code == "NoSuchUpload":
                kind = UploadLost
            elif code in UNKNOWN:
                kind = NotUnderstood
            elif status >= 500 or status == 429:
                kind = StorageUnavailable
            raise kind(f"{text}: {code}: {answer.get('Message')}") from error
        except (boto.ConnectionError, boto.HTTPClientError, HTTPError, OSError) as error:
            raise StorageUnavailable(f"{text}: {error}") from error
        except (boto.BotoCoreError, Boto3Error) as error:
            raise errors.StorageError(f"{text}: {error}") from error

    def put(self, key: str, content: bytes) -> None:
        self._put(key, content)

    def _put(self, key: str, content: bytes) -> bytes | None:
        put = functools.partial(self._client.put_object, Bucket=self._bucket, Key=key, Body=content)
        return self._send(key, put)[1]

    def _send(self, key: str, put: Callable[[], T]) -> tuple[T, bytes | None]:
        """The result of ``put``, and the SHA-256 of the bytes it has sent, if known."""

        def call() -> T:
            self._sent.digest = None
            return put()

        return self._call("write", key, call), self._sent.digest

    def put_file(self, key: str, source: Path) -> str | None:
        size = source.stat().st_size
        if size <= PART_BYTES:
            digests = [self._put(key, source.read_bytes())]
        else:
            part_bytes = PART_BYTES
            while size > MOST_PARTS * part_bytes:
                part_bytes *= 2
            digests = self._put_parts_or_again(key, source, range(0, size, part_bytes), part_bytes)
            if part_bytes != PART_BYTES:
                return files.checksum(source)
        known = [digest for digest in digests if digest is not None]
        return files.checksum_of(known) if len(known) == len(digests) else files.checksum(source)

    def _put_parts_or_again(
        self, key: str, source: Path, starts: range, part_bytes: int
    ) -> list[bytes | None]:
        """The SHA-256 of each part, where it is known."""
        put = functools.partial(self._put_parts, key, source, starts, part_bytes)
        with_crc = self._with_crc
        try:
            return put(with_crc)
        except UploadLost:
            # By a server that was restarted, or it is complete and only the answer was lost.
            return put(with_crc)
        except NotUnderstood as error:
            if not with_crc:
                raise
            logger.info(
                "the server refuses CRC32, so files are sent without it from now on: %s", error
            )
            self._with_crc = False
            return put(False)

    def _put_parts(
        self, key: str, source: Path, starts: range, part_bytes: int, with_crc: bool
    ) -> list[bytes | None]:
        where = {"Bucket": self._bucket, "Key": key}
        algorithm = {"ChecksumAlgorithm": "CRC32"} if with_crc else {}
        begin = functools.partial(self._client.create_multipart_upload, **where, **algorithm)
        where["UploadId"] = self._call("write", key, begin)["UploadId"]

        def send(number: int, start: int) -> tuple[dict[str, Any], bytes | None]:
            content = os.pread(file.fileno(), part_bytes, start)
            part: dict[str, Any] = {"PartNumber": number}
            if with_crc:
                part["ChecksumCRC32"] = base64.b64encode(zlib.crc32(content).to_bytes(4)).decode()
            put = functools.partial(self._client.upload_part, **where, **part, Body=content)
            answer, digest = self._send(key, put)
            return {**part, "ETag": answer["ETag"]}, digest

        try:
            with source.open("rb") as file:
                calls = [self._pool.submit(send, at, start) for at, start in enumerate(starts, 1)]
                parts, digests = zip(*_results(calls), strict=True)
            end = functools.partial(
                self._client.complete_multipart_upload, **where, MultipartUpload={"Parts": parts}
            )
            self._call("write", key, end)
        except BaseException:
            with contextlib.suppress(errors.StorageError):
                forget = functools.partial(self._client.abort_multipart_upload, **where)
                self._call("write", key, forget)
            raise
        return list(digests)

    def _note_digest(self, request: Any, **_: Any) -> None:
        """The checksum that the signature gives for this thread's request; anonymous requests have no
        signature.
        """
        found = request.headers.get("X-Amz-Content-SHA256", "")
        text = found if isinstance(found, str) else found.decode()
        self._sent.digest = bytes.fromhex(text) if len(text) == HEX_DIGITS else None

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        got = bytearray()

        def read() -> None:
            # Again after a connection that broke in the middle: from there.
            at = start + len(got)
            ask = {"Range": f"bytes={at}-{'' if end is None else end - 1}"} if at or end else {}
            body = self._client.get_object(Bucket=self._bucket, Key=key, **ask)["Body"]
            with contextlib.closing(body):
                for part in body.iter_chunks(1 << 20):
                    got.extend(part)

        self._call("read", key, read)
        return bytes(got)

    def sizes(self, prefix: str, limit: int | None = None) -> dict[str, int]:
        def collect() -> dict[str, int]:
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=prefix, PaginationConfig={"MaxItems": limit}
            )
            return {
                item["Key"]: item["Size"] for page in pages for item in page.get("Contents", [])
            }

        return self._call("list", prefix, collect)

    def delete(self, keys: Collection[str]) -> None:
        every = list(keys)
        for at in range(0, len(every), DELETED_AT_ONCE):
            some = every[at : at + DELETED_AT_ONCE]
            doomed = {"Objects": [{"Key": key} for key in some], "Quiet": True}
            answer = self._call(
                "delete",
                some[0],
                functools.partial(self._client.delete_objects, Bucket=self._bucket, Delete=doomed),
            )
            for error in answer.get("Errors", []):
                raise errors.StorageError(
                    f"checkpoint storage: cannot delete {self.place}/{error.get('Key')}: "
                    f"{error.get('Code')}: {error.get('Message')}"
                )

    def abandon(self, prefix: str) -> None:
        def forget() -> None:
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._bucket, Prefix=prefix
            )
            for page in pages:
                for upload in page.get("Uploads", []):
                    self._client.abort_multipart_upload(
                        Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )

        self._call("list", prefix, forget)


def _results(calls: Sequence[Future[T]]) -> list[T]:
    """The results of all. If one raises, the error is raised once all others have ended."""
    try:
        return [call.result() for call in calls]
    except BaseException:
        for call in calls:
            call.cancel()
        wait(calls)
        raise


def _do_not_ask(request: Any, **_: Any) -> None:
    del request.headers["Expect"]

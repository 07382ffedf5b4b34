"""Checkpoints in S3, or in what speaks its protocol."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from determined import errors
from determined.storage.blobs import BlobClient, NoSuchBlob, missing_package
from determined.storage.objects import ObjectStorageManager

logger = logging.getLogger("determined.storage")

THREADS = 10
PART_BYTES = 16 << 20
# After these a server that is away is asked again; botocore's own attempts end within a second.
PATIENCE_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
DELETED_AT_ONCE = 1000

T = TypeVar("T")


class Unavailable(errors.StorageError):
    """The server does not answer, or says that it cannot just now."""


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
    """A bucket by boto3. ``patience``: seconds after which a server that is away is asked again."""

    threads = THREADS

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
            from boto3.s3.transfer import TransferConfig, create_transfer_manager
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
            # Transport is covered by TLS, or else by the signature, storage by the manifest's checksums;
            # servers older than these checksums refuse them.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"payload_signing_enabled": (endpoint_url or "").startswith("http:")},
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
        self._parallel = create_transfer_manager(
            self._client,
            TransferConfig(
                multipart_threshold=PART_BYTES,
                multipart_chunksize=PART_BYTES,
                max_concurrency=THREADS,
            ),
        )

    def _call(self, action: str, key: str, call: Callable[[], T]) -> T:
        for delay in self._patience:
            try:
                with self._explained(action, key):
                    return call()
            except Unavailable as error:
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
            elif status >= 500 or status == 429:
                kind = Unavailable
            raise kind(f"{text}: {code}: {answer.get('Message')}") from error
        except (boto.ConnectionError, boto.HTTPClientError, HTTPError, OSError) as error:
            raise Unavailable(f"{text}: {error}") from error
        except (boto.BotoCoreError, Boto3Error) as error:
            raise errors.StorageError(f"{text}: {error}") from error

    def put(self, key: str, content: bytes) -> None:
        self._call(
            "write",
            key,
            lambda: self._client.put_object(Bucket=self._bucket, Key=key, Body=content),
        )

    def put_file(self, key: str, source: Path) -> None:
        if source.stat().st_size <= PART_BYTES:
            self.put(key, source.read_bytes())
            return
        self._call(
            "write", key, lambda: self._parallel.upload(str(source), self._bucket, key).result()
        )

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


def _do_not_ask(request: Any, **_: Any) -> None:
    del request.headers["Expect"]

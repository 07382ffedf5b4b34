"""Checkpoints in S3, or in what speaks its protocol."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from determined import errors
from determined.storage.blobs import BlobClient, NoSuchBlob, missing_package
from determined.storage.objects import ObjectStorageManager

THREADS = 10
ATTEMPTS = 5
PART_BYTES = 16 << 20
RESUME_SECONDS = (0.2, 1.0, 3.0, 6.0)
DELETED_AT_ONCE = 1000


class S3StorageManager(ObjectStorageManager):
    """``s3://<bucket>/<prefix>/<storage id>/<path>``."""

    @classmethod
    def from_config(
        cls, config: dict[str, Any], container_path: str | None = None
    ) -> S3StorageManager:
        """``{"type": "s3", "bucket": …, "prefix": …, "endpoint_url": …, "access_key": …, "secret_key": …}``.

        Without keys the machine's identity is used, as by all AWS tools. Raises errors.StorageError.
        """
        blobs = S3Client(
            config.get("bucket"),
            config.get("endpoint_url"),
            config.get("access_key"),
            config.get("secret_key"),
        )
        return cls(blobs, config.get("prefix"))


class S3Client(BlobClient):
    """A bucket by boto3. ``attempts``: how often a request is tried when the server does not answer,
    about 15 s in all by default."""

    threads = THREADS

    def __init__(
        self,
        bucket: str | None,
        endpoint_url: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        attempts: int = ATTEMPTS,
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
        self._attempts = attempts
        self.place = f"s3://{bucket}" + (f" at {endpoint_url}" if endpoint_url else "")
        config = Config(
            max_pool_connections=2 * THREADS,
            retries={"mode": "standard", "total_max_attempts": attempts},
            connect_timeout=10,
            tcp_keepalive=True,
            # Transport is covered by TLS or by the signature, storage by the manifest's checksums; servers
            # older than these checksums refuse them.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
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
        self._parallel = create_transfer_manager(
            self._client,
            TransferConfig(
                multipart_threshold=PART_BYTES,
                multipart_chunksize=PART_BYTES,
                max_concurrency=THREADS,
            ),
        )

    @contextlib.contextmanager
    def _explained(self, action: str, key: str) -> Iterator[None]:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        where = f"{self.place}/{key}"
        try:
            yield
        except ClientError as error:
            answer = error.response.get("Error", {})
            code = answer.get("Code", "")
            text = f"checkpoint storage: cannot {action} {where}: {code}: {answer.get('Message')}"
            raise (NoSuchBlob if code == "NoSuchKey" else errors.StorageError)(text) from error
        except (BotoCoreError, Boto3Error) as error:
            raise errors.StorageError(
                f"checkpoint storage: cannot {action} {where}: {error}"
            ) from error

    def put(self, key: str, content: bytes) -> None:
        with self._explained("write", key):
            self._client.put_object(Bucket=self._bucket, Key=key, Body=content)

    def put_file(self, key: str, source: Path) -> None:
        if source.stat().st_size <= PART_BYTES:
            self.put(key, source.read_bytes())
            return
        with self._explained("write", key):
            self._parallel.upload(str(source), self._bucket, key).result()

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        from botocore.exceptions import BotoCoreError
        from urllib3.exceptions import HTTPError

        got = bytearray()
        for attempt in itertools.count(1):
            range_ = f"bytes={start + len(got)}-{'' if end is None else end - 1}"
            ask = {"Range": range_} if end is not None or got else {}
            with self._explained("read", key):
                body = self._client.get_object(Bucket=self._bucket, Key=key, **ask)["Body"]
                try:
                    for part in body.iter_chunks(1 << 20):
                        got += part
                    return bytes(got)
                except (BotoCoreError, HTTPError, OSError) as error:
                    # Broken in the middle: botocore has nothing to say about that.
                    if attempt >= self._attempts:
                        raise errors.StorageError(
                            f"checkpoint storage: cannot read {self.place}/{key}: {error}"
                        ) from error
                finally:
                    body.close()
            time.sleep(RESUME_SECONDS[min(attempt, len(RESUME_SECONDS)) - 1])
        raise AssertionError

    def sizes(self, prefix: str, limit: int | None = None) -> dict[str, int]:
        found: dict[str, int] = {}
        with self._explained("list", prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=prefix, PaginationConfig={"MaxItems": limit}
            )
            for page in pages:
                found |= {item["Key"]: item["Size"] for item in page.get("Contents", [])}
        return found

    def delete(self, keys: Collection[str]) -> None:
        every = list(keys)
        for at in range(0, len(every), DELETED_AT_ONCE):
            some = every[at : at + DELETED_AT_ONCE]
            with self._explained("delete", some[0]):
                answer = self._client.delete_objects(
                    Bucket=self._bucket,
                    Delete={"Objects": [{"Key": key} for key in some], "Quiet": True},
                )
            for error in answer.get("Errors", []):
                raise errors.StorageError(
                    f"checkpoint storage: cannot delete {self.place}/{error.get('Key')}: "
                    f"{error.get('Code')}: {error.get('Message')}"
                )

    def abandon(self, prefix: str) -> None:
        with self._explained("list", prefix):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._bucket, Prefix=prefix
            )
            for page in pages:
                for upload in page.get("Uploads", []):
                    self._client.abort_multipart_upload(
                        Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )

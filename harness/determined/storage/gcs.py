"""Checkpoints in Google Cloud Storage."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from determined import errors
from determined.storage import files
from determined.storage.blobs import BlobClient, NoSuchBlob, missing_package
from determined.storage.objects import ObjectStorageManager


class GCSStorageManager(ObjectStorageManager):
    """``gs://<bucket>/<prefix>/<storage id>/<path>``."""

    @classmethod
    def from_config(
        cls, config: dict[str, Any], container_path: str | None = None
    ) -> GCSStorageManager:
        """``{"type": "gcs", "bucket": …, "prefix": …, "pack_small_files": …}``, with the machine's identity.

        Raises errors.StorageError.
        """
        blobs = GCSClient(config.get("bucket"))
        return cls(blobs, config.get("prefix"), bool(config.get("pack_small_files")))


class GCSClient(BlobClient):
    """A bucket by google-cloud-storage; STORAGE_EMULATOR_HOST names another server."""

    def __init__(self, bucket: str | None) -> None:
        try:
            from google.auth.exceptions import GoogleAuthError
            from google.cloud import storage
            from google.cloud.storage.retry import DEFAULT_RETRY
        except ImportError as error:
            raise missing_package("gcs", error) from error
        if not bucket:
            raise errors.StorageError("checkpoint_storage.bucket must be the name of a bucket")
        self.place = f"gs://{bucket}"
        # Objects are written once under one name: to write one again does no harm, and the library
        # would not do it by itself.
        self._retry = DEFAULT_RETRY.with_timeout(60)
        try:
            self._client = storage.Client()
        except (GoogleAuthError, OSError) as error:
            raise errors.StorageError(
                f"checkpoint storage: cannot use {self.place}: {error}"
            ) from error
        self._bucket: Any = self._client.bucket(bucket)

    @contextlib.contextmanager
    def _explained(self, action: str, key: str) -> Iterator[None]:
        from google.api_core.exceptions import GoogleAPIError, NotFound
        from google.auth.exceptions import GoogleAuthError
        from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
        from requests.exceptions import RequestException

        try:
            yield
        except NotFound as error:
            # The server gives the same status for a bucket that does not exist.
            kind = errors.StorageError if "bucket" in str(error.message).lower() else NoSuchBlob
            raise kind(
                f"checkpoint storage: cannot {action} {self.place}/{key}: {error}"
            ) from error
        except (
            GoogleAPIError,
            GoogleAuthError,
            DataCorruption,
            InvalidResponse,
            RequestException,
        ) as error:
            raise errors.StorageError(
                f"checkpoint storage: cannot {action} {self.place}/{key}: {error}"
            ) from error

    def put(self, key: str, content: bytes) -> None:
        with self._explained("write", key):
            self._bucket.blob(key).upload_from_string(
                content, "application/octet-stream", retry=self._retry
            )

    def put_file(self, key: str, source: Path) -> None:
        with self._explained("write", key):
            self._bucket.blob(key).upload_from_filename(
                source, "application/octet-stream", retry=self._retry
            )

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        with self._explained("read", key):
            content: bytes = self._bucket.blob(key).download_as_bytes(
                start=start or None, end=None if end is None else end - 1, retry=self._retry
            )
        return content

    def sizes(self, prefix: str, limit: int | None = None) -> dict[str, int]:
        with self._explained("list", prefix):
            found = self._client.list_blobs(
                self._bucket,
                prefix=prefix,
                max_results=limit,
                fields="items(name,size),nextPageToken",
            )
            return {blob.name: blob.size for blob in found}

    def delete(self, keys: Collection[str]) -> None:
        def remove(key: str) -> None:
            with contextlib.suppress(NoSuchBlob), self._explained("delete", key):
                self._bucket.blob(key).delete(retry=self._retry)

        files.in_parallel(remove, keys, self.threads)

"""Checkpoints in Azure Blob Storage."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from determined import errors
from determined.storage import files
from determined.storage.blobs import BlobClient, NoSuchBlob, missing_package
from determined.storage.objects import ObjectStorageManager

BLOCK_BYTES = 16 << 20


class AzureStorageManager(ObjectStorageManager):
    """``<container>/<storage id>/<path>``."""

    @classmethod
    def from_config(
        cls, config: dict[str, Any], container_path: str | None = None
    ) -> AzureStorageManager:
        """``{"type": "azure", "container": …, "connection_string": …}``, or ``account_url`` and
        ``credential`` instead of the connection string; ``pack_small_files``. Raises errors.StorageError.
        """
        blobs = AzureClient(
            config.get("container"),
            config.get("connection_string"),
            config.get("account_url"),
            config.get("credential"),
        )
        return cls(blobs, pack_small_files=bool(config.get("pack_small_files")))


class AzureClient(BlobClient):
    """A container by azure-storage-blob."""

    def __init__(
        self,
        container: str | None,
        connection_string: str | None = None,
        account_url: str | None = None,
        credential: str | None = None,
    ) -> None:
        try:
            from azure.storage.blob import ContainerClient
        except ImportError as error:
            raise missing_package("azure", error) from error
        name = (container or "").rstrip("/")
        if not name:
            raise errors.StorageError("checkpoint_storage.container must be a container's name")
        # Larger ones go in blocks, several at once.
        options: dict[str, Any] = {
            "max_single_put_size": BLOCK_BYTES,
            "max_block_size": BLOCK_BYTES,
            "retry_total": 5,
        }
        try:
            if connection_string:
                self._container: Any = ContainerClient.from_connection_string(
                    connection_string, name, **options
                )
            else:
                self._container = ContainerClient(account_url or "", name, credential, **options)
        except ValueError as error:
            raise errors.StorageError(
                f"checkpoint storage: cannot use the Azure container {name}: {error}"
            ) from error
        self.place = f"{self._container.primary_endpoint}".split("?")[0]

    @contextlib.contextmanager
    def _explained(self, action: str, key: str) -> Iterator[None]:
        from azure.core.exceptions import AzureError, ResourceNotFoundError

        try:
            yield
        except ResourceNotFoundError as error:
            missing = getattr(error, "error_code", None) in (None, "BlobNotFound")
            kind = NoSuchBlob if missing else errors.StorageError
            raise kind(_said(action, f"{self.place}/{key}", error)) from error
        except AzureError as error:
            raise errors.StorageError(_said(action, f"{self.place}/{key}", error)) from error

    def put(self, key: str, content: bytes) -> None:
        with self._explained("write", key):
            self._container.upload_blob(key, content, overwrite=True)

    def put_file(self, key: str, source: Path) -> None:
        with self._explained("write", key), source.open("rb") as file:
            self._container.upload_blob(
                key,
                file,
                length=source.stat().st_size,
                overwrite=True,
                max_concurrency=self.threads,
            )

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        length = None if end is None else end - start
        with self._explained("read", key):
            content: bytes = self._container.download_blob(key, start, length).readall()
        return content

    def sizes(self, prefix: str, limit: int | None = None) -> dict[str, int]:
        with self._explained("list", prefix):
            found = self._container.list_blobs(name_starts_with=prefix, results_per_page=limit)
            return {blob.name: blob.size for blob in islice(found, limit)}

    def delete(self, keys: Collection[str]) -> None:
        def remove(key: str) -> None:
            with contextlib.suppress(NoSuchBlob), self._explained("delete", key):
                self._container.delete_blob(key)

        files.in_parallel(remove, keys, self.threads)


def _said(action: str, where: str, error: Exception) -> str:
    # The library appends headers and the XML of the answer.
    reason = str(error).partition("\n")[0]
    return f"checkpoint storage: cannot {action} {where}: {reason}"

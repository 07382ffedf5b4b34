"""The interface of an object storage service that keeps checkpoints."""

from __future__ import annotations

import abc
from collections.abc import Collection
from pathlib import Path

from determined import errors
from determined.common import installation


class NoSuchBlob(errors.StorageError):
    """The storage has no object of this key."""


class BlobClient(abc.ABC):
    """The objects of one bucket. Keys are complete names; all methods may be called by several threads.

    The service's own library repeats a call where that helps. Raises (all methods)
    ``errors.StorageError`` with :attr:`place`, key and reason.
    """

    place: str
    """Bucket and server, for messages."""

    threads: int = 8
    """The useful number of parallel calls."""

    hashes_files: bool = False
    """True if :meth:`put_file` returns the file's checksum, because sending needs one anyway."""

    @abc.abstractmethod
    def put(self, key: str, content: bytes) -> None:
        """Store an object, replacing one of the same key."""

    @abc.abstractmethod
    def put_file(self, key: str, source: Path) -> str | None:
        """Store a file of any size, a large one in parts where the service can; raises OSError when
        ``source`` cannot be read.

        Returns its :func:`~determined.storage.files.checksum` with :attr:`hashes_files`.
        """

    @abc.abstractmethod
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes from ``start`` up to ``end``, or all bytes if neither is given. Raises NoSuchBlob.

        After a broken connection the rest is read from where it broke. Fewer bytes come back when the
        object is shorter.
        """

    @abc.abstractmethod
    def sizes(self, prefix: str, limit: int | None = None) -> dict[str, int]:
        """Key → bytes of the objects whose keys begin with ``prefix``, at most ``limit`` of them."""

    @abc.abstractmethod
    def delete(self, keys: Collection[str]) -> None:
        """Remove the objects that exist."""

    def abandon(self, prefix: str) -> None:  # noqa: B027 - most services forget by themselves
        """Remove parts of unfinished objects below ``prefix``."""


def missing_package(kind: str, error: ImportError) -> errors.StorageError:
    """The error to raise when a service's library is not installed."""
    return errors.StorageError(
        f"checkpoint_storage.type {kind} needs a package that is not installed here ({error}): "
        f"{installation.command(kind)}"
    )

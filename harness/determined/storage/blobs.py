"""What an object storage service has to do for checkpoints to be kept there."""

from __future__ import annotations

import abc
from collections.abc import Collection
from pathlib import Path

from determined import errors


class NoSuchBlob(errors.StorageError):
    """There is no object of this key."""


class BlobClient(abc.ABC):
    """The objects of one bucket. Keys are complete names; all methods may be called by several threads.

    Each call is tried again by the service's own library where that helps. Raises (all methods)
    ``errors.StorageError`` with :attr:`place`, key and reason.
    """

    place: str
    """Bucket and server, for messages."""

    threads: int = 8
    """How many calls at once are worth it."""

    hashes_files: bool = False
    """Whether :meth:`put_file` knows what checksum the file has, because sending it needs one."""

    @abc.abstractmethod
    def put(self, key: str, content: bytes) -> None:
        """Store an object, replacing what is there."""

    @abc.abstractmethod
    def put_file(self, key: str, source: Path) -> str | None:
        """Store a file of any size, a large one in parts where the service can; raises OSError when
        ``source`` cannot be read.

        Returns its :func:`~determined.storage.files.checksum` with :attr:`hashes_files`.
        """

    @abc.abstractmethod
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes from ``start`` up to ``end``, all without them. Raises NoSuchBlob.

        A connection that breaks is taken up where it broke. Fewer bytes come back when the object is shorter.
        """

    @abc.abstractmethod
    def sizes(self, prefix: str, limit: int | None = None) -> dict[str, int]:
        """Key → bytes of the objects whose keys begin with ``prefix``, at most ``limit`` of them."""

    @abc.abstractmethod
    def delete(self, keys: Collection[str]) -> None:
        """Remove objects; they need not be there."""

    def abandon(self, prefix: str) -> None:  # noqa: B027 - most services forget by themselves
        """Forget parts of objects below ``prefix`` that nobody will complete."""


def missing_package(kind: str, error: ImportError) -> errors.StorageError:
    """What to raise when a service's library is not installed."""
    return errors.StorageError(
        f"checkpoint_storage.type {kind} needs a package that is not installed here ({error}): "
        f"pip install 'determined-prefect[{kind}]'"
    )

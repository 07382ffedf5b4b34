"""Deletes a checkpoint from a directory. It works on descriptors, because the deleting process may have more
rights than the account that wrote the checkpoint, which may exchange a directory for a link meanwhile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from determined import errors
from determined.storage import beneath, files
from determined.storage.base import Manifest

DELETING = ".deleting-"


def remove_some(path: Path, storage_id: str, left: Manifest) -> None:
    """Removes the files of the checkpoint at ``path`` that ``left`` says are going. Raises StorageError."""
    with (
        files.explained("delete from", path),
        beneath.opened(path.parent) as root,
        _checkpoint(storage_id, root, path) as folder,
    ):
        if folder is None:
            return
        _require_inside(storage_id, folder, path, left.going)
        beneath.write(folder, files.MANIFEST, left.to_json())
        for name in sorted(left.going, reverse=True):
            with _not_through_links(storage_id, path / name):
                beneath.remove_one(folder, name)


def remove_all(path: Path, storage_id: str) -> None:
    """Remove the checkpoint at ``path``, if it exists. Raises StorageError."""
    doomed = f"{DELETING}{path.name}"
    with files.explained("delete", path), beneath.opened(path.parent) as root:
        # Left by a deleter that was killed.
        beneath.remove(root, doomed)
        with _checkpoint(storage_id, root, path) as folder:
            if folder is None:
                return
            try:
                os.rename(path.name, doomed, src_dir_fd=root, dst_dir_fd=root)
            except FileNotFoundError:
                return
            # Nobody is told that it is gone before it is gone for good.
            os.fsync(root)
            # The checked folder itself, even if its name leads elsewhere by now.
            beneath.empty(folder)
            beneath.remove(root, doomed)


def has_one_owner(root: int, note: str, storage_id: str) -> bool:
    """True if the note and the checkpoint belong to one account: where several accounts store, a note may
    name another's checkpoint."""
    try:
        owners = {
            os.stat(name, dir_fd=root, follow_symlinks=False).st_uid for name in (note, storage_id)
        }
    except FileNotFoundError:
        return True
    return len(owners) == 1


@contextlib.contextmanager
def _not_through_links(storage_id: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not beneath.is_link(error):
            raise
        raise errors.StorageError(
            f"checkpoint {storage_id}: {path} is behind a symbolic link, which a deletion does not follow; "
            "the file was not deleted. Remove the link, and delete again"
        ) from None


def _require_inside(storage_id: str, folder: int, path: Path, names: Collection[str]) -> None:
    """Raises StorageError, before anything is deleted, for files that lie elsewhere: the deleting process may
    have more rights than the account that wrote the checkpoint ``folder`` (at ``path``) and the link.
    """
    for parent in {PurePosixPath(name).parent for name in names}:
        with (
            _not_through_links(storage_id, path / parent),
            contextlib.suppress(FileNotFoundError),
            beneath.opened(folder, str(parent)),
        ):
            pass


# Of releases of Determined, which have no list of files.
_OTHERS_MARK = "metadata.json"


@contextlib.contextmanager
def _checkpoint(storage_id: str, root: int, path: Path) -> Iterator[int | None]:
    """A descriptor of the checkpoint's directory; None: it is gone.

    Raises StorageError for what may be no checkpoint: any directory named by a uuid can be reported as one,
    and the deleting process may have more rights than the reporter.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(beneath.opened(root, path.name))
            marked = any(beneath.is_file(folder, mark) for mark in (files.MANIFEST, _OTHERS_MARK))
            why = f"has neither {files.MANIFEST} nor {_OTHERS_MARK}, so it may not be a checkpoint"
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            if not beneath.is_link(error):
                raise
            marked, why = False, "is a file or a symbolic link"
        if marked:
            yield folder
            return
    raise errors.StorageError(
        f"checkpoint {storage_id}: {path} {why}; nothing was deleted. To delete it, remove it by hand"
    )

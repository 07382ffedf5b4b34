"""Decides which storages the service and the server of MLflow's pages open: :func:`refusal`.

A checkpoint's storage is what its experiment's configuration says, and so what any user wrote. The service
has more rights than a user: its account reads files, its machine has an identity at cloud providers, and it
reaches servers that users do not. So it opens

* the cluster's own storage, the one that the administrator configured: the same directory, bucket or
  container at the same server, or a place below it, but not what the cluster itself keeps there
  (:func:`is_clusters_own`);
* buckets of S3 at AWS itself, by keys that the configuration names. These give no more rights than their
  author has.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from determined.expconf.problems import MASK

DIRECT = "download it with --mode direct on a machine that reaches the storage"
_OWN = "the cluster's own checkpoint storage"
# What may be a bucket's plain name, and nothing else that boto3 takes for one.
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def refusal(
    section: Mapping[str, Any] | None, own: Mapping[str, Any] | None, what: str = "the checkpoint"
) -> str | None:
    """The reason why the service does not open the storage ``section``, with what to do instead; None: it
    may. ``own`` is the cluster's."""
    if not section:
        return f"{what}: its storage is not known to the service"
    kind = section.get("type")
    if kind == "own":
        return (
            f"{what} was stored by the training code's own storage manager: only the training code can "
            "read it"
        )
    if MASK in section.values():
        return (
            f"{what} lies in a storage with keys of its owner's own: only its owner and administrators may "
            "have the service download it"
        )
    if is_clusters_own(section, own):
        return f"{what} lies in {_place(section)}: {KEPT}"
    if _is_within(section, own) or has_keys_for_aws(section):
        return None
    return f"{what} lies in {_place(section)}: {_reason(section)}; {DIRECT}"


KEPT = (
    "there the cluster keeps files of notebooks, TensorBoards and MLflow's pages, and no checkpoints; choose "
    "another directory or prefix"
)


def is_clusters_own(section: Mapping[str, Any] | None, own: Mapping[str, Any] | None) -> bool:
    """True if the storage ``section`` lies in or below the cluster's own files in its storage ``own``: the
    files of notebooks, of TensorBoards and of MLflow's pages, in a directory named by the cluster's id."""
    inner = _inner(section, own) if section else None
    return inner is not None and bool(inner) and _is_uuid(inner[0])


def _is_uuid(name: str) -> bool:
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False


def _inner(section: Mapping[str, Any], own: Mapping[str, Any] | None) -> list[str] | None:
    """The names that lead from the storage ``own`` to ``section``; None: it lies elsewhere."""
    if own is None or not _is_within(section, own):
        return None
    if section["type"] in ("shared_fs", "directory"):
        return list(Path(str(directory(section))).relative_to(str(directory(own))).parts)
    return _parts(section.get("prefix"))[len(_parts(own.get("prefix"))) :]


def _is_within(section: Mapping[str, Any], own: Mapping[str, Any] | None) -> bool:
    kind = section.get("type")
    if own is None or own.get("type") != kind:
        return False
    if kind in ("shared_fs", "directory"):
        found, root = directory(section), directory(own)
        return found is not None and root is not None and os.path.commonpath([found, root]) == root
    same: tuple[str, ...]
    if kind == "s3":
        same = ("bucket", "endpoint_url")
    elif kind == "gcs":
        same = ("bucket",)
    elif kind == "azure":
        # The connection string names the server.
        return all(
            (section.get(name) or None) == (own.get(name) or None)
            for name in ("container", "connection_string", "account_url", "credential")
        )
    else:
        return False
    if any((section.get(name) or None) != (own.get(name) or None) for name in same):
        return False
    prefix, above = _parts(section.get("prefix")), _parts(own.get("prefix"))
    return prefix[: len(above)] == above and ".." not in prefix


def directory(section: Mapping[str, Any]) -> str | None:
    """The directory of a ``shared_fs`` or ``directory`` section; None: it has no absolute path."""
    root = section.get("container_path" if section.get("type") == "directory" else "host_path")
    if not isinstance(root, str) or not root.startswith("/"):
        return None
    inner = section.get("storage_path") if section.get("type") == "shared_fs" else None
    # normpath leaves two slashes at the beginning as they are.
    return "/" + os.path.normpath(Path(root) / (inner or "")).lstrip("/")


def _parts(prefix: Any) -> list[str]:
    return [part for part in str(prefix or "").split("/") if part]


def has_keys_for_aws(section: Mapping[str, Any]) -> bool:
    """True for a bucket at AWS that is opened by keys in the configuration itself."""
    keys = (section.get("access_key"), section.get("secret_key"))
    bucket = section.get("bucket")
    return (
        all(isinstance(key, str) and key for key in keys)
        and not section.get("endpoint_url")
        and isinstance(bucket, str)
        and _BUCKET.fullmatch(bucket) is not None
    )


def _place(section: Mapping[str, Any]) -> str:
    kind = section.get("type")
    if kind in ("shared_fs", "directory"):
        return f"the directory {directory(section)}"
    if kind == "s3":
        server = section.get("endpoint_url")
        return f"the S3 bucket {section.get('bucket')}" + (f" at {server}" if server else "")
    if kind == "gcs":
        return f"the bucket gs://{section.get('bucket')}"
    if kind == "azure":
        return f"the Azure container {section.get('container')}"
    return f"a storage of type {kind}"


def _reason(section: Mapping[str, Any]) -> str:
    if section.get("type") == "s3":
        return f"the service opens {_OWN}, and buckets at AWS by keys that its experiment names"
    return f"the service opens {_OWN} only"

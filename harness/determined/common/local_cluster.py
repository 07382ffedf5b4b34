"""The address of this user's local cluster, and the credentials for it.

`det deploy local cluster-up` writes ``<data>/cluster.json`` (mode 0600); this module reads it: the CLI and
the SDK find the address and the password here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

DATA_DIR_VARIABLE = "DET_DATA_DIR"
FILE_NAME = "cluster.json"


def data_dir(explicit: str | os.PathLike[str] | None = None) -> Path:
    """The cluster's folder: ``explicit``, else ``$DET_DATA_DIR``, else the platform's user data
    directory. Absolute; need not exist."""
    chosen = (
        explicit or os.environ.get(DATA_DIR_VARIABLE) or platformdirs.user_data_dir("determined")
    )
    return Path(chosen).expanduser().absolute()


@dataclass(frozen=True)
class LocalCluster:
    """Addresses and credentials for a client of the local cluster; made by :func:`read`."""

    data_dir: Path
    cluster_id: str
    cluster_name: str
    master_url: str
    """The service, ``http://127.0.0.1:<port>``."""
    prefect_url: str
    """Prefect's UI, ``http://127.0.0.1:<port>``."""
    passwords: Mapping[str, str] = field(repr=False)
    """The passwords that the first users (``determined``, ``admin``) got when the cluster was made; a later
    change is not seen here."""
    prefect_auth: str | None = field(default=None, repr=False)
    """``user:password`` of Prefect's API (`PREFECT_API_AUTH_STRING`)."""

    @property
    def prefect_api_url(self) -> str:
        """Prefect's API (`PREFECT_API_URL`)."""
        return f"{self.prefect_url}/api"


def read(directory: str | os.PathLike[str] | None = None) -> LocalCluster | None:
    """The local cluster recorded in ``directory`` (see :func:`data_dir`), running or not.

    None when no cluster was ever started there. Raises ValueError when the record is damaged and OSError
    when it cannot be read.
    """
    folder = data_dir(directory)
    path = folder / FILE_NAME
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        record = json.loads(text)
        return LocalCluster(
            data_dir=folder,
            cluster_id=record["cluster_id"],
            cluster_name=record["cluster_name"],
            master_url=record["master_url"],
            prefect_url=record["prefect_url"],
            passwords=dict(record["passwords"]),
            prefect_auth=record["prefect_auth"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); restore it from a backup") from error

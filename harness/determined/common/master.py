"""Finds the service's address: the address given, the environment, the local cluster, the default."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit

from determined.common import local_cluster
from determined.common.local_cluster import LocalCluster

DEFAULT_URL = "http://localhost:8080"
VARIABLES = ("DET_MASTER", "DET_MASTER_ADDR")


class AddressSource(Enum):
    """Where the service's address comes from."""

    ARGUMENT = "argument"
    ENVIRONMENT = "environment"
    LOCAL_CLUSTER = "local cluster"
    DEFAULT = "default"


@dataclass(frozen=True)
class MasterAddress:
    """``url`` has scheme, host and port and no slash at its end."""

    url: str
    source: AddressSource
    local: LocalCluster | None = None
    """The local cluster's record if ``url`` is its address, wherever ``url`` comes from."""
    variable: str | None = None
    """The environment variable that names the address, if one does."""

    @property
    def chosen(self) -> bool:
        """Whether the user named this address, so that nothing may be started in its place."""
        return self.source in (AddressSource.ARGUMENT, AddressSource.ENVIRONMENT)

    def is_meant(self, answer: object) -> bool:
        """Whether ``answer``, the answer of `/api/v1/master` at this address, comes from the right cluster.

        While the local cluster is down, another user's cluster may have taken its port. A program that is
        no cluster may answer with any JSON.
        """
        if not isinstance(answer, dict) or "clusterId" not in answer:
            return False
        return self.local is None or bool(answer["clusterId"] == self.local.cluster_id)


def find(given: str | None = None) -> MasterAddress:
    """The first of: ``given``, ``$DET_MASTER``, ``$DET_MASTER_ADDR``, the local cluster,
    ``http://localhost:8080``.

    Raises ValueError for an invalid address, or a damaged record of the local cluster.
    """
    if given:
        return _named(given, AddressSource.ARGUMENT)
    for variable in VARIABLES:
        value = os.environ.get(variable)
        if value:
            return _named(value, AddressSource.ENVIRONMENT, variable)
    record = local_cluster.read()
    if record is not None:
        return MasterAddress(canonical(record.master_url), AddressSource.LOCAL_CLUSTER, record)
    return MasterAddress(DEFAULT_URL, AddressSource.DEFAULT)


def canonical(address: str) -> str:
    """``host`` → ``http://host:8080``, ``https://host`` → ``https://host:443``, without a path's end
    slash. Raises ValueError when there is no host in it."""
    text = address.strip()
    bare = "://" not in text
    parts = urlsplit(f"http://{text}" if bare else text)
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{address!r} is not an address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{address!r} is not an address; write http://host:port")
    if port is None:
        port = 8080 if bare else 443 if parts.scheme == "https" else 80
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}"


def _named(address: str, source: AddressSource, variable: str | None = None) -> MasterAddress:
    try:
        url = canonical(address)
    except ValueError as error:
        raise ValueError(f"{variable}: {error}" if variable else str(error)) from None
    record = local_cluster.read()
    mine = record is not None and canonical(record.master_url) == url
    return MasterAddress(url, source, record if mine else None, variable)

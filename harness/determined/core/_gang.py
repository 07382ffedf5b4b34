"""Lets the containers of one allocation find each other through the service."""

from __future__ import annotations

import uuid
from typing import Any

from determined._info import RendezvousInfo
from determined.core._connection import Connection

# The service gives up after ten minutes, and says who is missing.
PATIENCE_S = 630.0


def all_gather(connection: Connection, allocation_id: str, data: Any, num_peers: int) -> list[Any]:
    """The ``data`` (JSON) of all ``num_peers`` processes that call this, in the same order for each.

    A request is repeated if its answer is lost or a restart of the service interrupts it. Raises
    ConflictException when the others do not come within ten minutes.
    """
    body = {"requestUuid": str(uuid.uuid4()), "numPeers": num_peers, "data": data}
    path = f"/api/v1/allocations/{allocation_id}/all_gather"
    found: list[Any] = connection.post(path, json=body, timeout=PATIENCE_S)["data"]
    return found


def rendezvous(
    connection: Connection, allocation_id: str, resources_id: str, address: str
) -> RendezvousInfo:
    """Tell the service this container's ``address``. Returns all addresses once every container has told
    its own.

    Raises ConflictException, which names the missing containers, after ten minutes.
    """
    path = f"/api/v1/allocations/{allocation_id}/resources/{resources_id}/rendezvous"
    connection.post(path, json={"address": address})
    found = connection.get(path, timeout=PATIENCE_S)["rendezvousInfo"]
    return RendezvousInfo(found["addresses"], found["rank"], found["slots"])

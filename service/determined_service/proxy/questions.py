"""The question to the service whether a visitor may use a port, and the answer if so."""

from __future__ import annotations

from dataclasses import dataclass

from determined_service.proxy.names import Key


@dataclass(frozen=True, slots=True)
class Ask:
    """The question to the service: may the holder of these credentials use this port?"""

    key: Key
    bearer: str
    cookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """The target of a request. ``allocation_id``, ``user_id``: whose connections are counted together;
    ``gate``: the key of the gate there, in hex, if there is one."""

    address: str
    port: int
    tcp: bool
    keep_prefix: bool
    allocation_id: str
    user_id: int
    gate: str = ""

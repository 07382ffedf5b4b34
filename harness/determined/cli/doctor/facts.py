"""What is known about a cluster before anybody judges it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Local:
    """The cluster on this machine: its record and its processes."""

    data_dir: str
    components: list[dict[str, Any]] | None
    """As `det deploy local status --json` has them; None: it cannot be asked (``problem``)."""
    problem: str | None = None
    prefect_url: str = ""
    prefect_problem: str | None = None
    """Why Prefect's API did not answer from here; None: it did."""
    disk: dict[str, Any] | None = None
    """``path``, ``freeBytes``, ``totalBytes`` of the data directory."""


@dataclass(frozen=True)
class Facts:
    """All of it. Seconds and bytes."""

    url: str
    client_version: str
    master: dict[str, Any] | None = None
    """What the service says of itself; None: it does not answer (``service_problem``)."""
    service_problem: str | None = None
    is_meant: bool = True
    """False: another cluster answers at the address."""
    not_ready: dict[str, str] = field(default_factory=dict)
    """``database`` and ``prefect``, as far as the service says that they do not answer."""
    report: dict[str, Any] | None = None
    report_problem: str | None = None
    """Why there is no report although the service is ready, say that one is not logged in."""
    service_ahead_s: float | None = None
    """The service's clock minus this machine's."""
    uncertainty_s: float = 0.0
    """Half of the time that the answer took: what the difference may be wrong by."""
    local: Local | None = None

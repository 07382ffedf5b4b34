"""The facts about a cluster, from which the doctor makes its findings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Local:
    """The cluster on this machine: its record and its processes."""

    data_dir: str
    components: list[dict[str, Any]] | None
    """The output of `det deploy local status --json`; None if it failed (see ``problem``)."""
    problem: str | None = None
    prefect_url: str = ""
    prefect_problem: str | None = None
    """The reason for which Prefect's API did not answer this machine; None if it did."""
    disk: dict[str, Any] | None = None
    """``path``, ``freeBytes`` and ``totalBytes`` of the data directory."""


@dataclass(frozen=True)
class Facts:
    """All facts. Times are in seconds, sizes in bytes."""

    url: str
    client_version: str
    master: dict[str, Any] | None = None
    """The service's description of itself; None if it does not answer (see ``service_problem``)."""
    service_problem: str | None = None
    is_slow: bool = False
    """Whether the service took a request and did not answer it in time."""
    is_meant: bool = True
    """False if another cluster answers at the address."""
    not_ready: dict[str, str] = field(default_factory=dict)
    """The reason for each part (``database``, ``prefect``, ``service``) that is not ready."""
    report: dict[str, Any] | None = None
    report_problem: str | None = None
    """Why there is no report although the service is ready."""
    needs_login: bool = False
    """Whether there is no report because of a missing login."""
    service_ahead_s: float | None = None
    """The service's clock minus this machine's."""
    uncertainty_s: float = 0.0
    """The time that the answer took, by which the clocks' difference may be wrong."""
    local: Local | None = None

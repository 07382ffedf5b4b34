"""Settings of the service: one JSON file, named by ``DET_SERVICE_CONFIG``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, field_validator

from determined.common.cluster_config import ClusterConfig, stored
from determined_service.base.addresses import is_loopback


@dataclass
class _InForce:
    """Shared by all copies of the settings, so that a new configuration reaches every holder."""

    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    refusal: str = ""


class Settings(BaseModel):
    """The settings of one service process; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")

    host: str = "127.0.0.1"
    port: int = 8080
    public_url: str | None = None
    """The address of the service for browsers, ``https://name:port``. None: host and port as above."""
    proxy_host: str | None = None
    """Host names of tasks in browsers, such as ``https://*.tasks.example.com``, for which DNS and
    certificates have a wildcard (docs/sit-down/proxy.md). None: names below ``localhost``, for visitors on
    the service's machine; empty: none at all."""
    db_url: str
    """``postgresql://user:password@host:port/database`` (or ``?host=/socket/dir``)."""
    mlflow_db_url: str | None = None
    """The same database for MLflow's server, as a role that at each start of the service gets the right to
    read the tables that MLflow's pages show, and no others. None: as ``db_url``, in sessions that only
    read."""
    mlflow_idle_s: float = 900.0
    """Seconds without a request after which MLflow's server is ended; the next one starts it."""
    prefect_api_url: str | None = None
    """Prefect's API, ``http://host:port/api``. None: no Prefect (unit tests of the REST API)."""
    prefect_auth: SecretStr | None = None
    """``user:password`` of Prefect's API."""
    data_dir: Path = Path()
    cluster_id: str = "00000000-0000-0000-0000-000000000000"
    cluster_name: str = "determined"
    bootstrap_passwords: dict[str, SecretStr] = Field(default_factory=dict)
    """First passwords of the built-in users; used only when the user is created."""
    agent_token: SecretStr
    """Shared secret of agents and flows (`/internal/v1`)."""
    default_checkpoint_storage: dict[str, Any] | None = None
    """Of experiments without one, unless the cluster configuration has one."""
    cluster_config_file: Path | None = None
    """The cluster configuration (YAML, docs/operate/cluster-config.md). None: one pool, ``default``."""
    local_agents: list[str] = Field(default_factory=list)
    """Agents that are always started in the default compute pool, whichever that is: they do not keep a pool
    in the configuration."""
    agent_timeout_s: float = 30.0
    """Seconds without a heartbeat after which an agent counts as lost."""
    start_timeout_s: float = 300.0
    """Seconds from the assignment of slots to the running process, after which a leg is given back."""
    stuck_run_s: float = 300.0
    """Seconds that a run may be Cancelling or Pending in Prefect before it is brought to an end."""

    _in_force: _InForce = PrivateAttr(default_factory=_InForce)

    @property
    def cluster(self) -> ClusterConfig:
        """The cluster configuration in force: pools, their schedulers, defaults of tasks.

        Ask each time: another process of the service may put a new one into force.
        """
        return self._in_force.cluster

    @property
    def cluster_refusal(self) -> str:
        """The reason why the file is not in force; empty if it is."""
        return self._in_force.refusal

    def put_in_force(self, cluster: ClusterConfig, refusal: str = "") -> None:
        """Makes ``cluster`` the configuration of these settings and of all copies of them.

        ``refusal``: why it is not the one that was wanted.
        """
        self._in_force.cluster, self._in_force.refusal = cluster, refusal

    @property
    def checkpoint_storage(self) -> dict[str, Any] | None:
        """Of experiments without one: the cluster configuration's, else the one in these settings."""
        found = self.cluster.checkpoint_storage
        return self.default_checkpoint_storage if found is None else stored(found)

    @property
    def is_reachable(self) -> bool:
        """True if other machines reach the service: it listens on more than loopback, or has a public
        address."""
        public = urlsplit(self.public_url or "").hostname
        return not is_loopback(self.host) or (public is not None and not is_loopback(public))

    @field_validator("proxy_host")
    @classmethod
    def _is_pattern(cls, value: str | None) -> str | None:
        if value and not re.fullmatch(r"https?://\*(\.[a-z0-9-]+)+(:[0-9]+)?", value):
            raise ValueError(
                "must be like https://*.tasks.example.com: a star, then a name, no path"
            )
        return value

    @classmethod
    def load(cls) -> Settings:
        """Reads the file named by ``DET_SERVICE_CONFIG``."""
        path = os.environ.get("DET_SERVICE_CONFIG")
        if not path:
            raise SystemExit("DET_SERVICE_CONFIG must name the service's settings file (JSON)")
        return cls.model_validate_json(Path(path).read_text())

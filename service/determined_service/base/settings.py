"""Settings of the service: one JSON file, named by ``DET_SERVICE_CONFIG``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from determined_service.base.addresses import is_loopback


class Settings(BaseModel):
    """What one service process needs to know; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")

    host: str = "127.0.0.1"
    port: int = 8080
    public_url: str | None = None
    """Where browsers reach the service, ``https://name:port``. None: host and port as above."""
    db_url: str
    """``postgresql://user:password@host:port/database`` (or ``?host=/socket/dir``)."""
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
    agent_timeout_s: float = 30.0
    """Seconds without a heartbeat after which an agent counts as lost."""
    start_timeout_s: float = 300.0
    """Seconds from the assignment of slots to the running process, after which a leg is given back."""
    stuck_run_s: float = 300.0
    """Seconds that a run may be Cancelling or Pending in Prefect before it is brought to an end."""

    @property
    def is_reachable(self) -> bool:
        """Whether other machines reach the service: it listens on more than loopback, or has a public
        address."""
        public = urlsplit(self.public_url or "").hostname
        return not is_loopback(self.host) or (public is not None and not is_loopback(public))

    @classmethod
    def load(cls) -> Settings:
        """Reads the file named by ``DET_SERVICE_CONFIG``."""
        path = os.environ.get("DET_SERVICE_CONFIG")
        if not path:
            raise SystemExit("DET_SERVICE_CONFIG must name the service's settings file (JSON)")
        return cls.model_validate_json(Path(path).read_text())

"""Settings of the service: one file (YAML or JSON), named by ``DET_SERVICE_CONFIG``.

docs/reference/settings.md is written from the comments of the fields (``make docs``).
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
)

from determined.common.cluster_config import ClusterConfig, stored
from determined_service.base.networks import is_loopback
from determined_service.base.policy import Policies


@dataclass
class _InForce:
    """Shared by all copies of the settings, so that a new configuration reaches every holder."""

    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    refusal: str = ""
    policies: Policies = field(default_factory=Policies)
    policies_turn: int = -1
    turns: Iterator[int] = field(default_factory=itertools.count)


class Settings(BaseModel):
    """The settings of one service process; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")

    host: str = "127.0.0.1"
    """The address where it listens."""
    port: int = 8080
    """The port where it listens."""
    public_url: str | None = None
    """The address of the service for browsers, ``https://name:port``. None: host and port as above."""
    proxy_host: str | None = None
    """Host names of tasks in browsers, such as ``https://*.tasks.example.com``, for which DNS and
    certificates have a wildcard. None: names below ``localhost``, for visitors on
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
    prefect_db_url: SecretStr | None = None
    """The database of Prefect's server, as ``db_url``: for ``det deploy prefect``, which reads this file,
    too. The service does not use it."""
    prefect_redis_url: SecretStr | None = None
    """``redis://:password@host:6379/0``, which several processes of Prefect's server on one database need
    between them: for ``det deploy prefect``, with the package prefect-redis. None: one process."""
    db_wait_s: float = Field(300.0, ge=0)
    """Seconds that ``det deploy service``, ``prefect`` and ``migrate`` wait for a Postgres that is not up
    yet, before they end with the reason. A refused login ends them at once."""
    trusted_proxies: list[str] = Field(default_factory=list)
    """Addresses of reverse proxies, or networks (``10.0.0.0/24``) of them: the service believes them who the
    visitor is, and that the way is encrypted (``X-Forwarded-For``, ``X-Forwarded-Proto``). The variable
    ``FORWARDED_ALLOW_IPS`` wins."""
    data_dir: Path = Path()
    """A directory of the service's own."""
    cluster_id: str = "00000000-0000-0000-0000-000000000000"
    """Part of the paths in the checkpoint storage, so clusters that share one need different ids."""
    cluster_name: str = "determined"
    """What people read."""
    bootstrap_passwords: dict[str, SecretStr] = Field(default_factory=dict)
    """First passwords of the built-in users; used only when the user is created."""
    agent_token: SecretStr
    """Shared secret of agents and flows (`/internal/v1`)."""
    default_checkpoint_storage: dict[str, Any] | None = None
    """Of experiments without one, unless the cluster configuration has one."""
    cluster_config_file: Path | None = None
    """The cluster configuration (YAML). None: one pool, ``default``."""
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
        """Make ``cluster`` the configuration of these settings and of all their copies.

        ``refusal``: the reason why the requested one is not in force.
        """
        self._in_force.cluster, self._in_force.refusal = cluster, refusal

    @property
    def policies(self) -> Policies:
        """The config policies in force. Ask each time, as for :attr:`cluster`."""
        return self._in_force.policies

    def next_turn(self) -> int:
        """For who reads the policies, before the reading: see :meth:`put_policies_in_force`."""
        return next(self._in_force.turns)

    def put_policies_in_force(self, policies: Policies, turn: int) -> None:
        """Make these the policies of these settings and of all their copies, unless others are in force that
        were read in a later ``turn``."""
        if turn > self._in_force.policies_turn:
            self._in_force.policies, self._in_force.policies_turn = policies, turn

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
        """Reads the file named by ``DET_SERVICE_CONFIG``. Raises SystemExit with its mistakes."""
        path = os.environ.get("DET_SERVICE_CONFIG")
        if not path:
            raise SystemExit(
                "DET_SERVICE_CONFIG must name the service's settings file (YAML or JSON)"
            )
        try:
            return cls.model_validate(yaml.safe_load(Path(path).read_text()))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise SystemExit(f"{path} cannot be read: {error}") from None
        except ValidationError as error:
            # Without the values, because most are secrets.
            found = [
                f"{path}: {'.'.join(map(str, one['loc'])) or 'the file'}: {one['msg']}{cls._nearest(one)}"
                for one in error.errors(include_url=False, include_input=False)
            ]
            raise SystemExit("\n".join(found)) from None

    @classmethod
    def _nearest(cls, error: Mapping[str, Any]) -> str:
        if error["type"] != "extra_forbidden":
            return ""
        near = difflib.get_close_matches(str(error["loc"][-1]), cls.model_fields, 1)
        return f"; did you mean {near[0]}?" if near else ""

"""``cluster.json``: the properties that a cluster gets when it is made and keeps over restarts."""

from __future__ import annotations

import secrets
import socket
import uuid
from typing import Literal

from pydantic import BaseModel, Field, ValidationError, computed_field

from determined_deployments.agent.config import DefaultTask
from determined_deployments.local.errors import ClusterError
from determined_deployments.local.layout import Layout, write_private

HOST = "127.0.0.1"
USERS = ("determined", "admin")
DATABASES = ("prefect", "determined")
"""The names of Prefect's database and of this platform's; neither side reads the other's."""


class LocalSlot(BaseModel):
    """One unit of scheduling: a GPU (``device`` is its uuid) or one CPU slot (``"cpu"``)."""

    id: int
    device: str


class ClusterState(BaseModel):
    """Identity, addresses and credentials; the file holds secrets (mode 0600)."""

    version: Literal[1] = 1
    cluster_id: str = Field(default_factory=lambda: str(uuid.uuid4()))
    cluster_name: str = "determined"
    agent_id: str = Field(default_factory=socket.gethostname)
    master_port: int = 8080
    prefect_port: int = 4200
    postgres_port: int | None = None
    external_db_url: str | None = None
    """The server given by ``--db-url``; None: the Postgres in the data directory."""
    db_password: str = Field(default_factory=lambda: secrets.token_urlsafe(24))
    """The password of the superuser of the cluster's own Postgres; only `cluster-up` uses it."""
    db_passwords: dict[str, str] = Field(
        default_factory=lambda: {name: secrets.token_urlsafe(24) for name in DATABASES}
    )
    """Of each database's owner."""
    mlflow_db_password: str = Field(default_factory=lambda: secrets.token_urlsafe(24))
    """Of the role as which MLflow's server reads."""
    passwords: dict[str, str] = Field(
        default_factory=lambda: {user: secrets.token_urlsafe(15) for user in USERS}
    )
    """First passwords of the built-in users."""
    prefect_auth: str = Field(default_factory=lambda: f"determined:{secrets.token_urlsafe(15)}")
    agent_token: str = Field(default_factory=lambda: secrets.token_urlsafe(32))
    slot_type: Literal["cpu", "cuda"] = "cpu"
    slots: list[LocalSlot] = Field(default_factory=list)
    slots_wanted: int | None = None
    """``--slots``, kept for later starts; None: as many as there are."""
    gpu_wanted: bool | None = None
    """``--gpu`` / ``--no-gpu``, kept for the next start."""
    pool: str = "default"
    """The resource pool that the agent joins."""
    other_pools: list[str] = Field(default_factory=list)
    """The pools with a separate agent beside the agent of the flows."""
    one_agent: bool = False
    """``--agents 1``: no other pool gets an agent."""
    default_task: DefaultTask | None = None
    """``--task-user``: the account of trials; None: the agent's own."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def master_url(self) -> str:
        """The service."""
        return f"http://{HOST}:{self.master_port}"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def prefect_url(self) -> str:
        """Prefect's UI; its API is ``/api`` below."""
        return f"http://{HOST}:{self.prefect_port}"

    @property
    def prefect_api_url(self) -> str:
        return f"{self.prefect_url}/api"

    @property
    def marker(self) -> str:
        """The value of ``DETERMINED_LOCAL_CLUSTER`` in the environment of every process of this cluster."""
        return self.cluster_id


def load(layout: Layout) -> ClusterState | None:
    """The recorded cluster; None when there is none. Raises ClusterError for a damaged record."""
    try:
        text = layout.state.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ClusterError(f"cannot read {layout.state}: {error.strerror}") from error
    try:
        return ClusterState.model_validate_json(text)
    except ValidationError as error:
        where = ", ".join(".".join(map(str, e["loc"])) or e["msg"] for e in error.errors())
        raise ClusterError(
            f"{layout.state} is damaged ({where}): restore it from a backup, or delete this "
            "cluster's data with `det deploy local cluster-down --delete-db`"
        ) from error


def save(layout: Layout, state: ClusterState) -> None:
    """Writes ``cluster.json`` (atomic, mode 0600) when something changed."""
    text = state.model_dump_json(indent=2) + "\n"
    if layout.state.exists() and layout.state.read_text() == text:
        return
    write_private(layout.state, text)

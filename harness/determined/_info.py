"""The facts a task has about where it runs, read from the ``DET_*`` environment or else from the info files.

The agent sets the environment and writes the same facts to
``$DET_RUN_DIR/info/{cluster,trial,rendezvous,resources}_info.json`` for launch layers that start processes
with a different environment. The files' keys are the constructor arguments here; unknown keys are ignored, so
that an older harness runs under a newer agent.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeVar

from determined.constants import DEFAULT_RUN_DIR

T = TypeVar("T", bound="_InfoFile")

# A process that has all of these runs on the cluster. (DET_MASTER alone does not say so: users set
# it on their laptops for `det`.)
REQUIRED_ENV = (
    "DET_MASTER",
    "DET_CLUSTER_ID",
    "DET_AGENT_ID",
    "DET_SLOT_IDS",
    "DET_TASK_ID",
    "DET_ALLOCATION_ID",
    "DET_SESSION_TOKEN",
    "DET_TASK_TYPE",
)


def info_dir() -> Path:
    """Directory of the info files of this task."""
    return Path(os.environ.get("DET_RUN_DIR", DEFAULT_RUN_DIR)) / "info"


class _InfoFile:
    """Reading and writing of one info file; ``_stem`` names it."""

    _stem = ""

    def _fields(self) -> dict[str, Any]:
        raise NotImplementedError

    def _to_file(self, directory: Path | None = None) -> None:
        """Write the file (mode 0600: the cluster's holds a token) into ``directory``."""
        directory = info_dir() if directory is None else directory
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self._stem}_info.json"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(self._fields(), file)

    @classmethod
    def _from_file(cls: type[T], directory: Path | None = None) -> T | None:
        import inspect  # only launch layers come here; the environment needs none of it

        directory = info_dir() if directory is None else directory
        try:
            fields = json.loads((directory / f"{cls._stem}_info.json").read_text())
        except FileNotFoundError:
            return None
        known = inspect.signature(cls).parameters
        return cls(**{key: value for key, value in fields.items() if key in known})


class RendezvousInfo(_InfoFile):
    """The containers of this allocation: addresses, this one's rank, slots of each."""

    _stem = "rendezvous"

    def __init__(
        self, container_addrs: list[str], container_rank: int, container_slot_counts: list[int]
    ) -> None:
        self.container_addrs = container_addrs
        self.container_rank = container_rank
        self.container_slot_counts = container_slot_counts

    def _fields(self) -> dict[str, Any]:
        return dict(vars(self))


class ResourcesInfo(_InfoFile):
    """The accelerators of this container."""

    _stem = "resources"

    def __init__(self, gpu_uuids: list[str]) -> None:
        self.gpu_uuids = gpu_uuids

    def _fields(self) -> dict[str, Any]:
        return dict(vars(self))


class TrialInfo(_InfoFile):
    """The trial this task trains. Underscored attributes may change between releases."""

    _stem = "trial"

    def __init__(
        self,
        trial_id: int,
        experiment_id: int,
        trial_seed: int,
        hparams: dict[str, Any],
        config: dict[str, Any],
        steps_completed: int = 0,
        trial_run_id: int = 1,
        debug: bool = False,
        inter_node_network_interface: str | None = None,
    ) -> None:
        self.trial_id = trial_id
        self.experiment_id = experiment_id
        self.trial_seed = trial_seed
        self.hparams = hparams
        self._config = config
        self._steps_completed = steps_completed
        self._trial_run_id = trial_run_id
        self._debug = debug
        self._inter_node_network_interface = inter_node_network_interface

    def _fields(self) -> dict[str, Any]:
        return {key.lstrip("_"): value for key, value in vars(self).items()}

    @classmethod
    def _from_env(cls) -> TrialInfo:
        env = os.environ
        config = json.loads(env["DET_EXPERIMENT_CONFIG"])
        return cls(
            trial_id=int(env["DET_TRIAL_ID"]),
            experiment_id=int(env["DET_EXPERIMENT_ID"]),
            trial_seed=int(env["DET_TRIAL_SEED"]),
            hparams=json.loads(env["DET_HPARAMS"]),
            config=config,
            steps_completed=int(env.get("DET_STEPS_COMPLETED") or 0),
            trial_run_id=int(env.get("DET_TRIAL_RUN_ID") or 1),
            debug=bool(config.get("debug")),
            inter_node_network_interface=env.get("DET_INTER_NODE_NETWORK_INTERFACE"),
        )


class ClusterInfo(_InfoFile):
    """The task and where it runs.

    A script that depends on this object runs only on a cluster. ``core.init()`` works off the cluster too.
    ``task_type`` is TRIAL, NOTEBOOK, SHELL, COMMAND, TENSORBOARD or CHECKPOINT_GC.
    """

    _stem = "cluster"

    def __init__(
        self,
        master_url: str,
        cluster_id: str,
        agent_id: str,
        slot_ids: list[int],
        task_id: str,
        allocation_id: str,
        session_token: str,
        task_type: str,
        master_cert_name: str | None = None,
        master_cert_file: str | None = None,
        latest_checkpoint: str | None = None,
        trial_info: TrialInfo | None = None,
        rendezvous_info: RendezvousInfo | None = None,
        resources_info: ResourcesInfo | None = None,
    ) -> None:
        self.master_url = master_url
        self.cluster_id = cluster_id
        self.agent_id = agent_id
        self.slot_ids = slot_ids
        self.task_id = task_id
        self.allocation_id = allocation_id
        self.session_token = session_token
        self.task_type = task_type
        self.master_cert_name = master_cert_name
        self.master_cert_file = master_cert_file
        self._latest_checkpoint = latest_checkpoint
        self._trial_info = trial_info
        self._rendezvous_info = rendezvous_info
        self._resources_info = resources_info

    def _fields(self) -> dict[str, Any]:
        parts = ("_trial_info", "_rendezvous_info", "_resources_info")
        return {key.lstrip("_"): value for key, value in vars(self).items() if key not in parts}

    def __repr__(self) -> str:
        # Without the session token: logs must not carry it.
        return f"ClusterInfo(task_id={self.task_id!r}, task_type={self.task_type!r})"

    @classmethod
    def _from_env(cls) -> ClusterInfo:
        env = os.environ
        return cls(
            master_url=env["DET_MASTER"],
            cluster_id=env["DET_CLUSTER_ID"],
            agent_id=env["DET_AGENT_ID"],
            slot_ids=json.loads(env["DET_SLOT_IDS"]),
            task_id=env["DET_TASK_ID"],
            allocation_id=env["DET_ALLOCATION_ID"],
            session_token=env["DET_SESSION_TOKEN"],
            task_type=env["DET_TASK_TYPE"],
            master_cert_name=env.get("DET_MASTER_CERT_NAME"),
            master_cert_file=env.get("DET_MASTER_CERT_FILE"),
            latest_checkpoint=env.get("DET_LATEST_CHECKPOINT") or None,
            trial_info=_trial_info() if env["DET_TASK_TYPE"] == "TRIAL" else None,
        )

    @property
    def latest_checkpoint(self) -> str | None:
        """Uuid of the checkpoint to start from; None at a trial's start and for other tasks."""
        return self._latest_checkpoint if self.task_type == "TRIAL" else None

    @property
    def user_data(self) -> dict[str, Any]:
        """The ``data`` section of the experiment's configuration; empty for other tasks."""
        if self.task_type != "TRIAL":
            return {}
        return self.trial._config.get("data") or {}

    @property
    def trial(self) -> TrialInfo:
        """Raises RuntimeError unless the task is a trial."""
        if self.task_type != "TRIAL" or self._trial_info is None:
            raise RuntimeError(
                f"this task is a {self.task_type} and has no trial; info.trial is for tasks of type TRIAL"
            )
        return self._trial_info

    @property
    def container_addrs(self) -> list[str]:
        """One address per container of the allocation, in the order of container ranks."""
        return self._rendezvous_info.container_addrs if self._rendezvous_info else ["127.0.0.1"]

    @property
    def container_slot_counts(self) -> list[int]:
        if self._rendezvous_info:
            return self._rendezvous_info.container_slot_counts
        return [len(self.slot_ids)]

    @property
    def container_rank(self) -> int:
        return self._rendezvous_info.container_rank if self._rendezvous_info else 0

    @property
    def gpu_uuids(self) -> list[str]:
        return self._resources_info.gpu_uuids if self._resources_info else []


def _load() -> ClusterInfo | None:
    info: ClusterInfo | None
    if all(name in os.environ for name in REQUIRED_ENV):
        info = ClusterInfo._from_env()
    else:
        info = ClusterInfo._from_file()
        if info is None:
            return None
        info._trial_info = TrialInfo._from_file()
    if info.task_type == "TRIAL":
        info._rendezvous_info = RendezvousInfo._from_file()
    info._resources_info = ResourcesInfo._from_file()
    return info


def _trial_info() -> TrialInfo | None:
    # A configuration too large for an environment variable (128 kB on Linux) is only in the file.
    if "DET_EXPERIMENT_CONFIG" in os.environ:
        return TrialInfo._from_env()
    return TrialInfo._from_file()


_loaded: list[ClusterInfo | None] = []


def get_cluster_info() -> ClusterInfo | None:
    """The task this process belongs to, or None off-cluster. Read once per process."""
    if not _loaded:
        _loaded.append(_load())
    return _loaded[0]

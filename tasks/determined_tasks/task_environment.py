"""The environment and the info files of a training process (``DET_*``)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import urlsplit

from determined.common import nvml
from determined.common.api import Session
from determined.common.wire import mlflow, no_telemetry
from determined.common.wire.legs import AgentUser, LegSpec
from determined.storage import beneath
from determined_tasks import identity
from determined_tasks.context_dir import ContextDir
from determined_tasks.entrypoint import CLUSTER_HOOK
from determined_tasks.identity import Identity
from determined_tasks.limits import Limits

# Linux refuses to start a process with a single variable above 128 KiB; a longer one is left to the info
# files, where determined.get_cluster_info() finds it too.
LONGEST_VARIABLE = 100_000
MOST_INFO_BYTES = 1 << 20

# The agent's own settings and secrets are not the training process's business.
NOT_INHERITED = ("DET_", "PREFECT_")


@dataclass(frozen=True)
class AgentSide:
    """The agent's side of a leg's environment.

    ``token``: what the supervisor shows the service, good for its allocation alone; the agents' own where the
    service is of the release before.
    ``slot_type`` is ``cpu`` or ``cuda``; ``device_uuids`` maps slot ids to device uuids.
    ``slots``: how many the agent has in all; 0: not known. ``default_task`` and ``allow_root`` are the
    agent's settings ``security``; ``checkpoint_dir`` is the cluster's own checkpoint storage, if it is a
    directory. ``limits``: what a leg may use; None: nobody limits it (under a stock Prefect worker).
    ``shares_packages``: what trials install is their experiment's, and goes when that has ended;
    else each leg has its own. ``compiled_bytes``: how much of what trials compile is kept for the next ones
    (:mod:`determined_tasks.compiled_code`); 0: nothing. ``in_pod``: the supervisor is the main process of a
    pod, which has the leg's devices, mounts, account and limits alone. ``grace_seconds``: how long the
    machine stays after a SIGTERM to the supervisor (:mod:`determined_tasks.going_away`); None: the leg ends
    at once.
    """

    work_dir: Path
    master: str
    token: str
    agent_id: str
    slot_type: str = "cpu"
    device_uuids: Mapping[int, str] | None = None
    slots: int = 0
    default_task: AgentUser | None = None
    allow_root: bool = False
    checkpoint_dir: Path | None = None
    limits: Limits | None = None
    shares_packages: bool = True
    compiled_bytes: int = 0
    in_pod: bool = False
    grace_seconds: float | None = None

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> AgentSide:
        """From its arguments in JSON. Those of an agent of a newer release, whose tasks' image is older, may
        be more than are known here."""
        known = {one.name for one in fields(cls)} | {"agent_token"}
        place = {name: value for name, value in given.items() if name in known}
        # An order of the release before, which a supervisor of this one takes over.
        place.setdefault("token", place.pop("agent_token", ""))
        place["work_dir"] = Path(place["work_dir"])
        uuids = place.get("device_uuids") or {}
        place["device_uuids"] = {int(slot): uuid for slot, uuid in uuids.items()}
        if place.get("default_task") is not None:
            place["default_task"] = AgentUser.from_json(place["default_task"])
        if place.get("limits") is not None:
            place["limits"] = Limits.from_json(place["limits"])
        if place.get("checkpoint_dir") is not None:
            place["checkpoint_dir"] = Path(place["checkpoint_dir"])
        return cls(**place)

    def session(self) -> Session:
        """Requests to the service, each of which may be repeated."""
        return Session(self.master, self.token, max_retries=1)


def build(
    spec: LegSpec, place: AgentSide, context: ContextDir, account: Identity | None = None
) -> dict[str, str]:
    """The whole environment: the agent's, the platform's ``DET_*``, then the user's own variables.

    ``PATH`` begins with the directory of what the code installs, then that of this interpreter: ``python3``
    is this interpreter with both.
    """
    own = identity.inherited(account, os.environ)
    env = {key: value for key, value in own.items() if not key.startswith(NOT_INHERITED)}
    env.update(identity.variables(account, context.workdir))
    bin_dir = str(Path(sys.executable).parent)
    paths = [path for path in env.get("PATH", os.defpath).split(os.pathsep) if path != bin_dir]
    env["PATH"] = os.pathsep.join([bin_dir, *paths])
    # Lines reach the log when they are printed, and a crash in native code leaves a trace.
    env["PYTHONUNBUFFERED"] = "1"
    env["PYTHONFAULTHANDLER"] = "1"
    env["TMPDIR"] = str(context.tmp)
    # Not where the cluster was started from.
    env["PWD"] = str(context.workdir)
    env.pop("OLDPWD", None)
    kind = "kubernetes-job" if place.in_pod else "process"
    env.update(variables(spec, place, context.workdir, context.run_dir, kind))
    if place.slot_type == "cuda" and not place.in_pod:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(_devices(spec, place))
    elif place.slots:
        env.setdefault("OMP_NUM_THREADS", str(threads(spec, place)))
    env.update(spec.env)
    env.update(context.packages.environment(env))
    users = spec.user_environment()
    if users.get("PYTHONPATH"):
        users["PYTHONPATH"] += os.pathsep + str(context.packages.site)
    env.update(users)
    if place.slot_type == "cuda" and not place.in_pod:
        # Another order would give the leg another's GPUs.
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return {key: value for key, value in env.items() if len(value) <= LONGEST_VARIABLE}


def _devices(spec: LegSpec, place: AgentSide) -> list[str]:
    """The leg's GPUs as CUDA names them."""
    uuids = place.device_uuids or {}
    named = [uuids[slot] for slot in spec.slot_ids if uuids.get(slot)]
    if len(named) < len(spec.slot_ids):
        # Slots that the agent's configuration only counts.
        return [uuids.get(slot) or str(slot) for slot in spec.slot_ids]
    try:
        return nvml.cuda_names(named)
    except ImportError:
        return named


def work_dir(spec: LegSpec, account: Identity | None, default: Path) -> Path:
    """The directory in which the process starts: ``default``, or the task's ``work_dir`` with its names
    filled in.

    ``$AGENT_USER`` is the account of the process, ``$DET_USER`` the task's owner; a relative path is below
    ``default``.
    """
    if spec.work_dir is None:
        return default
    agent_user = account.name if account is not None else identity.own_name() or str(os.getuid())
    names = {"AGENT_USER": agent_user, "DET_USER": spec.owner}
    return default / Template(spec.work_dir).safe_substitute(names)


def variables(
    spec: LegSpec, place: AgentSide, workdir: Path, run_dir: Path, resources_type: str = "process"
) -> dict[str, str]:
    """The platform's ``DET_*``, and what keeps libraries from reporting their use.

    ``workdir`` and ``run_dir``: their paths as the task sees them.
    """
    found = _task_variables(spec, place, workdir, run_dir, resources_type) | no_telemetry.VARIABLES
    if spec.trial_id is not None:
        found.update(_trial_variables(spec))
        found.update(_mlflow_variables(spec, place))
    return found


def threads(spec: LegSpec, place: AgentSide) -> int:
    """The task's share of the cores. Without it every trial computes with as many threads as there are
    cores, and trials side by side wait for each other's."""
    return max(1, len(os.sched_getaffinity(0)) * len(spec.slot_ids) // place.slots)


def _task_variables(
    spec: LegSpec, place: AgentSide, workdir: Path, run_dir: Path, resources_type: str
) -> dict[str, str]:
    url = urlsplit(place.master)
    tls = url.scheme == "https"
    port = str(url.port or (443 if tls else 80))
    resources_id = f"{spec.allocation_id}.{spec.node}"
    return {
        "DET_MASTER": place.master,
        "DET_MASTER_HOST": url.hostname or "",
        "DET_MASTER_ADDR": url.hostname or "",
        "DET_MASTER_PORT": port,
        "DET_USE_TLS": "true" if tls else "false",
        "DET_CLUSTER_ID": spec.cluster_id,
        "DET_AGENT_ID": place.agent_id,
        "DET_TASK_ID": spec.task_id,
        "DET_TASK_TYPE": spec.task_type,
        "DET_ALLOCATION_ID": spec.allocation_id,
        "DET_RESOURCES_ID": resources_id,
        "DET_RESOURCES_TYPE": resources_type,
        "DET_CONTAINER_ID": resources_id,
        "DET_SLOT_IDS": json.dumps(spec.slot_ids),
        "DET_SESSION_TOKEN": spec.session_token,
        "DET_USER": spec.owner,
        "DET_WORKDIR": str(workdir),
        "DET_RUN_DIR": str(run_dir),
        "DET_TASK_LOGGING_METADATA": json.dumps(
            {"task_id": spec.task_id, "allocation_id": spec.allocation_id}
        ),
    }


def _trial_variables(spec: LegSpec) -> dict[str, str]:
    variables = {
        "DET_EXPERIMENT_ID": str(spec.experiment_id),
        "DET_TRIAL_ID": str(spec.trial_id),
        "DET_TRIAL_RUN_ID": str(spec.run_id),
        "DET_TRIAL_SEED": str(spec.trial_seed),
        "DET_EXPERIMENT_CONFIG": json.dumps(spec.config),
        "DET_HPARAMS": json.dumps(spec.hparams),
        "DET_STEPS_COMPLETED": str(spec.steps_completed),
    }
    if spec.latest_checkpoint:
        variables["DET_LATEST_CHECKPOINT"] = spec.latest_checkpoint
    return variables


def _mlflow_variables(spec: LegSpec, place: AgentSide) -> dict[str, str]:
    """By which MLflow's client logs to the trial's own run, with the trial's own rights.

    None of them where the user names another server: it must not be sent this cluster's token.
    """
    if not spec.mlflow or mlflow.TRACKING_URI in spec.user_environment():
        return {}
    return {
        mlflow.TRACKING_URI: place.master.rstrip("/") + mlflow.HOME,
        mlflow.TRACKING_TOKEN: spec.session_token,
        mlflow.RUN_ID: str(spec.trial_id),
    }


def has_met(run_dir: Path, nodes: int) -> bool:
    """True if the leg's process has found those on the other nodes of its gang."""
    if nodes == 1:
        return True
    try:
        # The process may have laid a link there, to what never ends say.
        with beneath.opened(run_dir, "info/rendezvous_info.json") as descriptor:
            found = json.loads(os.read(descriptor, MOST_INFO_BYTES))
        return len(found["container_addrs"]) == nodes
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_info_files(spec: LegSpec, place: AgentSide, run_dir: Path) -> None:
    """``<run_dir>/info/*.json``: the keys are the arguments of ``ClusterInfo`` and its parts; and the
    cluster's startup hook, if there is one.

    Mode 0600: one of them holds the session token.
    """
    if spec.defaults.startup_hook:
        (run_dir / CLUSTER_HOOK).write_text(spec.defaults.startup_hook + "\n")
    uuids = place.device_uuids or {}
    contents: dict[str, dict[str, Any]] = {
        "cluster": {
            "master_url": place.master,
            "cluster_id": spec.cluster_id,
            "agent_id": place.agent_id,
            "slot_ids": spec.slot_ids,
            "task_id": spec.task_id,
            "allocation_id": spec.allocation_id,
            "session_token": spec.session_token,
            "task_type": spec.task_type,
            "latest_checkpoint": spec.latest_checkpoint,
        },
        "rendezvous": {
            "container_addrs": ["127.0.0.1"],
            "container_rank": 0,
            "container_slot_counts": [len(spec.slot_ids)],
        },
        "resources": {"gpu_uuids": [uuids[i] for i in spec.slot_ids if uuids.get(i)]},
    }
    if spec.trial_id is not None:
        contents["trial"] = {
            "trial_id": spec.trial_id,
            "experiment_id": spec.experiment_id,
            "trial_seed": spec.trial_seed,
            "hparams": spec.hparams,
            "config": spec.config,
            "steps_completed": spec.steps_completed,
            "trial_run_id": spec.run_id,
            "debug": bool(spec.config.get("debug")),
            "inter_node_network_interface": None,
        }
    directory = run_dir / "info"
    directory.mkdir(exist_ok=True, mode=0o700)
    for name, content in contents.items():
        path = directory / f"{name}_info.json"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(content, file)

"""Starts an agent by hand: `det agent start`, and `prefect worker start` with one of our worker types.

Both become the process ``python -m determined_deployments.agent``; its settings file lies in its directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

import yaml

from determined.common import local_cluster
from determined.common.wire import limits, serving
from determined.expconf.resources import LABEL_KEY, LABEL_VALUE
from determined_deployments.agent.config import CONFIG_VARIABLE, AgentConfig, DefaultTask
from determined_deployments.agent.launchers import built_in
from determined_deployments.local import layout, slots, task_user
from determined_deployments.local.errors import ClusterError

LAUNCHERS = {"process": "fork_server", "docker": "docker", "kubernetes": "kubernetes"}
TOKEN_VARIABLE = serving.AGENT_TOKEN
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class StartError(ValueError):
    """The agent cannot be started as asked for; the message names the option."""


@dataclass(frozen=True)
class AgentOptions:
    """The options of `det agent start`.

    ``gpus``: ``all`` or a number. ``slots``: as of `cluster-up`. ``artificial_slots``: so many CPU slots,
    whatever the machine has. ``container``, ``limits``, ``rights``: the sections of the settings (``rights``:
    ``security.containers``). ``kubernetes``: the file with that section.
    """

    pool: str = "default"
    name: str | None = None
    kind: str = "process"
    slots: int | None = None
    gpus: str | None = None
    artificial_slots: int | None = None
    master: str | None = None
    container: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    rights: dict[str, Any] = field(default_factory=dict)
    kubernetes: Path | None = None
    labels: list[str] = field(default_factory=list)
    """``KEY=VALUE`` each."""
    task_user: str | None = None
    """As of `cluster-up`; None: the account that the local cluster gives to tasks."""


@dataclass(frozen=True)
class AgentCluster:
    """The cluster to which the agent belongs, and the secrets that the agent needs."""

    master_url: str
    agent_token: str
    prefect_api_url: str | None
    prefect_auth: str | None
    data_dir: Path
    checkpoint_dir: Path | None = None
    agent_ids: tuple[str, ...] = ()
    """Of the agents that a local cluster has by itself."""
    default_task: DefaultTask | None = None
    """The account of tasks on a local cluster (`cluster-up --task-user`)."""

    @classmethod
    def find(cls, master: str | None = None) -> AgentCluster | None:
        """By ``master`` or ``DET_MASTER`` with ``DET_AGENT_TOKEN``, else this user's local cluster; None:
        there is neither. Raises StartError.
        """
        env = os.environ
        url, token = master or env.get("DET_MASTER"), env.get(TOKEN_VARIABLE)
        if url and token:
            return cls(
                url,
                token,
                env.get("PREFECT_API_URL"),
                env.get("PREFECT_API_AUTH_STRING"),
                local_cluster.data_dir(),
            )
        from determined_deployments.local import agent, state

        try:
            found = state.load(layout.Layout.of())
        except ClusterError as error:
            raise StartError(str(error)) from None
        if found is None or (url and url.rstrip("/") != found.master_url):
            if url:
                raise StartError(
                    f"{url} is not the local cluster: set {TOKEN_VARIABLE} to the service's agent_token"
                )
            return None
        place = layout.Layout.of()
        return cls(
            found.master_url,
            found.agent_token,
            found.prefect_api_url,
            found.prefect_auth,
            place.root,
            place.checkpoints,
            tuple(agent.agent_ids(found)),
            found.default_task,
        )


def configure(wishes: AgentOptions) -> AgentConfig:
    """The agent's settings. Raises StartError."""
    if wishes.kind not in LAUNCHERS:
        raise StartError(f"--type: expected {', '.join(LAUNCHERS)}, found {wishes.kind!r}")
    cluster = AgentCluster.find(wishes.master)
    if cluster is None:
        raise StartError(
            "no cluster: start one with `det deploy local cluster-up`, or set DET_MASTER to the service's"
            f" address and {TOKEN_VARIABLE} to its agent_token"
        )
    name = wishes.name or f"{socket.gethostname()}-{wishes.pool}"
    if name in cluster.agent_ids:
        raise StartError(
            f"--name {name}: the local cluster's own agent has this name; choose another"
        )
    if not _NAME.fullmatch(name):
        raise StartError(
            f"--name: expected letters, digits, '_', '.' and '-', at most 128, found {name!r}"
        )
    is_on_kubernetes = wishes.kind == "kubernetes"
    return AgentConfig.model_validate(
        {
            "agent_id": name,
            "resource_pool": wishes.pool,
            **(_of_pods(wishes) if is_on_kubernetes else _of_machine(wishes, cluster)),
            "launcher": LAUNCHERS[wishes.kind],
            "master_url": cluster.master_url,
            "agent_token": cluster.agent_token,
            "prefect_api_url": cluster.prefect_api_url,
            "prefect_auth": cluster.prefect_auth,
            "work_dir": cluster.data_dir / "agents" / name,
            "checkpoint_dir": cluster.checkpoint_dir,
            "container": wishes.container,
            "labels": _labels(wishes.labels),
        }
    )


def _of_machine(wishes: AgentOptions, cluster: AgentCluster) -> dict[str, Any]:
    """The settings of an agent whose tasks run on its own machine. Raises StartError."""
    kind, devices = _slots(wishes)
    account = _account(wishes, cluster)
    return {
        "slots": devices,
        "slot_type": kind,
        "limits": wishes.limits,
        "security": {
            "containers": wishes.rights,
            "default_task": account and account.model_dump(),
        },
    }


def _of_pods(wishes: AgentOptions) -> dict[str, Any]:
    """The settings of an agent whose tasks are pods. Raises StartError."""
    section: Any = {}
    if wishes.kubernetes is not None:
        try:
            section = yaml.safe_load(wishes.kubernetes.read_text())
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise StartError(f"--kubernetes {wishes.kubernetes}: {error}") from None
        if not isinstance(section, dict):
            raise StartError(
                f"--kubernetes {wishes.kubernetes}: expected a mapping, the section kubernetes of an agent's"
                f" settings (docs/operate/kubernetes.md), found {type(section).__name__}"
            )
    count, is_gpu = _wanted_slots(wishes)
    if count is not None:
        section = {**section, "max_slots": count}
    return {
        "slot_type": "cuda" if is_gpu else "cpu",
        "security": {"containers": wishes.rights},
        "kubernetes": section,
    }


def _account(wishes: AgentOptions, cluster: AgentCluster) -> DefaultTask | None:
    """The account of tasks whose owner has none. Raises StartError."""
    try:
        if wishes.task_user is not None:
            return task_user.read(wishes.task_user)
    except ClusterError as error:
        raise StartError(str(error)) from None
    if cluster.default_task is not None and (why := task_user.what_is_wrong(cluster.default_task)):
        raise StartError(f"{why}. For this agent alone, give `det agent start` --task-user")
    return cluster.default_task


def _labels(given: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in given:
        key, equals, value = one.partition("=")
        key_fits = len(key) <= limits.AGENT_LABEL_CHARS and re.match(LABEL_KEY, key)
        value_fits = 0 < len(value) <= limits.AGENT_LABEL_CHARS and re.match(LABEL_VALUE, value)
        if not (equals and key_fits and value_fits):
            raise StartError(
                f"--label: expected KEY=VALUE, such as gpu=a100 (KEY: letters, digits and _./-; VALUE: no"
                f" comma and no =; {limits.AGENT_LABEL_CHARS} characters each), found {one!r}"
            )
        if found.setdefault(key, value) != value:
            raise StartError(f"--label: {key} is given twice, as {found[key]!r} and as {value!r}")
    if len(found) > limits.AGENT_LABELS:
        raise StartError(f"--label: at most {limits.AGENT_LABELS} labels, found {len(found)}")
    return found


def _slots(wishes: AgentOptions) -> tuple[Literal["cpu", "cuda"], list[dict[str, Any]]]:
    """Those of this machine. Raises StartError."""
    try:
        kind, found = slots.detect(*_wanted_slots(wishes))
    except ClusterError as error:
        raise StartError(str(error)) from None
    return kind, [slot.model_dump() for slot in found]


def _wanted_slots(wishes: AgentOptions) -> tuple[int | None, bool | None]:
    """How many; None: as many as there are. Whether GPUs; None: if there are any. Raises StartError."""
    given = [
        option
        for option, value in (
            ("--slots", wishes.slots),
            ("--gpus", wishes.gpus),
            ("--artificial-slots", wishes.artificial_slots),
        )
        if value is not None
    ]
    if len(given) > 1:
        raise StartError(f"give one of {' and '.join(given)}, not both")
    if wishes.artificial_slots is not None:
        return wishes.artificial_slots, False
    if wishes.gpus is None:
        return wishes.slots, None
    if wishes.gpus != "all" and not wishes.gpus.isdecimal():
        raise StartError(f"--gpus: expected 'all' or a number, found {wishes.gpus!r}")
    return None if wishes.gpus == "all" else int(wishes.gpus), True


def become(config: AgentConfig) -> NoReturn:
    """Replaces this process by the agent."""
    built_in.load(config.launcher)
    config.work_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    if config.launcher == LAUNCHERS["process"]:
        try:
            task_user.open_the_ways(config.security.default_task, config.work_dir, _say)
        except ClusterError as error:
            raise StartError(str(error)) from None
    _hold(config.work_dir / "agent.lock", config.agent_id)
    path = config.work_dir / "agent.json"
    # Secrets are stars in it.
    content = json.loads(config.model_dump_json(exclude_unset=True))
    content["agent_token"] = config.agent_token.get_secret_value()
    if config.prefect_auth is not None:
        content["prefect_auth"] = config.prefect_auth.get_secret_value()
    layout.write_private(path, json.dumps(content, indent=2) + "\n")
    env = {**os.environ, CONFIG_VARIABLE: str(path)}
    # It stands in the settings; supervisors and runs inherit the environment, and are not to have it.
    env.pop(TOKEN_VARIABLE, None)
    argv = [sys.executable, "-P", "-m", "determined_deployments.agent"]
    os.execve(sys.executable, argv, env)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _hold(path: Path, name: str) -> None:
    """Locks the agent's directory for the life of the process, whatever program it becomes.

    Raises StartError while another agent has it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StartError(
            f"--name {name}: an agent of this name runs already ({path.parent}); stop it, or choose another"
            " name"
        ) from None
    os.set_inheritable(descriptor, True)


def start(options: dict[str, Any]) -> NoReturn:
    """What `det agent start` calls (entry point ``determined.agent_start``). Raises StartError."""
    become(configure(AgentOptions(**options)))


def start_as_worker(worker_type: str, pool: str, name: str | None) -> None:
    """What `prefect worker start` calls: becomes the agent, or returns if no cluster is known here."""
    try:
        if AgentCluster.find() is None:
            return
        kind = worker_type.removeprefix("determined-")
        become(configure(AgentOptions(pool=pool, name=name, kind=kind)))
    except StartError as error:
        raise SystemExit(str(error)) from None

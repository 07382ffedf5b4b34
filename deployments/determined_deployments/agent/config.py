"""Settings of an agent: one JSON file, named by ``DET_AGENT_CONFIG``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from determined.common.wire import agents, limits
from determined.common.wire.legs import LegSpec
from determined.expconf.resources import LabelKey, LabelValue
from determined_deployments.agent.launchers.kubernetes.settings import Kubernetes
from determined_tasks.containers.sizes import size_in_bytes
from determined_tasks.limits import PROCESSES, default_memory

CONFIG_VARIABLE = "DET_AGENT_CONFIG"

_NOT_OF_PODS = {
    ("slots",): "they are counted from the nodes, or kubernetes.max_slots says how many",
    ("limits",): "kubernetes.slot_resources or a pod_spec sets them",
    ("compiled_code",): "nothing outlives a pod",
    ("container", "network_mode"): "a pod_spec may have hostNetwork",
    ("security", "containers", "devices"): "device plugins give pods devices",
}
"""Settings of agents on machines, and what there is in pods."""

SlotType = Literal["cpu", "cuda", "rocm"]


class SlotSetting(BaseModel):
    """A slot: ``device`` is a GPU's uuid, or ``"cpu"``."""

    id: int
    device: str = "cpu"


class DefaultTask(BaseModel):
    """``security.default_task``, as in Determined's master.yaml: the account of tasks whose owner has none.

    Either number or name is enough; both must agree with the machine's accounts. Without a group: the
    account's own.
    """

    model_config = ConfigDict(extra="forbid")

    user: str | None = None
    uid: int | None = Field(default=None, ge=0)
    group: str | None = None
    gid: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _names_a_user(self) -> DefaultTask:
        if self.user is None and self.uid is None:
            raise ValueError("give user or uid: a group alone names nobody")
        return self


class ContainersSection(BaseModel):
    """``security.containers``: what containers get for tasks whose owner is not an administrator, beyond what
    the cluster configuration gives all tasks.
    """

    model_config = ConfigDict(extra="forbid")

    capabilities: list[str] = Field(default_factory=list)
    """``environment.add_capabilities``, such as ``SYS_PTRACE``."""
    devices: list[str] = Field(default_factory=list)
    """``resources.devices``: these, and what lies below them."""
    host_paths: list[str] = Field(default_factory=list)
    """What may be mounted where the container's processes are root: these folders and what lies in them. Of
    pods: whoever their processes are."""
    pod_fields: list[str] = Field(default_factory=list)
    """Fields of ``environment.pod_spec``, such as ``hostNetwork`` (docs/operate/pods.md)."""

    @field_validator("devices", "host_paths")
    @classmethod
    def _are_absolute(cls, given: list[str]) -> list[str]:
        for path in given:
            if not path.startswith("/"):
                raise ValueError(
                    f"expected an absolute path (one that begins with /), found {path!r}"
                )
        return given


class AgentSecurity(BaseModel):
    """``security``: as whom tasks run, and what their containers may have (docs/operate/security.md)."""

    model_config = ConfigDict(extra="forbid")

    default_task: DefaultTask | None = None
    """None: tasks without an account of their owner's run as the agent itself."""
    allow_root: bool = False
    """Whether a task may run as root because an account says so."""
    containers: ContainersSection = Field(default_factory=ContainersSection)


class LimitsOfLegs(BaseModel):
    """``limits``: what a leg may use of the machine, in a container or not (docs/operate/agent.md)."""

    model_config = ConfigDict(extra="forbid")

    processes: int = Field(default=PROCESSES, ge=1)
    """How many processes and threads."""
    memory: int | str = Field(default_factory=default_memory)
    """All its processes together, such as ``8G``. Default: nine tenths of the machine's."""
    open_files: int | None = Field(default=None, ge=64)
    """Of each process. None: 65,536; in a container the engine's own limit, beyond which it can give none."""

    cpus: float | None = Field(default=None, ge=0.1, le=100_000, allow_inf_nan=False)
    """Processors that all its processes together compute on. None: what is free, and where legs compete, a
    share that grows with their slots."""

    @field_validator("memory")
    @classmethod
    def _is_size(cls, value: int | str) -> int:
        return size_in_bytes(value)


class Container(BaseModel):
    """``container``: for the launchers ``docker`` and ``kubernetes`` (docs/operate/agent.md)."""

    model_config = ConfigDict(extra="forbid")

    images: dict[SlotType, str] = Field(default_factory=dict)
    """The image of experiments that name none, by slot type."""
    network_mode: str | None = None
    """As `docker run --network`. None: ``host`` when the service listens on this machine's loopback only,
    else ``bridge``."""
    master_url: str | None = None
    """The service's address inside containers, if it is another one there."""
    shm_size: int | str = 4 << 30
    """``/dev/shm`` of experiments that give no ``resources.shm_size``."""
    harness: Literal["image", "mounted"] = "image"
    """Where ``determined`` comes from inside containers: the image, or the agent's own interpreter with its
    packages, which containers then see read-only."""

    @model_validator(mode="before")
    @classmethod
    def _has_no_limits(cls, given: Any) -> Any:
        for name in ("memory", "processes"):
            if isinstance(given, dict) and name in given:
                raise ValueError(f"{name} of containers is limits.{name} now, of all legs alike")
        return given

    @field_validator("shm_size")
    @classmethod
    def _is_size(cls, value: int | str) -> int:
        return size_in_bytes(value)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


class AgentConfig(BaseModel):
    """The settings of one agent process; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")

    agent_id: str
    resource_pool: str = "default"
    slots: int | list[int] | list[SlotSetting] | None = Field(
        default=None, union_mode="left_to_right"
    )
    """The number of slots, their ids, or slots with their devices. Required, but not for ``kubernetes``."""
    slot_type: SlotType = "cpu"
    """``rocm``: for ``kubernetes`` only."""
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=limits.AGENT_LABELS)
    """What experiments may ask for by ``resources.placement.labels``."""
    launcher: str = "fork_server"
    """The launcher that starts jobs: a name of ``launchers.built_in``, or ``module:Class`` of a Launcher."""
    master_url: str
    """The service, ``http://host:port``."""
    agent_token: SecretStr
    prefect_api_url: str | None = None
    """Prefect's API, ``http://host:port/api``. None: the agent runs trials only."""
    prefect_auth: SecretStr | None = None
    """``user:password`` of Prefect's API."""
    work_dir: Path
    """Scratch space: working directories of trials, model definitions, records of processes."""
    checkpoint_dir: Path | None = None
    """The cluster's own checkpoint storage, if it is a directory of this machine: opened to the accounts of
    tasks (mode 1777) when the first runs that is not the agent's."""
    security: AgentSecurity = Field(default_factory=AgentSecurity)
    limits: LimitsOfLegs = Field(default_factory=LimitsOfLegs)
    container: Container = Field(default_factory=Container)
    kubernetes: Kubernetes = Field(default_factory=Kubernetes)
    grace_seconds: float | None = Field(default=None, ge=5, le=3600)
    """How long the machine stays after the agent, or a leg's supervisor, gets a SIGTERM, as on a machine that
    a cloud takes back. Trials store a checkpoint in this time and go on elsewhere. None: legs end at once."""
    compiled_code: int | str = 16 << 30
    """How much of what trials compile is kept for the user's next trials of the same code, such as ``4G``; 0:
    nothing (docs/operate/agent.md)."""

    @field_validator("compiled_code")
    @classmethod
    def _is_size(cls, value: int | str) -> int:
        return size_in_bytes(value)

    @model_validator(mode="before")
    @classmethod
    def _fits_the_launcher(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "agent_id" not in given:
            return given
        # A null is not a setting.
        given = {
            key: value
            for key, value in given.items()
            if value is not None or key not in ("slots", "kubernetes")
        }
        launcher = given.get("launcher", "fork_server")
        if "kubernetes" in given and launcher in ("docker", "fork_server"):
            raise ValueError(f"kubernetes: only launcher 'kubernetes' has it, not {launcher!r}")
        if launcher != "kubernetes" and "kubernetes" not in given:
            if given.get("slots") is None:
                raise ValueError(
                    "slots: required field is missing: give their number, or their ids"
                )
            if given.get("slot_type") == "rocm":
                raise ValueError(
                    "slot_type: 'rocm' is for launcher 'kubernetes'; allowed: cpu, cuda"
                )
            return given
        for (*sections, name), instead in _NOT_OF_PODS.items():
            section: Any = given
            for key in sections:
                section = section.get(key) if isinstance(section, dict) else None
            if isinstance(section, dict) and section.get(name) not in (None, []):
                path = ".".join((*sections, name))
                raise ValueError(
                    f"{path}: not of launcher 'kubernetes', where {instead}: leave it out"
                )
        url, container = given.get("master_url"), given.get("container")
        has_other = isinstance(container, dict) and container.get("master_url")
        if isinstance(url, str) and _is_loopback(url) and not has_other:
            raise ValueError(
                f"container.master_url: required, because pods do not reach {url}, an address of this"
                " machine's loopback: set it to the service's address in pods"
            )
        return given

    @model_serializer(mode="wrap")
    def _without_what_it_may_not_have(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """So that settings can be read again that were written as a whole."""
        found: dict[str, Any] = dump(self)
        if not self.is_on_kubernetes:
            found.pop("kubernetes", None)
            return found
        for *sections, name in _NOT_OF_PODS:
            section = found
            for key in sections:
                section = section.get(key) or {}
            section.pop(name, None)
        return found

    @model_validator(mode="after")
    def _containers_reach_the_service(self) -> AgentConfig:
        mode = self.container.network_mode
        if mode not in (None, "host") and not self.container.master_url and self.is_master_local:
            raise ValueError(
                f"container.network_mode {mode!r}: containers do not reach {self.master_url}, an address of"
                " this machine's loopback; set container.master_url to an address that they reach, or"
                " leave network_mode out for 'host'"
            )
        return self

    @property
    def is_on_kubernetes(self) -> bool:
        """True if legs are pods, also with a launcher that extends ours."""
        return self.launcher == "kubernetes" or "kubernetes" in self.model_fields_set

    @property
    def is_master_local(self) -> bool:
        """True if the service's address exists on this machine only."""
        return _is_loopback(self.master_url)

    @classmethod
    def load(cls) -> AgentConfig:
        """Reads the file named by ``DET_AGENT_CONFIG``. Raises pydantic.ValidationError."""
        path = os.environ.get(CONFIG_VARIABLE)
        if not path:
            raise SystemExit(f"{CONFIG_VARIABLE} must name the agent's settings file (JSON)")
        return cls.model_validate_json(Path(path).read_text())

    def slot_list(self) -> list[SlotSetting]:
        """The slots, one by one; none of launcher ``kubernetes``, which knows them."""
        if isinstance(self.slots, int):
            return [SlotSetting(id=number) for number in range(self.slots)]
        return [
            SlotSetting(id=slot) if isinstance(slot, int) else slot for slot in self.slots or ()
        ]

    def security_of_tasks(self) -> dict[str, Any]:
        """The settings that supervisors need: arguments of ``AgentSide`` as JSON."""
        task = self.security.default_task
        return {
            "default_task": task.model_dump() if task else None,
            "allow_root": self.security.allow_root,
            "checkpoint_dir": str(self.checkpoint_dir) if self.checkpoint_dir else None,
        }

    def may_share(self, spec: LegSpec) -> bool:
        """Whether the leg's processes are the agent's own, so that it may prepare things with the user's
        environment variables, and hand memory on."""
        return spec.agent_user is None and self.security.default_task is None

    def devices(self) -> list[agents.Slot]:
        """The slots as the service is told of them."""
        return [
            agents.Slot(
                slot.id,
                agents.Device(self.slot_type, "" if slot.device == "cpu" else slot.device),
            )
            for slot in self.slot_list()
        ]

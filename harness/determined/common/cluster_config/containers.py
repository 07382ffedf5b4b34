"""The ``task_container_defaults`` section: what every task gets unless its configuration says otherwise."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from determined.common.cluster_config.marks import NotUsed, OnlyContainers
from determined.common.wire import limits
from determined.expconf import legacy
from determined.expconf.base import AbsolutePath, AlsoAccepts, Natural, Positive, Section
from determined.expconf.environment import Images, RegistryAuth, Variables
from determined.expconf.hpc import Pbs, Slurm
from determined.expconf.logs import LogPolicy
from determined.expconf.mounts import BindMount
from determined.expconf.resources import DeviceMapping

#: These are fields of ``environment`` in an experiment's configuration.
_OF_ENVIRONMENT = (
    "image",
    "environment_variables",
    "registry_auth",
    "force_pull_image",
    "add_capabilities",
    "drop_capabilities",
)
_AT_THE_TOP = ("bind_mounts", "log_policies", "preemption_timeout", "slurm", "pbs")
_IMAGE = OnlyContainers("other trials run in the agent's own environment")
_RIGHTS = OnlyContainers("other trials have the rights of their account")
_DEVICES = OnlyContainers("other trials see the machine's own")
#: A kind of network, or a network's name; no other container's.
NETWORK = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
_TEXT = {"type": "string"}
_LIST = {"type": "array", "items": {"type": "string"}}


class KubernetesDefaults(Section):
    """The ``kubernetes`` section."""

    max_slots_per_pod: Positive | None = Field(
        None,
        description="slots of one pod at most; what wants more runs in several pods of that size; default:"
        " as many as the machine has",
    )


class TaskContainerDefaults(Section):
    """Defaults for the tasks of the cluster, or of one pool.

    Fields without a value are None, so that a configuration's own default stands.
    """

    image: Annotated[
        Images | None, BeforeValidator(legacy.images), AlsoAccepts({"type": "string"}), _IMAGE
    ] = Field(None, description="container image, or one per kind of device")
    environment_variables: Annotated[
        Variables | None, BeforeValidator(legacy.environment_variables), AlsoAccepts(_LIST)
    ] = Field(None, description="NAME=VALUE, in a list or per kind of device")
    registry_auth: Annotated[RegistryAuth | None, _IMAGE] = Field(
        None, description="registry credentials"
    )
    force_pull_image: Annotated[bool | None, _IMAGE] = Field(
        None, description="fetch the image even if the machine has it"
    )
    add_capabilities: Annotated[list[str] | None, _RIGHTS] = Field(
        None, description="Linux capabilities to add"
    )
    drop_capabilities: Annotated[list[str] | None, _RIGHTS] = Field(
        None, description="Linux capabilities to remove"
    )
    devices: Annotated[
        list[Annotated[DeviceMapping, BeforeValidator(legacy.device), AlsoAccepts(_TEXT)]] | None,
        _DEVICES,
    ] = Field(None, description="devices, as mappings or 'host:container[:rwm]'")
    bind_mounts: list[BindMount] | None = Field(
        None, description="directories of the machine under other paths"
    )
    log_policies: list[LogPolicy] | None = Field(
        None, description="actions on log lines that match a pattern"
    )
    preemption_timeout: Positive | None = Field(
        None, description="seconds that a trial has to save its state before it is killed"
    )
    shm_size_bytes: Natural | None = Field(None, description="size of /dev/shm in bytes")
    network_mode: Annotated[
        str | None,
        Field(pattern=NETWORK, max_length=limits.NAME_CHARS),
        OnlyContainers("trials of other agents use the machine's network"),
    ] = Field(None, description="network of containers: host, bridge, or a network's name")
    work_dir: Annotated[
        AbsolutePath | None,
        OnlyContainers(
            "other trials, and those in pods, run in the folder of their own model definition"
        ),
    ] = Field(None, description="working directory in containers, with the model definition in it")
    startup_hook: Annotated[str, Field(max_length=limits.TEXT_CHARS)] | None = Field(
        None, description="shell commands that every task runs before its own startup-hook.sh"
    )
    slurm: Slurm | None = Field(None, description="options for Slurm")
    pbs: Pbs | None = Field(None, description="options for PBS")
    cpu_pod_spec: dict[str, Any] | None = Field(
        None, description="Kubernetes Pod to start from, for tasks without slots"
    )
    gpu_pod_spec: dict[str, Any] | None = Field(
        None, description="Kubernetes Pod to start from, for tasks with slots"
    )

    checkpoint_gc_pod_spec: Annotated[
        Any, NotUsed("checkpoints are deleted by a flow on an agent, not in a pod")
    ] = Field(None, exclude=True)
    dtrain_network_interface: Annotated[
        Any, NotUsed("the processes of a trial find each other by the agents' addresses")
    ] = Field(None, exclude=True)
    nccl_port_range: Annotated[
        Any, NotUsed("set NCCL's own variables in environment_variables")
    ] = Field(None, exclude=True)
    gloo_port_range: Annotated[Any, NotUsed("Gloo chooses among the free ports of the machine")] = (
        Field(None, exclude=True)
    )
    kubernetes: KubernetesDefaults | None = Field(
        None, description="options for agents of the type kubernetes"
    )

    def for_experiment(self, slots: int) -> dict[str, Any]:
        """The same as part of an experiment's configuration, for a task of ``slots`` slots; only what is
        set, so that it can stand beneath one in :func:`determined.expconf.merge`."""
        given = self.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        pod_spec = given.get("gpu_pod_spec" if slots else "cpu_pod_spec")
        environment = {**_of(given, _OF_ENVIRONMENT), "pod_spec": pod_spec}
        resources = {"devices": given.get("devices"), "shm_size": given.get("shm_size_bytes")}
        found: dict[str, Any] = {**_of(given, _AT_THE_TOP)}
        for name, section in (("environment", environment), ("resources", resources)):
            kept = {key: value for key, value in section.items() if value is not None}
            if kept:
                found[name] = kept
        return found


def _of(given: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: given[key] for key in keys if key in given}

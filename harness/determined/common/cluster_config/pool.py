"""``resource_manager`` and ``resource_pools``: where agents are, and how their slots are given out."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from determined.common.cluster_config.containers import TaskContainerDefaults
from determined.common.cluster_config.marks import NotUsed, refused
from determined.common.cluster_config.scheduler import SchedulerConfig
from determined.common.wire import limits
from determined.expconf.base import Natural, Positive, Section
from determined.expconf.durations import seconds
from determined.expconf.resources import FallbackField
from determined.expconf.tasks import Duration

DEFAULT_POOL = "default"
AUX_CONTAINERS = 100

_OTHER_MANAGERS = (
    "Slurm and PBS are not supported: leave type out, or write 'agent' or 'kubernetes'"
)
_AGENTS = "it is a setting of the pool's agent"


MOST_WAIT_HOURS = 7 * 24
"""The service forgets an agent that was silent for so long."""


def _at_most_a_week(given: str) -> str:
    if seconds(given) > MOST_WAIT_HOURS * 3600:
        raise ValueError(f"expected at most {MOST_WAIT_HOURS}h")
    return given


class PoolConfig(Section):
    """One item of ``resource_pools``."""

    pool_name: Annotated[str, Field(min_length=1, max_length=limits.POOL_NAME_CHARS)] = Field(
        description="name of the pool, also that of its work pool in Prefect"
    )
    description: Annotated[str, Field(max_length=limits.TEXT_CHARS)] = Field(
        "", description="shown by `det resource-pool list`"
    )
    scheduler: SchedulerConfig | None = Field(
        None, description="in the place of the resource manager's, as a whole"
    )
    max_aux_containers_per_agent: Natural = Field(
        AUX_CONTAINERS, description="tasks without slots that one agent runs at a time"
    )
    max_cpu_containers_per_agent: Natural | None = Field(
        None, exclude=True, description="the earlier name of max_aux_containers_per_agent"
    )
    task_container_defaults: TaskContainerDefaults | None = Field(
        None, description="in the place of the cluster's, as a whole"
    )
    fallback: FallbackField | None = Field(
        None, description="pools for what waits too long here, or when the agents are lost"
    )

    agent_reconnect_wait: Annotated[Duration, AfterValidator(_at_most_a_week)] | None = Field(
        None,
        description="how long its agents may be silent before what they run counts as lost, such as 10m;"
        " default, and at least: agent_timeout_s of the service",
    )

    provider: Annotated[
        Any,
        refused(
            "agents are not started in a cloud: leave provider out, and start agents on machines of your own"
        ),
    ] = Field(None, exclude=True)
    kubernetes_namespace: Annotated[Any, NotUsed(f"{_AGENTS}, kubernetes.namespace")] = Field(
        None, exclude=True
    )
    agent_reattach_enabled: Annotated[
        Any, NotUsed("agents always take over the trials that they find running")
    ] = Field(None, exclude=True)


class ResourceManager(Section):
    """The ``resource_manager`` section."""

    type: Annotated[
        Literal["agent", "kubernetes"],
        refused(_OTHER_MANAGERS, lambda value: value in ("agent", "kubernetes")),
    ] = Field("agent", description="kind of the pools' agents: on machines, or on Kubernetes")
    scheduler: SchedulerConfig | None = Field(
        None, description="of every pool that has none of its own"
    )
    default_compute_resource_pool: str | None = Field(
        None, description="pool of tasks with slots that name none"
    )
    default_aux_resource_pool: str | None = Field(
        None, description="pool of tasks without slots that name none"
    )
    max_slots_per_pod: Positive | None = Field(
        None,
        description="where task_container_defaults.kubernetes.max_slots_per_pod is not set: the same",
    )
    no_default_resource_pools: bool = Field(
        False, description="whether every task must name its pool"
    )
    default_gpu_resource_pool: str | None = Field(
        None, exclude=True, description="the earlier name of default_compute_resource_pool"
    )
    default_cpu_resource_pool: str | None = Field(
        None, exclude=True, description="the earlier name of default_aux_resource_pool"
    )

    namespace: Annotated[Any, NotUsed(f"{_AGENTS}, kubernetes.namespace")] = Field(
        None, exclude=True
    )
    default_namespace: Annotated[Any, NotUsed(f"{_AGENTS}, kubernetes.namespace")] = Field(
        None, exclude=True
    )
    kubeconfig_path: Annotated[Any, NotUsed(f"{_AGENTS}, kubernetes.kubeconfig")] = Field(
        None, exclude=True
    )
    slot_type: Annotated[Any, NotUsed(f"{_AGENTS}, slot_type")] = Field(None, exclude=True)
    slot_resource_requests: Annotated[Any, NotUsed(f"{_AGENTS}, kubernetes.slot_resources")] = (
        Field(None, exclude=True)
    )
    default_scheduler: Annotated[
        Any, NotUsed(f"{_AGENTS}, kubernetes.scheduler_name or kubernetes.queueing")
    ] = Field(None, exclude=True)
    determined_master_scheme: Annotated[Any, NotUsed(f"{_AGENTS}, container.master_url")] = Field(
        None, exclude=True
    )
    determined_master_host: Annotated[Any, NotUsed(f"{_AGENTS}, container.master_url")] = Field(
        None, exclude=True
    )
    determined_master_ip: Annotated[Any, NotUsed(f"{_AGENTS}, container.master_url")] = Field(
        None, exclude=True
    )
    determined_master_port: Annotated[Any, NotUsed(f"{_AGENTS}, container.master_url")] = Field(
        None, exclude=True
    )
    fluent: Annotated[Any, NotUsed("each pod sends its own log")] = Field(None, exclude=True)
    internal_task_gateway: Annotated[
        Any, NotUsed("ports of tasks are reached through the service's proxy")
    ] = Field(None, exclude=True)
    cluster_name: Annotated[Any, NotUsed("there is one resource manager, and it needs no name")] = (
        Field(None, exclude=True)
    )
    name: Annotated[Any, NotUsed("there is one resource manager, and it needs no name")] = Field(
        None, exclude=True
    )
    metadata: Annotated[Any, NotUsed("nothing shows it")] = Field(None, exclude=True)
    require_authentication: Annotated[
        Any, NotUsed("every agent proves itself by the cluster's secret")
    ] = Field(None, exclude=True)
    client_ca: Annotated[
        Any,
        refused(
            "agents prove themselves by the cluster's secret, not by certificates: leave client_ca out"
        ),
    ] = Field(None, exclude=True)


class AdditionalManager(Section):
    """One item of ``additional_resource_managers``: pools beside those of ``resource_pools``."""

    resource_manager: ResourceManager = Field(
        default_factory=ResourceManager, description="what holds for these pools"
    )
    resource_pools: Annotated[list[PoolConfig], Field(min_length=1, max_length=limits.POOLS)] = (
        Field(description="the pools")
    )

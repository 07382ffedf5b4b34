"""The cluster configuration as a whole."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from determined.common.cluster_config.containers import TaskContainerDefaults
from determined.common.cluster_config.marks import NotUsed, is_off, refused
from determined.common.cluster_config.pool import (
    DEFAULT_POOL,
    AdditionalManager,
    PoolConfig,
    ResourceManager,
)
from determined.common.cluster_config.quotas import Quotas
from determined.common.cluster_config.scheduler import KUBERNETES_PRIORITY, SchedulerConfig
from determined.common.wire import limits
from determined.expconf.base import WHOLE, Section, broken
from determined.expconf.durations import seconds
from determined.expconf.storage import CheckpointStorage

_NO_TLS = "the service speaks plain HTTP: leave tls out, and put a proxy with TLS in front of it"
_NO_SSO = "users log in with a name and a password: leave it out"


def _is_root(account: Any) -> bool:
    wanted = {"uid": (0,), "gid": (0,), "user": ("root",), "group": ("root",)}
    return isinstance(account, dict) and all(
        value is None or value in wanted.get(key, ()) for key, value in account.items()
    )


class CreatorsRole(Section):
    """The ``security.authz.workspace_creator_assign_role`` section."""

    enabled: bool = Field(True, description="whether the creator of a workspace gets a role in it")
    role_id: Literal[2, 4, 5, 6, 7, 9] = Field(
        2,
        description="the role's number, of those that hold in one workspace; 2 is WorkspaceAdmin",
    )


class Authz(Section):
    """The ``security.authz`` section."""

    type: Literal["basic", "rbac"] = Field(
        "basic",
        description="who may do what: `basic`, owners and administrators; `rbac`, whom a role allows it",
    )
    workspace_creator_assign_role: CreatorsRole = Field(
        default_factory=CreatorsRole, description="of a workspace's creator, where roles hold"
    )
    fallback: Annotated[Any, NotUsed("a type that is not known is refused")] = Field(
        None, exclude=True
    )
    rbac_ui_enabled: Annotated[Any, NotUsed("clients are told of roles where type is 'rbac'")] = (
        Field(None, exclude=True)
    )


Days = Annotated[int, Field(ge=-1, le=36_500), WHOLE]


class Tokens(Section):
    """The ``security.token`` section: how long access tokens are good."""

    max_lifespan_days: Days = Field(
        30, description="the most days that a token may be good; -1: for ever"
    )
    default_lifespan_days: Days = Field(
        30, description="days that a token is good unless its user says otherwise; -1: for ever"
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for name, value in self:
            if value == 0:
                raise broken(
                    f"{name}: 0 found; a token is good for a day at least, or for ever (-1)"
                )
        most, default = self.max_lifespan_days, self.default_lifespan_days
        if most != -1 and not 0 < default <= most:
            raise broken(
                f"default_lifespan_days ({default}) is more than max_lifespan_days ({most}): set "
                "default_lifespan_days to at most that"
            )
        return self


class Security(Section):
    """The ``security`` section."""

    authz: Authz | None = Field(None, description="who may do what")

    default_task: Annotated[
        Any,
        refused(
            "the account of trials is not set here: use `det deploy local cluster-up --task-user "
            "USER[:GROUP]`, or security.default_task in the settings of each agent",
            _is_root,
        ),
    ] = Field(None, exclude=True)
    tls: Annotated[Any, refused(_NO_TLS, lambda value: value == {})] = Field(None, exclude=True)
    ssh: Annotated[Any, NotUsed("each shell has its own ed25519 key")] = Field(None, exclude=True)
    token: Tokens = Field(default_factory=Tokens, description="how long access tokens are good")
    initial_user_password: Annotated[
        Any,
        refused(
            "the first passwords are not set here: leave it out, and start the cluster with `det deploy "
            "local cluster-up --initial-user-password PASSWORD`, or initialUserPassword of the Helm chart",
            lambda value: value == "",
        ),
    ] = Field(None, exclude=True)


class Logging(Section):
    """The ``logging`` section."""

    type: Annotated[
        Literal["default"],
        refused(
            "logs of trials are kept in Postgres: leave type out, or write 'default'",
            lambda value: value == "default",
        ),
    ] = Field("default", description="where logs of trials are kept")


class NotebookFiles(Section):
    """The ``notebook_files`` section: how long the files of ended notebooks stay."""

    days: Annotated[int, Field(ge=1, le=limits.INT32 // 86_400)] | None = Field(
        None, description="days after a notebook's end; default: for ever"
    )
    per_owner: Annotated[int, Field(ge=1, le=limits.INT32)] | None = Field(
        None, description="of how many notebooks of each owner, the latest ones; default: of all"
    )


class ClusterConfig(Section):
    """A cluster's configuration, as :func:`~.reading.read_file` returns it: in today's form, and valid."""

    resource_manager: ResourceManager = Field(
        default_factory=ResourceManager, description="the cluster's agents and default pools"
    )
    resource_pools: Annotated[list[PoolConfig], Field(min_length=1, max_length=limits.POOLS)] = (
        Field(
            default_factory=lambda: [PoolConfig(pool_name=DEFAULT_POOL)],
            description="groups of agents; default: one called 'default'",
        )
    )
    additional_resource_managers: Annotated[
        list[AdditionalManager], Field(max_length=limits.POOLS)
    ] = Field(default_factory=list, description="pools with settings of another resource manager")
    task_container_defaults: TaskContainerDefaults = Field(
        default_factory=TaskContainerDefaults,
        description="what tasks get unless they say otherwise",
    )
    checkpoint_storage: CheckpointStorage | None = Field(
        None, description="of experiments without one; default: a folder of the cluster's"
    )
    launch_error: bool = Field(
        True, description="whether what fits on no agent is refused; else it waits, with a warning"
    )
    security: Security | None = Field(None, description="accounts and rights")
    logging: Logging | None = Field(None, description="where logs of trials are kept")
    tensorboard_timeout: Annotated[int, Field(ge=1, le=limits.INT32)] = Field(
        300, description="seconds after which a TensorBoard ends that nobody looks at"
    )
    notebook_timeout: Annotated[int, Field(ge=1, le=limits.INT32)] | None = Field(
        None, description="seconds after which a notebook ends that nobody uses; default: never"
    )
    notebook_files: NotebookFiles = Field(
        default_factory=NotebookFiles, description="how long files of ended notebooks are kept"
    )
    quotas: Quotas = Field(
        default_factory=Quotas, description="how much one user may have at a time"
    )

    scheduler: SchedulerConfig | None = Field(
        None, exclude=True, description="the earlier place of resource_manager.scheduler"
    )
    provisioner: Annotated[
        Any,
        refused(
            "agents are not started in a cloud: leave provisioner out, and start agents on machines of your "
            "own"
        ),
    ] = Field(None, exclude=True)
    scim: Annotated[Any, refused(_NO_SSO, is_off)] = Field(None, exclude=True)
    saml: Annotated[Any, refused(_NO_SSO, is_off)] = Field(None, exclude=True)
    oidc: Annotated[Any, refused(_NO_SSO, is_off)] = Field(None, exclude=True)
    det_cloud: Annotated[Any, refused(_NO_SSO, is_off)] = Field(None, exclude=True)

    config_file: Annotated[Any, NotUsed("the file is the one that --config names")] = Field(
        None, exclude=True
    )
    cluster_name: Annotated[
        Any, NotUsed("`det deploy local cluster-up --cluster-name` sets it")
    ] = Field(None, exclude=True)
    port: Annotated[Any, NotUsed("`det deploy local cluster-up --master-port` sets it")] = Field(
        None, exclude=True
    )
    db: Annotated[
        Any,
        NotUsed(
            "the cluster brings its own Postgres; `det deploy local cluster-up --db-url` names another"
        ),
    ] = Field(None, exclude=True)
    log: Annotated[Any, NotUsed("`det deploy local logs service` prints the service's log")] = (
        Field(None, exclude=True)
    )
    root: Annotated[Any, NotUsed("the service's pages come with it, not from a folder")] = Field(
        None, exclude=True
    )
    cache: Annotated[Any, NotUsed("model definitions are kept in Postgres")] = Field(
        None, exclude=True
    )
    telemetry: Annotated[Any, NotUsed("nothing is ever sent anywhere")] = Field(None, exclude=True)
    enable_cors: Annotated[Any, NotUsed("scripts of other sites' pages get no answer")] = Field(
        None, exclude=True
    )
    observability: Annotated[Any, NotUsed("there is no page for Prometheus")] = Field(
        None, exclude=True
    )
    retention_policy: Annotated[Any, NotUsed("logs stay until their experiment is deleted")] = (
        Field(None, exclude=True)
    )
    webhooks: Annotated[
        Any, NotUsed("there are no webhooks; Prefect's automations send messages")
    ] = Field(None, exclude=True)
    integrations: Annotated[Any, NotUsed("set it in the experiment's configuration")] = Field(
        None, exclude=True
    )
    ui_customization: Annotated[Any, NotUsed("the web page is Prefect's")] = Field(
        None, exclude=True
    )
    feature_switches: Annotated[Any, NotUsed("there are none")] = Field(None, exclude=True)
    reserved_ports: Annotated[
        Any, NotUsed("trials choose among the ports that the machine says are free")
    ] = Field(None, exclude=True)

    @property
    def authz(self) -> Authz:
        """The ``security.authz`` section, with its defaults."""
        return (self.security and self.security.authz) or Authz()

    @property
    def has_roles(self) -> bool:
        """True if roles hold, and not the rule that everybody sees everything."""
        return self.authz.type == "rbac"

    def pool(self, name: str) -> PoolConfig | None:
        """The pool of that name; None if there is none."""
        return next((pool for pool in self.pools if pool.pool_name == name), None)

    @property
    def pools(self) -> list[PoolConfig]:
        """All pools: those of ``resource_pools``, then those of additional resource managers."""
        more = (pool for one in self.additional_resource_managers for pool in one.resource_pools)
        return [*self.resource_pools, *more]

    def manager_of(self, pool: str) -> ResourceManager:
        """The resource manager whose settings hold for a pool."""
        for one in self.additional_resource_managers:
            if pool in {each.pool_name for each in one.resource_pools}:
                return one.resource_manager
        return self.resource_manager

    def scheduler_of(self, pool: str, *, kubernetes: bool = False) -> SchedulerConfig:
        """The scheduler of a pool: its own block, else the resource manager's, else the default one.

        Of a pool that the configuration does not have (one that was just removed): as if it had no block.
        ``kubernetes``: the pool has Kubernetes agents.
        """
        found = self.pool(pool)
        own = found.scheduler if found is not None else None
        manager = self.manager_of(pool)
        given = own or manager.scheduler or SchedulerConfig()
        is_kubernetes = kubernetes or manager.type == "kubernetes"
        if is_kubernetes and "default_priority" not in given.model_fields_set:
            return given.model_copy(update={"default_priority": KUBERNETES_PRIORITY})
        return given

    def fallback_route(self, pool: str) -> list[str]:
        """The pools that are tried after ``pool``, in order: each pool of its fallback, followed by that
        pool's own."""
        found: list[str] = []

        def follow(name: str) -> None:
            here = self.pool(name)
            for one in here.fallback.pools if here is not None and here.fallback else ():
                if one != pool and one not in found:
                    found.append(one)
                    follow(one)

        follow(pool)
        return found

    def container_defaults_of(self, pool: str) -> TaskContainerDefaults:
        """A pool's own ``task_container_defaults``, else the cluster's."""
        found = self.pool(pool)
        own = found.task_container_defaults if found is not None else None
        return own or self.task_container_defaults

    def max_slots_per_pod(self, pool: str) -> int | None:
        """How many slots one pod of a pool may have; None: as many as its machine."""
        own = self.container_defaults_of(pool).kubernetes
        found = own.max_slots_per_pod if own is not None else None
        return found or self.manager_of(pool).max_slots_per_pod

    def reconnect_waits(self) -> dict[str, float]:
        """By pool, for how many seconds its agents may be silent, where it says so."""
        return {
            pool.pool_name: seconds(pool.agent_reconnect_wait)
            for pool in self.pools
            if pool.agent_reconnect_wait is not None
        }

    def default_pool(self, slots: int) -> str | None:
        """The pool of a task of ``slots`` slots that names none; None if it must name one."""
        manager = self.resource_manager
        if manager.no_default_resource_pools:
            return None
        if slots:
            return manager.default_compute_resource_pool or DEFAULT_POOL
        return manager.default_aux_resource_pool or DEFAULT_POOL

    @property
    def pool_of_flows(self) -> str:
        """The pool whose agents run the flows of all experiments; the agent of a local cluster joins it."""
        return self.default_pool(1) or self.resource_pools[0].pool_name

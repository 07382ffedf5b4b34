"""Computes the state and the components of the cluster from the command's options and the record."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from determined_deployments.local import (
    agent,
    daemon,
    databases,
    ports,
    postgres,
    prefect_server,
    service,
    slots,
    task_user,
)
from determined_deployments.local import state as states
from determined_deployments.local.component import Component
from determined_deployments.local.errors import ClusterError
from determined_deployments.local.layout import Layout
from determined_deployments.local.report import ClusterReporter
from determined_deployments.local.state import USERS, ClusterState

ALL = (postgres.NAME, prefect_server.NAME, service.NAME, agent.NAME)
"""Those of every cluster, in the order they are started; stopped in the reverse order."""


def names(state: ClusterState | None) -> tuple[str, ...]:
    """The components of the cluster (None: it has no record), in the same order."""
    return ALL if state is None else (*ALL, *agent.other_names(state))


STOP_SIGNALS = {
    postgres.NAME: postgres.STOP_SIGNALS,
    prefect_server.NAME: prefect_server.STOP_SIGNALS,
}
"""Components that are not stopped in the usual way; `cluster-down` needs only their names."""


KILLED_HOLDS_S = 3.0
"""Seconds until the port of a killed component must be free."""

PORTS = {
    service.NAME: "master_port",
    prefect_server.NAME: "prefect_port",
    postgres.NAME: "postgres_port",
}
"""The field of the state that holds a component's port."""


@dataclass(frozen=True)
class ClusterOptions:
    """The options of the command line. None: as before, or the default on first start."""

    slots: int | None = None
    gpu: bool | None = None
    db_url: str | None = None
    master_port: int | None = None
    cluster_name: str | None = None
    initial_user_password: str | None = None
    config: str | None = None
    """The file of the cluster configuration; empty: none any more."""
    one_agent: bool | None = None
    """True if only the default compute pool gets an agent; else each pool does."""
    task_user: str | None = None
    """``USER[:GROUP]``; empty: the agent's own user."""


def resolve(
    layout: Layout, wishes: ClusterOptions, claims: ports.Claims, reporter: ClusterReporter
) -> ClusterState:
    """The cluster's state: the recorded one (or a new one) with the options applied, and with free ports,
    claimed by ``claims``, for every component that does not run. Writes nothing. Raises ClusterError.
    """
    recorded = states.load(layout)
    if recorded is None and layout.postgres.exists():
        raise ClusterError(
            f"{layout.postgres} holds a database but {layout.state} with its password is gone: "
            "restore that file, or delete the data with `det deploy local cluster-down --delete-db`"
        )
    state = (recorded or ClusterState()).model_copy(deep=True)
    _apply_database(state, wishes.db_url, is_new=recorded is None)
    if wishes.cluster_name:
        state.cluster_name = wishes.cluster_name
    if wishes.initial_user_password is not None:
        if recorded is None:
            state.passwords = dict.fromkeys(USERS, wishes.initial_user_password)
        elif set(recorded.passwords.values()) != {wishes.initial_user_password}:
            reporter.note(
                "--initial-user-password works only at the first start, because the users exist already"
            )
    if wishes.one_agent is not None:
        state.one_agent = wishes.one_agent
    if wishes.task_user is not None:
        state.default_task = task_user.read(wishes.task_user)
    elif state.default_task is not None and (why := task_user.what_is_wrong(state.default_task)):
        if not daemon.running(layout, agent.NAME):
            raise ClusterError(why)
        reporter.note(why)
    _choose_ports(layout, state, wishes.master_port, claims, reporter)
    asked = wishes.slots is not None or wishes.gpu is not None
    # A live agent keeps its slots: detecting others under another CPU affinity must not restart it.
    if recorded is None or asked or not daemon.running(layout, agent.NAME):
        _choose_slots(state, wishes)
    return state


def build(
    layout: Layout, state: ClusterState, chosen: Collection[str] | None = None
) -> list[Component]:
    """The components of ``chosen`` (None: all) in starting order. With an external database there is no
    ``postgres`` among them."""
    known = names(state)
    wanted = known if chosen is None else chosen
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        raise ClusterError(f"unknown component {unknown[0]!r}; choose one of {', '.join(known)}")
    own_database = state.external_db_url is None
    after = (postgres.NAME,) if own_database else ()
    components: list[Component] = []
    if own_database and postgres.NAME in wanted:
        components.append(postgres.component(layout, state))
    if prefect_server.NAME in wanted:
        components.append(prefect_server.component(layout, state, after))
    if service.NAME in wanted:
        components.append(service.component(layout, state, after))
    if agent.NAME in wanted:
        components.append(agent.component(layout, state, (*after, prefect_server.NAME)))
    after_service = (*after, prefect_server.NAME, service.NAME, agent.NAME)
    components += [
        each for each in agent.of_other_pools(layout, state, after_service) if each.name in wanted
    ]
    return components


def move(
    state: ClusterState,
    name: str,
    wishes: ClusterOptions,
    claims: ports.Claims,
    reporter: ClusterReporter,
) -> None:
    """Give component ``name`` another port, because another process took its port between the choice and
    the start. Raises ClusterError if the user asked for that port.
    """
    taken: int = getattr(state, PORTS[name])
    if name == service.NAME and wishes.master_port is not None:
        raise _in_use(taken)
    port = ports.pick(None if name == postgres.NAME else taken + 1, claims)
    reporter.note(f"port {taken} was taken meanwhile by {ports.holder(taken)}; {name} takes {port}")
    setattr(state, PORTS[name], port)


def _in_use(port: int) -> ClusterError:
    return ClusterError(f"--master-port {port}: the port is in use by {ports.holder(port)}")


def _apply_database(state: ClusterState, wanted: str | None, is_new: bool) -> None:
    if wanted is None:
        return
    databases.check_server_url(wanted)
    current = state.external_db_url
    if not is_new and (current is None or databases.server(current) != databases.server(wanted)):
        where = databases.without_password(current) if current else "its own Postgres"
        raise ClusterError(
            f"--db-url: this cluster's data is in {where}; choose another --data-dir for a second "
            "cluster, or delete this one's data with `cluster-down --delete-db` first"
        )
    state.external_db_url = wanted


def _choose_ports(
    layout: Layout,
    state: ClusterState,
    master_port: int | None,
    claims: ports.Claims,
    reporter: ClusterReporter,
) -> None:
    def wait_for_the_killed(name: str, wanted: int) -> None:
        # What still runs knows a component that was killed by this port, and a process that was killed
        # this moment may hold it until its last thread is gone.
        if layout.pid_file(name).exists():
            ports.wait_until_free(wanted, KILLED_HOLDS_S)

    def settle(name: str, wanted: int | None) -> int:
        if wanted is not None:
            if daemon.running(layout, name):
                return wanted
            wait_for_the_killed(name, wanted)
        port = ports.pick(wanted, claims)
        if wanted is not None and port != wanted:
            reporter.note(f"port {wanted} is in use by {ports.holder(wanted)}; {name} takes {port}")
        return port

    stays = master_port == state.master_port and daemon.running(layout, service.NAME)
    if master_port is not None and not stays:
        if master_port == state.master_port:
            wait_for_the_killed(service.NAME, master_port)
        if not (ports.is_free(master_port) and claims.take(master_port)):
            raise _in_use(master_port)
        state.master_port = master_port
    else:
        state.master_port = settle(service.NAME, state.master_port)
    state.prefect_port = settle(prefect_server.NAME, state.prefect_port)
    if state.external_db_url is None:
        state.postgres_port = settle(postgres.NAME, state.postgres_port)


def _choose_slots(state: ClusterState, wishes: ClusterOptions) -> None:
    if wishes.slots is not None:
        state.slots_wanted = wishes.slots
    if wishes.gpu is not None:
        state.gpu_wanted = wishes.gpu
    state.slot_type, state.slots = slots.detect(state.slots_wanted, state.gpu_wanted)

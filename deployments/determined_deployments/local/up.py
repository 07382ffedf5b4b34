"""Starts the cluster, or its components that do not run."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import psutil

from determined.common.cluster_config import ClusterConfig
from determined_deployments.local import (
    agent,
    configuration,
    daemon,
    databases,
    lock,
    notices,
    plan,
    ports,
    recovery,
    service,
)
from determined_deployments.local import state as states
from determined_deployments.local.component import TERMINATE, Component, release_of
from determined_deployments.local.errors import ClusterError, ComponentFailed
from determined_deployments.local.layout import Layout, write_private
from determined_deployments.local.report import ClusterReporter, Silent, quiet_end
from determined_deployments.local.state import ClusterState

POLL = 0.1
"""Seconds between looks at the components that are not ready yet."""
LOG_LINES = 30
MOVES = 5
"""The number of ports that a component may try before it counts as failed."""


def cluster_up(
    data_dir: str | os.PathLike[str] | None = None,
    wishes: plan.ClusterOptions | None = None,
    *,
    components: Collection[str] | None = None,
    reporter: ClusterReporter | None = None,
) -> ClusterState:
    """Brings the cluster of ``data_dir`` up and returns its state once every component (or only
    ``components``) is ready.

    Running components stay, dead ones are started again, and those that run with other settings than wanted
    now are restarted. When a component fails, the components started by this call are stopped again. Raises
    ClusterError (ComponentFailed with the log's last lines); also when the cluster is up, with the
    configuration that it had, because the service refuses the one that is wanted.
    """
    reporter, wishes = reporter or Silent(), wishes or plan.ClusterOptions()
    layout = Layout.of(data_dir)
    try:
        layout.create()
    except OSError as error:
        raise ClusterError(f"cannot use {layout.root}: {error.strerror}") from error
    with (
        lock.held(layout.lock, reporter.note),
        quiet_end(reporter),
        ports.Claims() as claims,
    ):
        notices.look_at_disk(layout, reporter)
        chosen = configuration.choose(layout, wishes.config, reporter)
        recorded = states.load(layout)
        refused = ""
        if recorded:
            recovery.recover(layout, recorded.marker, reporter, agent.other_names(recorded))
            if configuration.refusal(recorded):
                _stop(layout, service.NAME)  # so that it reads the file again
            elif components is None or service.NAME in components:
                # A running service is not disturbed by a configuration that it would refuse.
                refused = configuration.objection(recorded, chosen)
        state = plan.resolve(layout, wishes, claims, reporter)
        with_service = components is None or service.NAME in components
        pool = chosen.config.pool_of_flows
        if recorded is None:
            state.pool = pool
        others_before = state.other_pools if recorded else None
        if not refused:
            state.other_pools = _other_pools(chosen.config, state)
            _stop_agents_that_leave(layout, state)
        states.save(layout, state)
        if state.external_db_url:
            databases.ensure(databases.maintenance(state.external_db_url))

        def bring_up(names: Collection[str]) -> None:
            def move(name: str) -> Sequence[Component]:
                plan.move(state, name, wishes, claims, reporter)
                states.save(layout, state)
                return plan.build(layout, state, names)

            start(layout, state.marker, plan.build(layout, state, names), reporter, move)

        def wanted() -> Collection[str]:
            return plan.names(state) if components is None else components

        moves = state.pool != pool or others_before not in (None, state.other_pools)
        if not refused and moves and with_service:
            # Agents follow once the service knows the pools; if it refuses, they stay where they are.
            bring_up([name for name in wanted() if not agent.is_agent(name)])
            refused = configuration.refusal(state)
        if not refused:
            state.pool = pool
            states.save(layout, state)
            bring_up(wanted())
            refused = configuration.refusal(state) if with_service else ""
            if not refused and with_service:
                configuration.settle(layout)
            if not refused and with_service and (components is None or agent.NAME in components):
                notices.say_without_agent(state, reporter)
        if refused:
            configuration.put_back(layout, chosen)
            state.other_pools = _other_pools(configuration.former(chosen), state)
            states.save(layout, state)
            bring_up(wanted())
            raise ClusterError(f"the cluster keeps the configuration that it had:\n{refused}")
    return state


def _other_pools(config: ClusterConfig, state: ClusterState) -> list[str]:
    """The pools of machines that get a separate agent beside the agent of the flows."""
    names = [pool.pool_name for pool in config.pools]
    machines = [name for name in names if config.manager_of(name).type == "agent"]
    others = [name for name in machines if name != config.pool_of_flows]
    aux = config.default_pool(0)
    # Tasks go to that one without being told to.
    others.sort(key=lambda name: name != aux)
    return [] if state.one_agent else others[: agent.MOST]


def _stop_agents_that_leave(layout: Layout, state: ClusterState) -> None:
    """Those of pools that the configuration has no more: a live agent would keep its pool in it."""
    kept = agent.other_names(state)
    for path in sorted(layout.pid_file(agent.NAME).parent.glob(f"{agent.NAME}-*.json")):
        if path.stem not in kept:
            _stop(layout, path.stem)


def _stop(layout: Layout, name: str) -> None:
    record = daemon.read_pid_file(layout.pid_file(name))
    process = daemon.alive(record) if record else None
    if process is not None:
        daemon.stop(process, TERMINATE)
    layout.pid_file(name).unlink(missing_ok=True)


Move = Callable[[str], Sequence[Component]]
"""Gives the component of that name another port; returns all components with their new settings."""


def start(
    layout: Layout,
    marker: str,
    components: Sequence[Component],
    reporter: ClusterReporter,
    move: Move | None = None,
) -> None:
    """Start those of ``components`` that do not run, each as soon as the components it depends on are
    ready. Returns when all are ready. After a ClusterError none of the started components is left.

    If another process takes a component's port before the component listens, it is moved to another port,
    if ``move`` is given. Components whose settings change by that are started again.
    """
    _Start(layout, marker, list(components), reporter, move).run()


@dataclass
class _Running:
    component: Component
    process: psutil.Process
    since: float
    """Monotonic seconds at its start (or when it was found)."""
    child: subprocess.Popen[bytes] | None = None
    """Set for components that this call started."""

    def died(self) -> bool:
        if self.child:
            return self.child.poll() is not None
        return daemon.is_gone(self.process)


@dataclass
class _Start:
    """One pass over the components, each started as soon as those before it are ready."""

    layout: Layout
    marker: str
    components: list[Component]
    reporter: ClusterReporter
    move: Move | None
    active: dict[str, _Running] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    moves: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        try:
            while len(self.ready) < len(self.components):
                self._step()
                time.sleep(POLL)
        except BaseException:
            self._undo()
            raise

    def _step(self) -> None:
        components = self.components
        present = {component.name for component in components}
        for component in components:
            name = component.name
            if name in self.ready:
                continue
            waits = any(other in present - self.ready for other in component.after)
            if name not in self.active and not waits:
                self.active[name] = self._adopt(component) or self._launch(component)
            self._look_at(name)
            if self.components is not components:
                return  # something has moved
        self.reporter.waiting([name for name in self.active if name not in self.ready])

    def _look_at(self, name: str) -> None:
        running = self.active.get(name)
        if running is None:
            return
        component = running.component
        if component.is_ready() and not running.died():
            if component.established:
                component.established()
            self.ready.add(name)
            if running.child:
                self.reporter.done(name, "ready", time.monotonic() - running.since)
            else:
                self.reporter.done(name, "already running")
        elif running.child is None and running.died():
            # It was killed as this command began, and seemed alive when it was found: started in the
            # next step, on its own port.
            del self.active[name]
        elif self._lost_its_port(running) and self.moves[name] < MOVES:
            self._move(name)
        elif running.died():
            code = running.child.returncode if running.child else None
            how = f" (exit status {code})" if code is not None else ""
            self._fail(component, f"{name} ended before it was ready{how}")
        elif time.monotonic() - running.since > component.ready_timeout:
            advice = "" if running.child else "; `cluster-down` ends it"
            self._fail(
                component,
                f"{name} (pid {running.process.pid}) was not ready after "
                f"{component.ready_timeout:.0f} s{advice}",
            )

    def _lost_its_port(self, running: _Running) -> bool:
        port = running.component.port
        if port is None or self.move is None:
            return False
        if running.died():
            return not ports.is_free(port)
        return ports.listener(port, running.process) == "other"

    def _move(self, name: str) -> None:
        """Give a component another port, and restart the components that must know it."""
        assert self.move is not None
        self.moves[name] += 1
        self._end(name)
        self.components = list(self.move(name))
        for component in self.components:
            running = self.active.get(component.name)
            if running is None:
                continue
            if running.component.fingerprint == component.fingerprint:
                running.component = component
            else:
                self._end(component.name)

    def _end(self, name: str) -> None:
        running = self.active.pop(name)
        self.ready.discard(name)
        daemon.stop(running.process, running.component.stop_signals)
        self.layout.pid_file(name).unlink(missing_ok=True)

    def _adopt(self, component: Component) -> _Running | None:
        """The component's process if it runs with the settings wanted now."""
        name, path = component.name, self.layout.pid_file(component.name)
        record = daemon.read_pid_file(path)
        process = daemon.alive(record) if record else None
        if process is None:
            if record:
                self.reporter.note(f"{name} (pid {record.pid}) is not running any more")
            return None
        if record and record.fingerprint != component.fingerprint:
            before, now = release_of(record.fingerprint), release_of(component.fingerprint)
            if before == now:
                self.reporter.note(f"{name} runs with other settings than wanted; restarting it")
            else:
                before = before or "an earlier one"
                self.reporter.note(
                    f"{name} is of another release ({before}, not {now}); restarting it"
                )
            at_once = component.hands_over and before != now
            daemon.stop(process, () if at_once else component.stop_signals)
            return None
        return _Running(component, process, time.monotonic())

    def _launch(self, component: Component) -> _Running:
        since = time.monotonic()
        if component.port is not None and self.layout.pid_file(component.name).exists():
            # The one before may have been killed this moment, and holds the port until it is gone.
            ports.wait_until_free(component.port, plan.KILLED_HOLDS_S)
        for path, text in component.files.items():
            write_private(path, text)
        if component.prepare:
            component.prepare(self.reporter.note)
        try:
            child = daemon.start(self.layout, component, self.marker)
        except OSError as error:
            raise ClusterError(f"cannot start {component.name}: {error}") from error
        return _Running(component, psutil.Process(child.pid), since, child)

    def _fail(self, component: Component, message: str) -> None:
        log = self.layout.log(component.name)
        raise ComponentFailed(f"{message}; its log is {log}", daemon.tail(log, LOG_LINES))

    def _undo(self) -> None:
        """Stop the components that this call started, last first."""
        self.reporter.waiting([])
        for component in reversed(self.components):
            running = self.active.get(component.name)
            if running and running.child:
                self._end(component.name)
                self.reporter.done(component.name, "stopped again")

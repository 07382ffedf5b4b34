"""The faults that the suite makes. Each fault is over when its function returns; its consequences are not."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from random import Random

import psutil

from determined.common.api import errors
from tests.chaos.world import AgentProcess, World, docker

NEW_S = 10.0
CONTAINERS_S = 5.0


@dataclass(frozen=True)
class Fault:
    """``inject`` answers whether there was anything to do it to. ``weight``: its relative frequency in its
    lane. ``docker``: there must be an agent with containers for it."""

    name: str
    weight: float
    inject: Callable[[World, Random], bool]
    lane: str = "machines"
    docker: bool = False


def kill_training(world: World, random: Random) -> bool:
    """The training process of a leg."""
    legs = [leg for agent in world.agents for leg in agent.legs() if leg.user]
    return bool(legs) and _kill(random.choice(legs).user)


def kill_supervisor(world: World, random: Random) -> bool:
    """Kill the supervisor of a leg, so that its training process runs without one."""
    legs = [leg for agent in world.agents for leg in agent.legs()]
    return bool(legs) and _kill(random.choice(legs).supervisor)


def kill_flow(world: World, random: Random) -> bool:
    """A process that drives a search."""
    flows = [process for agent in world.agents for process in agent.flows()]
    if not flows:
        return False
    with contextlib.suppress(psutil.Error):
        random.choice(flows).kill()
        return True
    return False


def kill_agent(world: World, random: Random) -> bool:
    """Kill an agent alone; its processes go on."""
    agent = random.choice(world.agents)
    if agent.process is None or _is_new(agent, random):
        return False
    agent.process.kill()
    agent.process.wait()
    time.sleep(random.uniform(0, 1))
    agent.start()
    return True


def kill_machine(world: World, random: Random) -> bool:
    """An agent with everything it started, at once, as when its machine loses power."""
    agent = random.choice(world.agents)
    if agent.process is None or _is_new(agent, random):
        return False
    for process in _tree(agent):
        with contextlib.suppress(psutil.Error):
            process.kill()
    agent.process.wait()
    for name in agent.containers():
        _docker("kill", name)
    time.sleep(random.uniform(0, 1))
    agent.start()
    return True


def _is_new(agent: AgentProcess, random: Random) -> bool:
    """Mostly, of an agent that was just started: on a slow machine none would ever get to its work."""
    return time.monotonic() - agent.started < NEW_S and random.random() < 0.9


def kill_component(name: str) -> Callable[[World, Random], bool]:
    def inject(world: World, random: Random) -> bool:
        process = world.component(name)
        if process is None:
            return False
        with contextlib.suppress(psutil.Error):
            process.kill()
            process.wait(10)
        time.sleep(random.uniform(0, 1))
        world.revive()
        return True

    inject.__doc__ = f"``kill -9`` of {name}."
    return inject


def kill_everything(world: World, random: Random) -> bool:
    """Every process of the cluster and of its agents' machines; then two people start it again."""
    for _ in range(3):  # what was forked meanwhile, too
        for process in world.members():
            with contextlib.suppress(psutil.Error):
                process.kill()
    time.sleep(random.uniform(0, 1))
    starts = [threading.Thread(target=world.revive) for _ in range(2)]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    for agent in world.agents:
        agent.start()
    return True


def stop_component(name: str) -> Callable[[World, Random], bool]:
    def inject(world: World, random: Random) -> bool:
        process = world.component(name)
        return process is not None and _stop(world, [process], random)

    inject.__doc__ = f"{name} stands still for a while."
    return inject


def stop_agent(world: World, random: Random) -> bool:
    """An agent stands still."""
    agent = random.choice(world.agents)
    return agent.process is not None and _stop(world, [psutil.Process(agent.process.pid)], random)


def stop_leg(world: World, random: Random) -> bool:
    """A supervisor and its training process stand still."""
    legs = [leg for agent in world.agents for leg in agent.legs() if leg.user or agent.engine]
    if not legs:
        return False
    leg = random.choice(legs)
    pids = [leg.supervisor.pid, *([leg.user.pid] if leg.user else [])]
    with contextlib.suppress(psutil.Error):
        return _stop(world, [psutil.Process(pid) for pid in pids], random)
    return False


def stop_flow(world: World, random: Random) -> bool:
    """A process that drives a search stands still."""
    flows = [process for agent in world.agents for process in agent.flows()]
    return bool(flows) and _stop(world, [random.choice(flows)], random)


def cut_connections(world: World, random: Random) -> bool:
    """All connections between an agent's machine and the service break."""
    return random.choice(world.agents).proxy.cut() > 0


def lose_answers(world: World, random: Random) -> bool:
    """Requests arrive, but their answers do not."""
    proxy = random.choice(world.agents).proxy
    proxy.swallowing = True
    time.sleep(random.uniform(0.1, 1))
    proxy.swallowing = False
    return True


def refuse_connections(world: World, random: Random) -> bool:
    """An agent's machine cannot reach the service."""
    proxy = random.choice(world.agents).proxy
    proxy.refusing = True
    proxy.cut()
    time.sleep(random.uniform(0.2, 2))
    proxy.refusing = False
    return True


def slow_network(world: World, random: Random) -> bool:
    """Slow the connection between an agent's machine and the service."""
    proxy = random.choice(world.agents).proxy
    proxy.delay_s = random.uniform(0.05, 0.5)
    time.sleep(random.uniform(0.5, 2))
    proxy.delay_s = 0.0
    return True


def kill_container(world: World, random: Random) -> bool:
    """`docker kill` of a leg's container."""
    return _to_container(random, world, "kill")


def remove_container(world: World, random: Random) -> bool:
    """`docker rm -f` of a leg's container."""
    return _to_container(random, world, "rm", "--force")


def stop_container(world: World, random: Random) -> bool:
    """`docker stop` of a leg's container."""
    return _to_container(random, world, "stop", "--time=1")


def kill_inside(world: World, random: Random) -> bool:
    """A process in a container; the container's own or its child."""
    names = _containers(world)
    if not names:
        return False
    pid = docker("inspect", "--format", "{{.State.Pid}}", random.choice(names)).strip()
    if pid == "0":
        return False
    with contextlib.suppress(psutil.Error):
        first = psutil.Process(int(pid))
        random.choice([first, *first.children()]).kill()
        return True
    return False


def pause_container(world: World, random: Random) -> bool:
    """`docker pause`, and `unpause` a while later."""
    names = _containers(world)
    if not names:
        return False
    name = random.choice(names)
    docker("pause", name)
    time.sleep(random.uniform(0.1, 1.5))
    _docker("unpause", name)
    return True


def stop_engine(world: World, random: Random) -> bool:
    """The engine stands still."""
    assert world.engine is not None
    pid = world.engine.pid
    return pid is not None and _stop(world, [psutil.Process(pid)], random)


def kill_engine(world: World, random: Random) -> bool:
    """``kill -9`` of the engine, which is started again."""
    assert world.engine is not None
    world.engine.kill()
    time.sleep(random.uniform(0, 1))
    world.engine.start()
    return True


def restart_engine(world: World, random: Random) -> bool:
    """As `systemctl restart docker`."""
    assert world.engine is not None
    world.engine.stop()
    time.sleep(random.uniform(0, 1))
    world.engine.start()
    return True


def _containers(world: World) -> list[str]:
    """Waits for some, with a limit."""
    deadline = time.monotonic() + CONTAINERS_S
    while True:
        found = [name for agent in world.agents for name in agent.containers()]
        if found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def _to_container(random: Random, world: World, *command: str) -> bool:
    names = _containers(world)
    return bool(names) and _docker(*command, random.choice(names))


def _docker(*args: str) -> bool:
    """True if the engine did it; the container may be gone."""
    with contextlib.suppress(subprocess.SubprocessError):
        docker(*args)
        return True
    return False


def fill_disk(world: World, random: Random) -> bool:
    """Leave no room for checkpoints."""
    if not world.small_disk:
        return False
    with contextlib.suppress(OSError), world.filler.open("wb") as file:
        while True:
            file.write(b"\0" * (1 << 20))
            file.flush()
    time.sleep(random.uniform(0.2, 1.5))
    world.filler.unlink(missing_ok=True)
    return True


def damage_checkpoint(world: World, random: Random) -> bool:
    """Damage the latest checkpoint of a trial that has to start from it."""
    with world.database() as conn:
        rows = conn.execute(
            "SELECT t.latest_checkpoint, a.id FROM trials t JOIN allocations a ON a.trial_id = t.id"
            " WHERE t.state = 'ACTIVE' AND t.latest_checkpoint IS NOT NULL AND a.state = 'RUNNING'"
        ).fetchall()
    if not rows:
        return False
    uuid, allocation = random.choice(rows)
    path = world.storage / str(uuid) / "step"
    if not path.exists():
        return False
    world.damaged.add(str(uuid))
    path.write_text("x" * path.stat().st_size)
    for agent in world.agents:
        for leg in agent.legs():
            if leg.allocation_id == allocation and leg.user:
                _kill(leg.user)
        for name in agent.containers(str(allocation)):
            _docker("kill", name)
    return True


def pause_and_activate(world: World, random: Random) -> bool:
    """A user pauses an experiment and lets it go on."""
    with world.database() as conn:
        rows = conn.execute("SELECT id FROM experiments WHERE state = 'ACTIVE'").fetchall()
    if rows:
        with world.session() as session, contextlib.suppress(errors.BadRequestException):
            session.post(f"/api/v1/experiments/{random.choice(rows)[0]}/pause")
            time.sleep(random.uniform(0, 0.5))
    # Start all of them, because an earlier attempt may have failed.
    world.activate_paused()
    return bool(rows)


FAULTS = [
    Fault("training process killed", 8, kill_training),
    Fault("supervisor killed", 4, kill_supervisor),
    Fault("flow killed", 4, kill_flow),
    Fault("agent killed", 1.5, kill_agent),
    Fault("agent killed with its processes", 1, kill_machine),
    Fault("service killed", 2, kill_component("service"), "cluster"),
    Fault("Prefect server killed", 0.7, kill_component("prefect"), "cluster"),
    Fault("Postgres killed", 1, kill_component("postgres"), "cluster"),
    Fault("everything killed", 0.4, kill_everything, "cluster"),
    Fault("leg stopped", 3, stop_leg),
    Fault("flow stopped", 2, stop_flow),
    Fault("agent stopped", 2, stop_agent),
    Fault("service stopped", 2, stop_component("service"), "cluster"),
    Fault("Prefect server stopped", 1, stop_component("prefect"), "cluster"),
    Fault("Postgres stopped", 1, stop_component("postgres"), "cluster"),
    Fault("connections cut", 10, cut_connections, "network"),
    Fault("answers lost", 6, lose_answers, "network"),
    Fault("connections refused", 3, refuse_connections, "network"),
    Fault("network slow", 3, slow_network, "network"),
    Fault("disk full", 2, fill_disk),
    Fault("checkpoint damaged", 2, damage_checkpoint),
    Fault("experiment paused and activated", 1.5, pause_and_activate),
    Fault("container killed", 4, kill_container, "containers", docker=True),
    Fault("container removed", 3, remove_container, "containers", docker=True),
    Fault("container stopped", 2, stop_container, "containers", docker=True),
    Fault("container paused", 2, pause_container, "containers", docker=True),
    Fault("process in a container killed", 4, kill_inside, "containers", docker=True),
    Fault("engine stopped", 2, stop_engine, "engine", docker=True),
    Fault("engine killed", 1, kill_engine, "engine", docker=True),
    Fault("engine restarted", 1, restart_engine, "engine", docker=True),
]


LANES = {"machines": 8.0, "network": 3.0, "cluster": 0.4, "containers": 0.8, "engine": 0.05}
"""Faults of different lanes happen at the same time; how many a second, were each over at once. With
more of the last kind nothing would ever run that the others could hit."""


TRIES = 5
"""How often a kind of fault is tried before all go by chance: some cannot be made on every machine."""


def kinds(docker: bool = False) -> set[str]:
    """The names of all faults that there are, with or without containers."""
    return {fault.name for fault in FAULTS if docker or not fault.docker}


def schedule(
    lane: str, random: Random, made: Container[str], docker: bool = False
) -> Iterator[Fault]:
    """Yield every kind of fault of the lane once, and once more if it is not in ``made``; then random kinds.
    None where the lane has none."""
    faults = [fault for fault in FAULTS if fault.lane == lane and (docker or not fault.docker)]
    if not faults:
        return
    for _ in range(TRIES):
        missing = [fault for fault in faults if fault.name not in made]
        random.shuffle(missing)
        yield from missing
    while True:
        yield random.choices(faults, [fault.weight for fault in faults])[0]


LONG_STOP_S = 60.0
"""A stop that others take for death."""


def _stop(world: World, processes: list[psutil.Process], random: Random) -> bool:
    long = world.long_stops and random.random() < 0.05
    seconds = LONG_STOP_S if long else random.uniform(0.1, 1.5)
    with contextlib.suppress(psutil.Error):
        for process in processes:
            process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGCONT)
    return True


def _kill(name: object) -> bool:
    """Kills the process with this ProcessName, if it is still there."""
    pid, alive = getattr(name, "pid", None), getattr(name, "is_alive", None)
    if pid is None or alive is None or not alive():
        return False
    with contextlib.suppress(psutil.Error):
        psutil.Process(pid).kill()
        return True
    return False


def _tree(agent: AgentProcess) -> list[psutil.Process]:
    """The agent's process first: it would start again what dies."""
    assert agent.process is not None
    found = [psutil.Process(agent.process.pid)]
    with contextlib.suppress(psutil.Error):
        found += found[0].children(recursive=True)
    for leg in agent.legs():
        for name in (leg.supervisor, leg.user):
            if name is not None and name.is_alive():
                with contextlib.suppress(psutil.Error):
                    found.append(psutil.Process(name.pid))
    found += agent.flows()
    return found

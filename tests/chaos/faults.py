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
from typing import Any

import psutil

from determined.common.api import errors
from tests.chaos.nodes import IMAGE, NAMESPACE, NODES, Nodes
from tests.chaos.world import CONTAINERS, PODS, AgentProcess, World, docker
from tests.kubernetes.standin.cluster import Cluster
from tests.kubernetes.standin.kubelet import AWAY, PodRun
from tests.kubernetes.standin.objects import Object

NEW_S = 10.0
CONTAINERS_S = 5.0


@dataclass(frozen=True)
class Fault:
    """``inject`` answers whether there was anything to do it to. ``weight``: its relative frequency in its
    lane. ``needs``: the pool that it needs besides the first; empty: none."""

    name: str
    weight: float
    inject: Callable[[World, Random], bool]
    lane: str = "machines"
    needs: str = ""


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
    for process in world.nodes.training(str(allocation)) if world.nodes else ():
        with contextlib.suppress(psutil.Error):
            process.kill()
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


def _nodes(world: World) -> Nodes:
    assert world.nodes is not None
    return world.nodes


def to_pod(act: Callable[[Cluster, Object], Any], words: str) -> Callable[[World, Random], bool]:
    """``act``: answers False where there was nothing to do."""

    def inject(world: World, random: Random) -> bool:
        return _nodes(world).to_pod(random, act)

    inject.__doc__ = words
    return inject


def _run(cluster: Cluster, pod: Object) -> PodRun | None:
    """What its node has of a pod."""
    kubelet = cluster.kubelets.get(pod["spec"]["nodeName"])
    return kubelet.run_of(pod) if kubelet is not None else None


def _kill_pod(cluster: Cluster, pod: Object) -> bool:
    if run := _run(cluster, pod):
        run.kill()
    return run is not None


def _run_out_of_memory(cluster: Cluster, pod: Object) -> bool:
    if run := _run(cluster, pod):
        run.kill("OOMKilled")
    return run is not None


def _evict(cluster: Cluster, pod: Object) -> bool:
    if is_there := _run(cluster, pod) is not None:
        cluster.evict(pod)
    return is_there


def _delete_pod(cluster: Cluster, pod: Object) -> None:
    pod = cluster.store.get("pods", NAMESPACE, pod["metadata"]["name"])
    cluster.deletion.delete("pods", pod, None, None)


def _force_away(cluster: Cluster, pod: Object) -> None:
    cluster.deletion.delete("pods", pod, None, 0)


def _preempt(cluster: Cluster, pod: Object) -> None:
    cluster.preempt(cluster.store.get("pods", NAMESPACE, pod["metadata"]["name"]))


def _delete_job(cluster: Cluster, pod: Object) -> None:
    (owner,) = pod["metadata"]["ownerReferences"]
    job = cluster.store.get("jobs", NAMESPACE, owner["name"])
    cluster.deletion.delete("jobs", job, "Background", None)


def kill_in_pod(world: World, random: Random) -> bool:
    """The training process in a pod."""
    found = _training(world)
    if not found:
        return False
    with contextlib.suppress(psutil.Error):
        random.choice(found).kill()
        return True
    return False


def stop_in_pod(world: World, random: Random) -> bool:
    """The training process in a pod stands still."""
    found = _training(world)
    return bool(found) and _stop(world, [random.choice(found)], random)


def _training(world: World) -> list[psutil.Process]:
    """Waits for some, with a limit."""
    deadline = time.monotonic() + CONTAINERS_S
    while not (found := _nodes(world).training()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def drain_node(world: World, random: Random) -> bool:
    """As `kubectl drain`, and `uncordon` a while later."""
    nodes, name = _nodes(world), random.choice(NODES)
    nodes.do(lambda cluster: cluster.drain(name))
    time.sleep(random.uniform(0.5, 2))
    nodes.do(lambda cluster: cluster.cordon(name, False))
    return True


def lose_node(world: World, random: Random) -> bool:
    """A node is silent for a while; now and then for so long that the cluster gives its pods up."""
    nodes, name, evict = _nodes(world), random.choice(NODES), random.random() < 0.5
    nodes.do(lambda cluster: cluster.lose_node(name, evict=evict))
    time.sleep(random.uniform(0.5, 3))
    nodes.do(lambda cluster: cluster.return_node(name))
    return True


def remove_node(world: World, random: Random) -> bool:
    """A node leaves the cluster with all that runs on it; another one of its name joins."""
    nodes, name = _nodes(world), random.choice(NODES)
    nodes.do(lambda cluster: cluster.remove_node(name))
    time.sleep(random.uniform(0.2, 2))
    nodes.add(name)
    return True


def api_away(world: World, random: Random) -> bool:
    """The API server is away; nodes and controllers go on."""
    nodes = _nodes(world)
    nodes.go_away()
    time.sleep(random.uniform(0.5, 4))
    nodes.come_back()
    return True


def break_watches(world: World, random: Random) -> bool:
    """The API server ends all watches."""
    _nodes(world).do(lambda cluster: cluster.store.break_watches())
    return True


def forget_history(world: World, random: Random) -> bool:
    """The connections break, and the server does not know any more what happened before: 410."""
    nodes = _nodes(world)
    nodes.api.refusing = True
    nodes.api.cut()
    time.sleep(random.uniform(0.2, 1))
    nodes.do(lambda cluster: cluster.store.forget())
    nodes.api.refusing = False
    return True


def cut_api(world: World, random: Random) -> bool:
    """All connections between the agent and the API server break."""
    return _nodes(world).api.cut() > 0


def lose_api_answers(world: World, random: Random) -> bool:
    """The API server does what is asked, and its answers are lost."""
    api = _nodes(world).api
    api.swallowing = True
    time.sleep(random.uniform(0.1, 1))
    api.swallowing = False
    return True


def slow_api(world: World, random: Random) -> bool:
    """Slow the connection between the agent and the API server."""
    api = _nodes(world).api
    api.delay_s = random.uniform(0.05, 0.5)
    time.sleep(random.uniform(0.5, 2))
    api.delay_s = 0.0
    return True


def no_quota(world: World, random: Random) -> bool:
    """The namespace's quota has no room, for pods or for Jobs."""
    quotas = _nodes(world).do(lambda cluster: cluster.admission.quotas)
    quotas[NAMESPACE] = {random.choice(["pods", "count/jobs.batch"]): 0}
    time.sleep(random.uniform(0.5, 3))
    quotas.clear()
    return True


def registry_away(world: World, random: Random) -> bool:
    """Images cannot be pulled for a while."""
    states = _nodes(world).do(lambda cluster: cluster.images.states)
    states[IMAGE] = AWAY
    time.sleep(random.uniform(0.5, 3))
    states.clear()
    return True


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
    Fault("container killed", 4, kill_container, "containers", CONTAINERS),
    Fault("container removed", 3, remove_container, "containers", CONTAINERS),
    Fault("container stopped", 2, stop_container, "containers", CONTAINERS),
    Fault("container paused", 2, pause_container, "containers", CONTAINERS),
    Fault("process in a container killed", 4, kill_inside, "containers", CONTAINERS),
    Fault("engine stopped", 2, stop_engine, "engine", CONTAINERS),
    Fault("engine killed", 1, kill_engine, "engine", CONTAINERS),
    Fault("engine restarted", 1, restart_engine, "engine", CONTAINERS),
    Fault("pod killed", 4, to_pod(_kill_pod, "All processes of a pod."), "pods", PODS),
    Fault("pod out of memory", 1, to_pod(_run_out_of_memory, "By its limit."), "pods", PODS),
    Fault("pod evicted", 3, to_pod(_evict, "By its node."), "pods", PODS),
    Fault("pod deleted", 3, to_pod(_delete_pod, "`kubectl delete pod`."), "pods", PODS),
    Fault("pod deleted by force", 2, to_pod(_force_away, "With grace 0."), "pods", PODS),
    Fault("pod preempted", 2, to_pod(_preempt, "By Kubernetes."), "pods", PODS),
    Fault("Job deleted", 3, to_pod(_delete_job, "`kubectl delete job`."), "pods", PODS),
    Fault("training process in a pod killed", 3, kill_in_pod, "pods", PODS),
    Fault("training process in a pod stopped", 1, stop_in_pod, "pods", PODS),
    Fault("node drained", 2, drain_node, "nodes", PODS),
    Fault("node lost", 3, lose_node, "nodes", PODS),
    Fault("node removed", 2, remove_node, "nodes", PODS),
    Fault("quota used up", 2, no_quota, "nodes", PODS),
    Fault("registry away", 2, registry_away, "nodes", PODS),
    Fault("API server away", 2, api_away, "API", PODS),
    Fault("watches broken", 3, break_watches, "API", PODS),
    Fault("watches too old", 2, forget_history, "API", PODS),
    Fault("API connections cut", 3, cut_api, "API", PODS),
    Fault("API answers lost", 3, lose_api_answers, "API", PODS),
    Fault("API slow", 2, slow_api, "API", PODS),
]


LANES = {
    "machines": 8.0,
    "network": 3.0,
    "cluster": 0.4,
    "containers": 0.8,
    "engine": 0.05,
    "pods": 0.5,
    "nodes": 0.06,
    "API": 0.15,
}
"""Faults of different lanes happen at the same time; how many a second, were each over at once. With
more of the engine's or nodes' nothing would ever run that the others could hit."""


TRIES = 5
"""How often a kind of fault is tried before all go by chance: some cannot be made on every machine."""


def kinds(pools: Container[str], lanes: Container[str] = LANES) -> set[str]:
    """The names of the faults of these lanes that there are with agents of these pools."""
    return {fault.name for fault in _faults(pools, lanes)}


def _faults(pools: Container[str], lanes: Container[str]) -> list[Fault]:
    return [
        fault
        for fault in FAULTS
        if fault.lane in lanes and (not fault.needs or fault.needs in pools)
    ]


def schedule(
    lane: str, random: Random, made: Container[str], pools: Container[str]
) -> Iterator[Fault]:
    """Yield every kind of fault of the lane once, and once more if it is not in ``made``; then random kinds.
    None where the lane has none with agents of ``pools``."""
    faults = _faults(pools, [lane])
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

"""What becomes of legs when the cluster does something to them, over the stand-in of Kubernetes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from determined.common.wire.legs import ExitKind, LegSpec, leg_id_of
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.held import Held
from determined_deployments.agent.launchers.base import Call, Exit, Job, Running
from determined_deployments.agent.launchers.kubernetes import launcher as launchers
from determined_deployments.agent.launchers.kubernetes.launcher import KubernetesLauncher
from determined_deployments.agent.launchers.testing_agent import no_model_definition
from tests.kubernetes.standin.running import StandIn, running
from tests.waiting import TIMEOUT_S, until_async

STAY = "determined_deployments.agent.launchers.testing_jobs:stay"
OLD, NEW = "1.20", "1.33"
both = pytest.mark.parametrize("standin", [OLD, NEW], indirect=True)


@pytest.fixture
def standin(request: pytest.FixtureRequest) -> Iterator[StandIn]:
    with running(getattr(request, "param", NEW)) as found:
        found.do(lambda cluster: cluster.add_node("node-a", {"cpu": "2"}))
        yield found


@dataclass
class Agent:
    """The launcher's side of an agent. ``folder``: where jobs say what they do."""

    standin: StandIn
    launcher: KubernetesLauncher
    folder: Path
    found: list[Running]

    def job(self, name: str, slots: int = 1, node: int = 0, nodes: int = 1) -> Job:
        leg_id = leg_id_of(name, node, nodes)
        spec = LegSpec(
            allocation_id=name,
            task_id="7",
            entrypoint="",
            session_token="",
            cluster_id="c",
            slot_ids=list(range(slots)),
            node=node,
            nodes=nodes,
            leg_id=leg_id,
        )
        where = self.folder / leg_id
        where.mkdir()
        allocation = f"/run/determined/allocations/{leg_id}"
        call = Call(STAY, {"path": str(where), "allocation": allocation})
        return Job("leg", leg_id, call, leg=spec)

    async def start(self, job: Job) -> Held:
        return Held(self.launcher, await self.launcher.start(job))

    def has_begun(self, leg_id: str) -> bool:
        return (self.folder / leg_id / "child").exists()

    async def begun(self, name: str = "7.a.1", **given: int) -> Held:
        """A leg that runs, as the launcher knows."""
        job = self.job(name, **given)
        held = await self.start(job)
        await until_async("it has begun", lambda: self.has_begun(job.id))
        await until_async("it runs", lambda: held.running.has_started)  # type: ignore[attr-defined]
        return held

    def waits_for(self, held: Held) -> str:
        return self.launcher.waits_for(held.running) or ""

    async def end(self, held: Held) -> Exit:
        """Its end; after it nothing is left in the cluster."""
        found = await asyncio.wait_for(held.ended, TIMEOUT_S)
        await held.clean_up()
        for plural in ("jobs", "pods", "secrets"):
            await until_async(f"no {plural} are left", lambda: self.of_leg(plural, held), equals=[])  # noqa: B023
        return found

    def of_leg(self, plural: str, held: Held) -> list[dict[str, Any]]:
        return [
            one
            for one in self.standin.do(lambda cluster: cluster.store.select(plural, "default"))
            if one["metadata"]["name"].startswith(held.identifier)
        ]

    def pod(self, held: Held) -> dict[str, Any]:
        (found,) = self.of_leg("pods", held)
        return found


@contextlib.asynccontextmanager
async def agent_of(
    standin: StandIn, folder: Path, adopts: bool = False, **kubernetes: Any
) -> AsyncIterator[Agent]:
    given = {"kubeconfig": standin.kubeconfig, "termination_grace": 5, **kubernetes}
    config = AgentConfig.model_validate(
        {
            "agent_id": "k",
            "master_url": "http://127.0.0.1:1",
            "agent_token": "secret",
            "work_dir": folder / "work",
            "launcher": "kubernetes",
            "container": {"master_url": "http://127.0.0.1:1", "images": {"cpu": "img"}},
            "kubernetes": given,
        }
    )
    config.work_dir.mkdir(exist_ok=True)
    async with KubernetesLauncher(config, no_model_definition) as launcher:
        found = await launcher.adopt()
        assert bool(found) is adopts
        yield Agent(standin, launcher, folder, found)


@both
async def test_a_leg_without_room_goes_back_with_the_schedulers_words(
    standin: StandIn, tmp_path: Path
) -> None:
    words = "0/1 nodes are available: 1 Insufficient cpu."
    async with agent_of(standin, tmp_path, unplaced_after=1.0) as agent:
        agent.launcher.changed.clear()
        held = await agent.start(agent.job("7.a.1", slots=3))
        await until_async("its words", lambda: agent.waits_for(held), equals=words)
        assert agent.launcher.changed.is_set()
        ended = await agent.end(held)
    assert ended.kind is ExitKind.UNPLACED
    assert ended.reason == f"{words} (not placed within 1 s)"
    assert not agent.has_begun("7.a.1")


async def test_a_leg_is_placed_when_there_is_room(standin: StandIn, tmp_path: Path) -> None:
    async with agent_of(standin, tmp_path) as agent:
        held = await agent.start(agent.job("7.a.1", slots=3))
        await until_async("it waits", lambda: agent.waits_for(held))
        assert agent.launcher.machine_of(held.running) is None
        standin.do(lambda cluster: cluster.add_node("node-b", {"cpu": "4"}))
        await until_async("it has begun", lambda: agent.has_begun("7.a.1"))
        machine = lambda: agent.launcher.machine_of(held.running)  # noqa: E731
        await until_async("its machine is known", machine, equals="node-b")
        await until_async("it waits no more", lambda: agent.waits_for(held), equals="")
        await agent.launcher.signal(held.running, signal.SIGUSR1)
        assert (await agent.end(held)).in_order


@both
async def test_the_nodes_of_a_gang_run_together(standin: StandIn, tmp_path: Path) -> None:
    async with agent_of(standin, tmp_path) as agent:
        first = await agent.start(agent.job("7.a.1", node=0, nodes=2))
        second = await agent.start(agent.job("7.a.1", node=1, nodes=2))
        for node in (0, 1):
            await until_async("it has begun", lambda: agent.has_begun(f"7.a.1.n{node}"))  # noqa: B023
        for held in (first, second):
            await agent.launcher.signal(held.running, signal.SIGUSR1)
            assert (await agent.end(held)).in_order


async def test_a_node_of_a_gang_does_not_begin_before_the_others_are_there(
    standin: StandIn, tmp_path: Path
) -> None:
    async with agent_of(standin, tmp_path) as agent:
        first = await agent.start(agent.job("7.a.1", node=0, nodes=2))
        await until_async("it waits", lambda: "other nodes of its gang" in agent.waits_for(first))
        assert agent.pod(first)["spec"].get("nodeName") is None
        second = await agent.start(agent.job("7.a.1", node=1, nodes=2))
        await until_async("it begins", lambda: agent.has_begun("7.a.1.n0"))
        for held in (first, second):
            await agent.launcher.signal(held.running, signal.SIGUSR1)
            assert (await agent.end(held)).in_order


async def test_a_gang_whose_other_nodes_are_another_agents_begins_all_the_same(
    standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "HOLD_SECONDS", 0.5)
    async with agent_of(standin, tmp_path) as agent:
        held = await agent.begun(node=0, nodes=2)
        await agent.launcher.signal(held.running, signal.SIGUSR1)
        assert (await agent.end(held)).in_order


@both
async def test_a_gang_of_which_one_node_has_no_room_goes_back_whole(
    standin: StandIn, tmp_path: Path
) -> None:
    async with agent_of(standin, tmp_path, unplaced_after=2.0) as agent:
        legs = [
            await agent.start(agent.job("7.a.1", slots=slots, node=node, nodes=2))
            for node, slots in enumerate((1, 3))
        ]
        first, second = await asyncio.gather(*(agent.end(one) for one in legs))
    assert second.kind is ExitKind.UNPLACED
    assert second.reason is not None and "Insufficient cpu" in second.reason
    # The supervisor of the node that ran may have made a good end of it.
    assert first.in_order or (first.kind is ExitKind.UNPLACED and first.reason is not None)


@both
async def test_an_image_that_does_not_exist_is_not_tried_again(
    standin: StandIn, tmp_path: Path
) -> None:
    standin.do(lambda cluster: cluster.images.states.update(img="missing"))
    async with agent_of(standin, tmp_path) as agent:
        ended = await agent.end(await agent.start(agent.job("7.a.1")))
    assert ended.kind is ExitKind.FAILED_TO_START
    assert ended.reason is not None and ended.reason.startswith("image img cannot be pulled: ")
    assert "not found" in ended.reason


async def test_a_registry_that_is_away_is_tried_again(standin: StandIn, tmp_path: Path) -> None:
    standin.do(lambda cluster: cluster.images.states.update(img="away"))
    async with agent_of(standin, tmp_path, unplaced_after=1.5) as agent:
        held = await agent.start(agent.job("7.a.1"))
        await until_async("its words", lambda: "image img" in agent.waits_for(held))
        ended = await agent.end(held)
        assert ended.kind is ExitKind.INFRASTRUCTURE
        assert ended.reason is not None and "image img cannot be pulled" in ended.reason


@pytest.mark.parametrize("counted", ["pods", "count/jobs.batch"])
async def test_a_quota_is_waited_for(standin: StandIn, tmp_path: Path, counted: str) -> None:
    standin.do(lambda cluster: cluster.admission.quotas.update(default={counted: 0}))
    async with agent_of(standin, tmp_path) as agent:
        held = await agent.start(agent.job("7.a.1"))
        await until_async("its words", lambda: "exceeded quota" in agent.waits_for(held))
        standin.do(lambda cluster: cluster.admission.quotas.clear())
        await until_async("it has begun", lambda: agent.has_begun("7.a.1"))
        await agent.launcher.signal(held.running, signal.SIGUSR1)
        assert (await agent.end(held)).in_order


@pytest.mark.parametrize("counted", ["pods", "count/jobs.batch"])
async def test_a_leg_that_waits_for_a_quota_goes_back_or_is_killed(
    standin: StandIn, tmp_path: Path, counted: str
) -> None:
    standin.do(lambda cluster: cluster.admission.quotas.update(default={counted: 0}))
    async with agent_of(standin, tmp_path, unplaced_after=1.0) as agent:
        ended = await agent.end(await agent.start(agent.job("7.a.1")))
        assert ended.kind is ExitKind.UNPLACED
        assert ended.reason is not None and "exceeded quota" in ended.reason
        killed = await agent.start(agent.job("7.a.2"))
        await agent.launcher.signal(killed.running, signal.SIGUSR1)
        found = await agent.end(killed)
        assert (found.signal, found.reason) == (signal.SIGUSR1, "ended before its process ran")


async def test_a_namespace_that_is_missing_is_named_with_the_remedy(
    standin: StandIn, tmp_path: Path
) -> None:
    async with agent_of(standin, tmp_path, namespace="gone", unplaced_after=1.0) as agent:
        ended = await agent.end(await agent.start(agent.job("7.a.1")))
        assert ended.kind is ExitKind.UNPLACED
        assert ended.reason == (
            "namespace 'gone' does not exist (namespaces \"gone\" not found): an administrator of the cluster"
            " makes it (kubectl create namespace gone), or names another one in the settings of the agent"
            " (kubernetes.namespace)"
        )
        # It goes on when the namespace is there.
        again = await agent.start(agent.job("7.a.2"))
        standin.do(lambda cluster: cluster.add_namespace("gone"))
        await until_async("it has begun", lambda: agent.has_begun("7.a.2"))
        await agent.launcher.signal(again.running, signal.SIGKILL)
        await agent.end(again)


@pytest.mark.parametrize("plural", ["jobs", "pods"])
async def test_what_a_webhook_refuses_is_not_tried_again(
    standin: StandIn, tmp_path: Path, plural: str
) -> None:
    standin.do(lambda cluster: cluster.admission.webhooks.update({plural: "no such thing"}))
    async with agent_of(standin, tmp_path) as agent:
        ended = await agent.end(await agent.start(agent.job("7.a.1")))
    assert ended.kind is ExitKind.FAILED_TO_START
    assert ended.reason is not None and "denied the request: no such thing" in ended.reason


@both
async def test_an_evicted_leg_says_why(standin: StandIn, tmp_path: Path) -> None:
    async with agent_of(standin, tmp_path) as agent:
        held = await agent.begun()
        pod = agent.pod(held)
        standin.do(lambda cluster: cluster.evict(pod))
        ended = await agent.end(held)
    assert ended.kind is ExitKind.INFRASTRUCTURE
    assert ended.reason == "evicted from node node-a: The node was low on resource: memory."


async def test_memory_beyond_the_limit_is_the_codes_own_fault(
    standin: StandIn, tmp_path: Path
) -> None:
    async with agent_of(standin, tmp_path, slot_resources={"memory": "1Gi"}) as agent:
        held = await agent.begun()
        pod = agent.pod(held)
        standin.do(lambda cluster: cluster.run_out_of_memory(pod))
        ended = await agent.end(held)
    assert (ended.kind, ended.reason) == (ExitKind.EXITED, "out of memory: its limit is 1Gi")


@both
async def test_a_node_that_is_gone_takes_its_legs_and_slots_along(
    standin: StandIn, tmp_path: Path
) -> None:
    standin.do(lambda cluster: cluster.add_node("node-b", {"cpu": "4"}))
    async with agent_of(standin, tmp_path) as agent:
        assert {slot.machine for slot in agent.launcher.slots()} == {"node-a", "node-b"}
        held = await agent.begun(slots=3)
        standin.do(lambda cluster: cluster.remove_node("node-b"))
        ended = await agent.end(held)
        await until_async(
            "its slots are gone",
            lambda: {slot.machine for slot in agent.launcher.slots()},
            equals={"node-a"},
        )
    assert ended.kind is ExitKind.INFRASTRUCTURE
    assert ended.reason is not None and "node" in ended.reason and "gone" in ended.reason


@both
async def test_a_node_that_falls_silent_loses_its_legs_when_kubernetes_gives_them_up(
    standin: StandIn, tmp_path: Path
) -> None:
    async with agent_of(standin, tmp_path) as agent:
        held = await agent.begun()
        standin.do(lambda cluster: cluster.lose_node("node-a", evict=True))
        ended = await asyncio.wait_for(held.ended, TIMEOUT_S)
        assert ended.kind is ExitKind.INFRASTRUCTURE
        assert ended.reason == "its node is lost: node node-a does not answer"
        await held.clean_up()
        await until_async("no pod is left", lambda: agent.of_leg("pods", held), equals=[])
        standin.do(lambda cluster: cluster.return_node("node-a"))


@both
@pytest.mark.parametrize("what", ["pods", "jobs"])
async def test_what_somebody_deletes_runs_no_second_time(
    standin: StandIn, tmp_path: Path, what: str
) -> None:
    async with agent_of(standin, tmp_path) as agent:
        held = await agent.begun()
        (thing,) = agent.of_leg(what, held)
        standin.do(lambda cluster: cluster.deletion.delete(what, thing, "Background", None))
        ended = await agent.end(held)
        # Which the service is told at once.
        assert "was deleted in the cluster" in (agent.launcher.leaving(held.running) or "")
    # The supervisor gets a SIGTERM, of which the one of this test makes a good end.
    assert ended.in_order
    assert (tmp_path / "7.a.1" / "signal").read_text() == str(int(signal.SIGTERM))


@both
async def test_a_leg_is_killed_before_it_has_a_node(standin: StandIn, tmp_path: Path) -> None:
    async with agent_of(standin, tmp_path) as agent:
        held = await agent.start(agent.job("7.a.1", slots=3))
        await until_async("it waits", lambda: agent.waits_for(held))
        await agent.launcher.signal(held.running, signal.SIGUSR1)
        ended = await agent.end(held)
    assert (ended.signal, ended.reason) == (signal.SIGUSR1, "ended before its process ran")
    assert not agent.has_begun("7.a.1")


@both
async def test_the_api_server_may_be_away(
    standin: StandIn, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with agent_of(standin, tmp_path) as agent:
        ends, killed = await agent.begun("7.a.1"), await agent.begun("7.a.2")
        standin.go_away()
        (tmp_path / "7.a.1" / "go").touch()
        await agent.launcher.signal(killed.running, signal.SIGKILL)
        await until_async("it is missed", lambda: "waiting for the API server" in caplog.text)
        late = asyncio.create_task(agent.start(agent.job("7.a.3")))
        standin.come_back()
        assert (await agent.end(ends)).in_order
        assert (await agent.end(killed)).signal == signal.SIGKILL
        await agent.launcher.signal((await late).running, signal.SIGKILL)
        assert (await agent.end(await late)).signal == signal.SIGKILL


@both
async def test_a_watch_that_breaks_or_is_too_old_loses_nothing(
    standin: StandIn, tmp_path: Path
) -> None:
    async with agent_of(standin, tmp_path) as agent:
        held = await agent.begun()
        standin.do(lambda cluster: cluster.store.break_watches())
        standin.go_away()
        (tmp_path / "7.a.1" / "go").touch()
        standin.do(lambda cluster: cluster.store.forget())
        standin.come_back()
        assert (await agent.end(held)).in_order
        other = await agent.begun("7.a.2")
        await agent.launcher.signal(other.running, signal.SIGUSR1)
        assert (await agent.end(other)).in_order


class Died(Exception):
    """The agent, at this moment."""


@both
@pytest.mark.parametrize("before", ["_make_job", "_make_group"])
async def test_whenever_an_agent_dies_in_a_start_the_next_one_leaves_nothing_and_loses_nothing(
    standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    async def die(*_: object) -> None:
        raise Died

    async with agent_of(standin, tmp_path) as agent:
        monkeypatch.setattr(agent.launcher._starter, before, die)
        with pytest.raises(Died):
            await agent.launcher.start(agent.job("7.a.1"))
    secrets = standin.do(lambda cluster: cluster.store.select("secrets", "default"))
    assert len(secrets) == 1 and not secrets[0]["metadata"].get("ownerReferences")
    async with agent_of(standin, tmp_path, adopts=before == "_make_group") as agent:
        if before == "_make_job":
            assert standin.do(lambda cluster: cluster.store.select("secrets", "default")) == []
            assert standin.do(lambda cluster: cluster.store.select("jobs", "default")) == []
            return
        (running,) = agent.found
        held = Held(agent.launcher, running)
        await until_async("it has begun", lambda: agent.has_begun("7.a.1"))
        await agent.launcher.signal(running, signal.SIGUSR1)
        assert (await agent.end(held)).in_order


async def test_slots_of_a_cordoned_node_drain_and_the_core_is_told(
    standin: StandIn, tmp_path: Path
) -> None:
    async with agent_of(standin, tmp_path) as agent:
        assert [slot.draining for slot in agent.launcher.slots()] == [False, False]
        agent.launcher.changed.clear()
        standin.do(lambda cluster: cluster.cordon("node-a"))
        await asyncio.wait_for(agent.launcher.changed.wait(), TIMEOUT_S)
        assert [slot.draining for slot in agent.launcher.slots()] == [True, True]


async def test_many_legs_cost_one_watch_of_each_kind(standin: StandIn, tmp_path: Path) -> None:
    async with agent_of(standin, tmp_path) as agent:
        legs = [await agent.start(agent.job(f"7.a.{number}", slots=3)) for number in range(20)]
        await until_async("all wait", lambda: all(agent.waits_for(one) for one in legs))
        watches = standin.do(lambda cluster: dict(cluster.store.watches))
        # Of pods: the agent's, and those that take room on nodes.
        assert watches == {"jobs": 1, "pods": 2, "events": 1, "nodes": 1}
        for one in legs:
            await agent.launcher.signal(one.running, signal.SIGKILL)
        for one in legs:
            assert (await agent.end(one)).signal == signal.SIGKILL

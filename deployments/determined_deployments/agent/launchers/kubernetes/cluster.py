"""What one agent sees of a cluster: its Jobs and pods, their events, the nodes and who is on them."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

from determined.common.wire.agents import Device, Slot
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.kubernetes import capacity, labels, names, pod
from determined_deployments.agent.launchers.kubernetes.client import BATCH, CORE, Client, Json
from determined_deployments.agent.launchers.kubernetes.ends import Sight, node_of
from determined_deployments.agent.launchers.kubernetes.placed import Placed
from determined_deployments.agent.launchers.kubernetes.watching import Watched, whole

logger = logging.getLogger(__name__)

RIGHTS = "give the agent's account the rights of docs/operate/kubernetes.md"
Changed = Callable[[str, str, Json | None], None]
SAYS_NOTHING = ("Error: ErrImagePull", "Error: ImagePullBackOff")
"""Events of the reason Failed that follow the one with the registry's words."""
NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"


class NoRights(Exception):
    """The agent may not see what it needs; the message says what."""


class Cluster:
    """What the watches know. ``changed`` is told the name and the uid of a Job of which something has
    changed, and the pod if it is the pod; the uid is empty where it is not known."""

    def __init__(self, client: Client, config: AgentConfig, changed: Changed) -> None:
        self._config = config
        self._settings = settings = config.kubernetes
        self._changed = changed
        self._numbers = capacity.Numbers()
        self._pods_of: dict[str, dict[str, Json]] = defaultdict(dict)
        self._told: dict[str, dict[str, str]] = defaultdict(dict)
        self._by_name: dict[str, Json] = {}
        """The nodes."""
        self.jobs_path = f"{BATCH}/namespaces/{settings.namespace}/jobs"
        self.pods_path = f"{CORE}/namespaces/{settings.namespace}/pods"
        ours = {"labelSelector": labels.selector(config.agent_id)}
        events_path = f"{CORE}/namespaces/{settings.namespace}/events"
        self.jobs = Watched(client, self.jobs_path, ours, self._job_changed, _without_template)
        self.pods = Watched(client, self.pods_path, ours, self._pod_changed)
        self.events = Watched(client, events_path, {}, self._event_told, _event)
        self.watches = [self.jobs, self.pods, self.events]
        self.counts = settings.max_slots is None
        self.recount = True
        """Whether nodes or other pods have changed since the last :meth:`slots`."""
        self.nodes = Watched(client, f"{CORE}/nodes", {}, self._node_changed)
        everywhere = {"fieldSelector": NOT_ENDED}
        self.others = Watched(
            client, f"{CORE}/pods", everywhere, self._other_changed, self._on_a_node
        )
        if self.counts:
            self.watches += [self.nodes, self.others]

    async def synced(self) -> None:
        """Returns when everything was listed once. Raises NoRights."""
        await asyncio.gather(*(watched.synced.wait() for watched in self.watches))
        for what, watched in (("jobs", self.jobs), ("pods", self.pods)):
            if watched.refused is not None:
                raise NoRights(f"it may not list {what} ({watched.refused}): {RIGHTS}")
        if self.counts and self.nodes.refused is not None:
            raise NoRights(
                f"it may not count the slots of nodes ({self.nodes.refused}): set kubernetes.max_slots, or"
                f" {RIGHTS}"
            )

    def _job_changed(self, kind: str, job: Json) -> None:
        self._changed(job["metadata"]["name"], job["metadata"]["uid"], None)

    def _pod_changed(self, kind: str, found: Json) -> None:
        owner = _owner(found)
        if owner is None:
            return
        uid = found["metadata"]["uid"]
        if kind == "DELETED":
            self._pods_of[owner["uid"]].pop(uid, None)
            if not self._pods_of[owner["uid"]]:
                del self._pods_of[owner["uid"]]
        else:
            self._pods_of[owner["uid"]][uid] = found
        self._changed(owner["name"], owner["uid"], found)

    def _event_told(self, kind: str, event: Json) -> None:
        about = event["about"]
        if kind == "DELETED":
            self._told.pop(about, None)
            return
        self._told[about][event["reason"]] = event["message"]
        self._changed(event["job"], "", None)

    def _node_changed(self, kind: str, node: Json) -> None:
        self.recount = True
        name = node["metadata"]["name"]
        was_well = self._what_is_wrong(name) is None
        if kind == "DELETED":
            self._by_name.pop(name, None)
        else:
            self._by_name[name] = node
        if was_well == (self._what_is_wrong(name) is None):
            return
        # What is wrong with a node tells how the legs on it end.
        for found in self.pods.objects.values():
            owner = _owner(found)
            if owner is not None and node_of(found) == name:
                self._changed(owner["name"], owner["uid"], found)

    def _other_changed(self, kind: str, found: Json) -> None:
        self.recount = True

    def _on_a_node(self, found: Json) -> Json | None:
        """The little that counts of any pod of the cluster."""
        node, metadata = node_of(found), found["metadata"]
        if node is None or (found.get("status") or {}).get("phase") in capacity.ENDED:
            return None
        mark = (metadata.get("labels") or {}).get(labels.AGENT)
        return {
            "metadata": {"labels": {labels.AGENT: mark}},
            "node": node,
            "requests": capacity.requests(found),
        }

    def pods_of(self, job_uid: str) -> list[Json]:
        """The pods of a Job, the oldest first."""
        return sorted(
            self._pods_of.get(job_uid, {}).values(),
            key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["name"]),
        )

    def sight(self, leg: Placed) -> Sight:
        """What is known of a leg."""
        uid = leg.pod["metadata"]["uid"] if leg.pod is not None else ""
        return Sight(
            job=leg.job,
            pod=leg.pod,
            job_gone=leg.is_listed and leg.uid not in self.jobs.objects,
            pod_gone=leg.pod is not None and uid not in self.pods.objects,
            node=self._what_is_wrong(node_of(leg.pod)),
            told={**self._told.get(leg.uid, {}), **self._told.get(uid, {})},
        )

    def _what_is_wrong(self, name: str | None) -> str | None:
        """With a node, in words; None: nothing, or nodes are not watched."""
        if name is None or not self.counts or self.nodes.refused is not None:
            return None
        node = self._by_name.get(name)
        if node is None:
            return f"node {name} is gone from the cluster"
        return None if capacity.is_ready(node) else f"node {name} does not answer"

    def hold_slots(self, machine: str | None, ids: Collection[int]) -> None:
        """A leg of an agent before this one has them."""
        if machine is not None:
            self._numbers.hold(machine, ids)

    def slots(self, busy: Collection[int]) -> list[Slot]:
        """``busy``: the slots of legs."""
        self.recount = False
        config, settings = self._config, self._settings
        if settings.max_slots is not None:
            return [Slot(number, Device(config.slot_type)) for number in range(settings.max_slots)]
        given = pod.slot_resources(1, config).get("requests") or {}
        per_slot = {name: capacity.quantity(text) for name, text in given.items()}
        spec = (settings.pod_spec or {}).get("spec") or {}
        pool = capacity.Pool(
            config.slot_type,
            per_slot,
            settings.node_selector,
            tuple(spec.get("tolerations") or ()),
            (labels.AGENT, labels.value(config.agent_id)),
        )
        nodes, others = self.nodes.objects.values(), self.others.objects.values()
        return capacity.count(nodes, others, pool, self._numbers, busy)


def _owner(found: Json) -> dict[str, Any] | None:
    """The Job of a pod."""
    for one in found["metadata"].get("ownerReferences") or ():
        if one.get("kind") == "Job":
            return dict(one)
    return None


def _without_template(job: Json) -> Json | None:
    job["spec"].pop("template", None)
    return whole(job)


def _event(event: Json) -> Json | None:
    """The little that counts of an event about one of our Jobs or its pod."""
    about = event.get("involvedObject") or {}
    name = str(about.get("name") or "")
    if not name.startswith(names.PREFIX) or about.get("kind") not in ("Job", "Pod"):
        return None
    if event.get("message") in SAYS_NOTHING:
        return None
    return {
        "metadata": {"uid": event["metadata"]["uid"]},
        "about": str(about.get("uid") or ""),
        # A pod's name is the Job's with an ending.
        "job": name if about["kind"] == "Job" else name.rpartition("-")[0],
        "reason": str(event.get("reason") or ""),
        "message": str(event.get("message") or ""),
    }

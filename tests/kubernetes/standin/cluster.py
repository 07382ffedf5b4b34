"""The stand-in's cluster: store, controllers, scheduler and kubelets together, and what tests do to them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path

from tests.kubernetes.standin.admission import Admission
from tests.kubernetes.standin.deletion import Deletion
from tests.kubernetes.standin.job_controller import JobController
from tests.kubernetes.standin.kubelet import Images, Kubelet, PodRun
from tests.kubernetes.standin.objects import Object, is_ending, is_over, now, set_condition
from tests.kubernetes.standin.scheduler import HOSTNAME, Scheduler, is_tolerated
from tests.kubernetes.standin.store import Change, Store

UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
TICK_SECONDS = 0.2
"""What was refused is tried again this often."""


class Cluster:
    """All methods belong to the event loop that :meth:`run` runs in."""

    def __init__(self, version: str, folder: Path) -> None:
        self.version = version
        self.minor = int(version.split(".")[1])
        self.folder = folder
        self.store = Store()
        self.images = Images()
        self.admission = Admission(self.minor, self.store)
        self.deletion = Deletion(self.store)
        self.jobs = JobController(
            self.store, self.admission, self.deletion, self.report, second_pods=self.minor < 23
        )
        self.scheduler = Scheduler(self.store, self.minor, self.report)
        self.kubelets: dict[str, Kubelet] = {}
        self._work = asyncio.Event()
        self._refused: set[tuple[str, str]] = set()
        self._events = 0
        self._hollow: set[str] = set()
        self.jobs.retry = self._refused.add
        self.store.listeners.append(self._on_change)
        for name in ("default", "kube-system"):
            self.add_namespace(name)

    async def run(self) -> None:
        """The controllers' loop, until cancelled."""
        try:
            while True:
                self.jobs.run()
                self.scheduler.run()
                if self.jobs.is_wanted or self.scheduler.is_wanted:
                    await asyncio.sleep(0)
                    continue
                self._work.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._work.wait(), TICK_SECONDS)
                for key in self._refused:
                    self.jobs.want(key)
                self._refused.clear()
        finally:
            await asyncio.gather(*(kubelet.stop() for kubelet in self.kubelets.values()))

    def _on_change(self, change: Change) -> None:
        self._work.set()
        if change.plural != "pods":
            return
        node = change.last["spec"].get("nodeName", "")
        if node in self._hollow and change.after is not None:
            self._pretend(change.after)
        kubelet = self.kubelets.get(node)
        if kubelet is not None and not kubelet.is_lost:
            if change.after is None:
                kubelet.forget(change.last)
            else:
                kubelet.take(change.after)

    def _pretend(self, pod: Object) -> None:
        if is_ending(pod):
            self.store.remove("pods", pod)
        elif pod["status"]["phase"] == "Pending":
            names = [container["name"] for container in pod["spec"]["containers"]]
            states = [{"name": name, "image": "", "state": {"running": {}}} for name in names]
            status = {"phase": "Running", "containerStatuses": states}
            self.store.change("pods", pod, lambda new: new["status"].update(status))

    def report(self, thing: Object, kind: str, reason: str, message: str) -> None:
        """Makes an event, or counts an equal one again."""
        metadata = thing["metadata"]
        namespace, uid = metadata.get("namespace", "default"), metadata["uid"]

        def is_same(event: Object) -> bool:
            about = event["involvedObject"]
            return (about["uid"], event["reason"], event["message"]) == (uid, reason, message)

        for event in self.store.select("events", namespace, is_same):
            self.store.change("events", event, _count_again)
            return
        self._events += 1
        about = {
            "kind": thing["kind"],
            "name": metadata["name"],
            "namespace": namespace,
            "uid": uid,
        }
        event = {
            "metadata": {"name": f"{metadata['name']}.{self._events:x}", "namespace": namespace},
            "involvedObject": {**about, "apiVersion": thing["apiVersion"]},
            "type": kind,
            "reason": reason,
            "message": message,
            "count": 1,
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "source": {"component": "stand-in"},
        }
        self.store.create("events", event)

    # What a test does to it.

    def add_namespace(self, name: str) -> None:
        self.store.create("namespaces", {"metadata": {"name": name}, "status": {"phase": "Active"}})

    def add_node(
        self,
        name: str,
        allocatable: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        taints: list[Object] | None = None,
        *,
        hollow: bool = False,
    ) -> None:
        """``hollow``: its pods run nothing, and are said to run until they are deleted."""
        amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", **(allocatable or {})}
        node: Object = {
            "metadata": {"name": name, "labels": {HOSTNAME: name, **(labels or {})}},
            "spec": {"taints": taints} if taints else {},
            "status": {"allocatable": amounts, "capacity": amounts},
        }
        set_condition(node, "Ready", "True", "KubeletReady")
        if hollow:
            self._hollow.add(name)
        else:
            self.kubelets[name] = Kubelet(
                name, self.folder / name, self.store, self.images, self.report
            )
        self.store.create("nodes", node)

    def cordon(self, name: str, is_cordoned: bool = True) -> None:
        def change(node: Object) -> None:
            node["spec"]["unschedulable"] = is_cordoned
            taints = [one for one in node["spec"].get("taints") or () if one != UNSCHEDULABLE]
            node["spec"]["taints"] = [*taints, UNSCHEDULABLE] if is_cordoned else taints

        self.store.change("nodes", self.store.get("nodes", "", name), change)

    def drain(self, name: str) -> None:
        """As `kubectl drain`: cordons the node and has its pods evicted by the API."""
        self.cordon(name)
        for pod in self.pods_on(name):
            self.disrupt(pod, "EvictionByEvictionAPI", "Eviction API: evicting")

    def disrupt(self, pod: Object, reason: str, message: str) -> None:
        """Deletes a pod with the reason that newer versions leave on it."""
        if self.minor >= 26:
            pod = self.store.change(
                "pods",
                pod,
                lambda new: set_condition(new, "DisruptionTarget", "True", reason, message),
            )
        self.deletion.delete("pods", pod, None, None)

    def preempt(self, pod: Object) -> None:
        """As the scheduler does for a pod of higher priority."""
        node = pod["spec"]["nodeName"]
        self.report(pod, "Normal", "Preempted", f"Preempted by default/important on node {node}")
        words = "default-scheduler: preempting to accommodate a higher priority pod"
        self.disrupt(pod, "PreemptionByScheduler", words)

    def evict(self, pod: Object, words: str = "The node was low on resource: memory. ") -> None:
        """As a kubelet does whose node runs out of something."""
        self.report(pod, "Warning", "Evicted", words)
        self._run_of(pod).fail("Evicted", words)

    def run_out_of_memory(self, pod: Object) -> None:
        self._run_of(pod).kill("OOMKilled")

    def _run_of(self, pod: Object) -> PodRun:
        run = self.kubelets[pod["spec"]["nodeName"]].run_of(pod)
        assert run is not None, "the pod does not run"
        return run

    def lose_node(self, name: str, *, evict: bool = False) -> None:
        """Its kubelet is silent; its pods' processes run on. ``evict``: and the 300 seconds for which pods
        tolerate it are over, so the cluster deletes them, in vain.
        """
        self.kubelets[name].is_lost = True
        words = "Kubelet stopped posting node status."

        def change(node: Object) -> None:
            set_condition(node, "Ready", "Unknown", "NodeStatusUnknown", words)
            taints = node["spec"].setdefault("taints", [])
            taints += [
                {"key": UNREACHABLE, "effect": effect} for effect in ("NoSchedule", "NoExecute")
            ]

        self.store.change("nodes", self.store.get("nodes", "", name), change)
        for pod in self.pods_on(name):
            self.report(pod, "Warning", "NodeNotReady", "Node is not ready")
            pod = self.store.change(
                "pods", pod, lambda new: set_condition(new, "Ready", "False", "NodeNotReady")
            )
            if evict:
                self.report(pod, "Normal", "TaintManagerEviction", "Marking for deletion Pod")
                self.disrupt(
                    pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"
                )

    def return_node(self, name: str) -> None:
        """The kubelet speaks again, ends what was deleted meanwhile and tells the rest."""
        kubelet = self.kubelets[name]
        kubelet.is_lost = False

        def change(node: Object) -> None:
            set_condition(node, "Ready", "True", "KubeletReady")
            taints = node["spec"].get("taints") or ()
            node["spec"]["taints"] = [one for one in taints if one["key"] != UNREACHABLE]

        self.store.change("nodes", self.store.get("nodes", "", name), change)
        for pod in self.pods_on(name):
            set_ready = self.store.change(
                "pods", pod, lambda new: set_condition(new, "Ready", "True")
            )
            kubelet.take(set_ready)

    async def remove_node(self, name: str) -> None:
        """The machine is gone, and with it what ran there; the cluster removes its pods."""
        kubelet = self.kubelets.pop(name, None)
        if kubelet is not None:
            kubelet.is_lost = True
            await kubelet.stop()
        pods = self.pods_on(name)
        self.store.remove("nodes", self.store.get("nodes", "", name))
        for pod in pods:
            self.report(pod, "Normal", "DeletingPod", "PodGC: node no longer exists")
            if self.minor >= 26:
                words = "PodGC: node no longer exists"

                def fail(new: Object, words: str = words) -> None:
                    new["status"]["phase"] = "Failed"
                    set_condition(new, "DisruptionTarget", "True", "DeletionByPodGC", words)

                pod = self.store.change("pods", pod, fail)
            self.deletion.delete("pods", pod, None, 0)

    def taint(self, name: str, key: str, effect: str) -> None:
        """With NoExecute, its pods are deleted unless they tolerate it."""
        taint = {"key": key, "effect": effect}
        node = self.store.get("nodes", "", name)
        self.store.change(
            "nodes", node, lambda new: new["spec"].setdefault("taints", []).append(taint)
        )
        for pod in self.pods_on(name) if effect == "NoExecute" else ():
            if not is_tolerated(pod, taint):
                self.disrupt(
                    pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"
                )

    def pods_on(self, node: str) -> list[Object]:
        def runs_there(pod: Object) -> bool:
            return pod["spec"].get("nodeName") == node and not is_over(pod)

        return self.store.select("pods", None, runs_there)


def _count_again(event: Object) -> None:
    event |= {"count": event["count"] + 1, "lastTimestamp": now()}

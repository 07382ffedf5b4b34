"""A node's kubelet: runs the pods that the scheduler gave to the node, and reports their states."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kubernetes.standin.container import Container
from tests.kubernetes.standin.objects import Object, Refused, is_ending, now, set_condition
from tests.kubernetes.standin.pod_folder import NotReady, PodFolder
from tests.kubernetes.standin.scheduler import Report
from tests.kubernetes.standin.store import Store

IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:@-]*[A-Za-z0-9._-]*")
MISSING, DENIED, AWAY = "missing", "denied", "away"
RETRY_SECONDS = 0.2


class Images:
    """``states``: by image, why it cannot be pulled; all others are there."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}

    def problem(self, image: str) -> tuple[str, str] | None:
        """Reason and message, as a kubelet on containerd has them."""
        if not IMAGE.fullmatch(image):
            return (
                "InvalidImageName",
                f'Failed to apply default image tag "{image}": couldn\'t parse image name',
            )
        registry = image.partition("/")[0] if "/" in image else "registry-1.docker.io"
        pull = f'failed to pull and unpack image "{image}": failed to resolve reference "{image}"'
        match self.states.get(image):
            case "missing":
                words = f"rpc error: code = NotFound desc = {pull}: {image}: not found"
            case "denied":
                words = (
                    f"rpc error: code = Unknown desc = {pull}: pull access denied, repository does not exist"
                    " or may require authorization: server message: insufficient_scope: authorization failed"
                )
            case "away":
                words = (
                    f'rpc error: code = Unknown desc = {pull}: failed to do request: Head "https://{registry}/v2/":'
                    f" dial tcp: lookup {registry}: no such host"
                )
            case _:
                return None
        return "ErrImagePull", words


class Kubelet:
    """``is_lost``: it reports nothing any more, and its containers run on."""

    def __init__(
        self, node: str, folder: Path, store: Store, images: Images, report: Report
    ) -> None:
        self.node = node
        self.is_lost = False
        self._folder = folder
        self._store = store
        self._images = images
        self._report = report
        self._pods: dict[str, PodRun] = {}

    def take(self, pod: Object) -> None:
        """A pod that is this node's is new or has changed."""
        uid = pod["metadata"]["uid"]
        run = self._pods.get(uid)
        if run is None and pod["status"]["phase"] not in ("Succeeded", "Failed"):
            self._pods[uid] = run = PodRun(self, pod)
            run.task = asyncio.create_task(run.live())
            run.task.add_done_callback(lambda _: self._pods.pop(uid, None))
        if run is not None and is_ending(pod):
            run.end(pod["metadata"]["deletionGracePeriodSeconds"])

    def forget(self, pod: Object) -> None:
        """A pod is gone from the API: what runs of it is killed."""
        run = self._pods.get(pod["metadata"]["uid"])
        if run is not None:
            run.end(0)

    def run_of(self, pod: Object) -> PodRun | None:
        return self._pods.get(pod["metadata"]["uid"])

    async def stop(self) -> None:
        """Kills everything."""
        tasks = [run.task for run in self._pods.values() if run.task is not None]
        for run in list(self._pods.values()):
            run.kill()
            if run.task is not None:
                run.task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def store(self) -> Store:
        return self._store

    @property
    def images(self) -> Images:
        return self._images

    def event(self, pod: Object, kind: str, reason: str, message: str) -> None:
        if not self.is_lost:
            self._report(pod, kind, reason, message)


class PodRun:
    """One pod on a node, from its folder to its last state."""

    def __init__(self, kubelet: Kubelet, pod: Object) -> None:
        self._kubelet = kubelet
        self._pod = pod
        self._path = kubelet.folder / pod["metadata"]["uid"]
        self._folder = PodFolder(self._path, kubelet.store, pod)
        self._ending = asyncio.Event()
        self._grace: float = 30.0
        self._failure: tuple[str, str] | None = None
        self.containers: dict[str, Container] = {}
        self.task: asyncio.Task[None] | None = None

    def end(self, grace: float) -> None:
        """SIGTERM, and SIGKILL after the grace period."""
        if self._ending.is_set():
            if grace == 0:
                self.kill()
            return
        self._grace = grace
        self._ending.set()

    def fail(self, reason: str, message: str) -> None:
        """Ends the pod for a reason of the node's, such as an eviction."""
        self._failure = (reason, message)
        self.end(0)

    def kill(self, reason: str | None = None, message: str = "") -> None:
        for container in self.containers.values():
            container.kill(reason, message)

    async def live(self) -> None:
        try:
            if await self._prepare() and await self._run_first():
                await self._run()
        finally:
            self.kill()
        self._finish()
        # A log can be read as long as the API has the pod.
        shutil.rmtree(self._path / "volumes", ignore_errors=True)

    async def _prepare(self) -> bool:
        """Volumes, images and configurations; False: the pod ended before it had them."""
        spec = self._pod["spec"]
        containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
        while not self._ending.is_set():
            try:
                self._folder.make_volumes()
                for container in containers:
                    self._check(container)
            except NotReady as problem:
                self._tell_waiting(problem)
            else:
                return True
            await self._pause(RETRY_SECONDS)
        return False

    def _check(self, container: Object) -> None:
        problem = self._kubelet.images.problem(container["image"])
        if problem is not None:
            raise NotReady(*problem)
        self._folder.order(container)

    def _tell_waiting(self, problem: NotReady) -> None:
        reason = problem.reason
        if reason == "FailedMount":
            self._kubelet.event(self._pod, "Warning", reason, problem.message)
            reason, message = "ContainerCreating", ""
        else:
            image = self._pod["spec"]["containers"][0]["image"]
            words = f'Failed to pull image "{image}": ' if reason == "ErrImagePull" else ""
            self._kubelet.event(self._pod, "Warning", "Failed", words + problem.message)
            message = problem.message
        state = {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        self._tell(lambda new: _set_states(new, dict.fromkeys(_names(new), state)))

    async def _run_first(self) -> bool:
        """The init containers, one after the other; False: one failed, or the pod was to end."""
        for given in self._pod["spec"].get("initContainers") or ():
            container = await self._start(given)
            await self._wait([container])
            if container.code != 0 or self._ending.is_set():
                return False
        return not self._ending.is_set()

    async def _start(self, given: Object) -> Container:
        name = given["name"]
        container = Container(self._folder.order(given), self._folder.container_folder(name))
        self.containers[name] = container
        await container.start()
        self._kubelet.event(self._pod, "Normal", "Started", f"Started container {name}")
        return container

    async def _run(self) -> None:
        running = [await self._start(given) for given in self._pod["spec"]["containers"]]

        def tell(new: Object) -> None:
            new["status"] |= {"phase": "Running", "hostIP": "127.0.0.1", "podIP": "127.0.0.1"}
            new["status"].setdefault("startTime", now())
            for kind in ("Initialized", "ContainersReady", "Ready"):
                set_condition(new, kind, "True")
            self._tell_states(new)

        self._tell(tell)
        await self._wait(running)

    async def _wait(self, running: list[Container]) -> None:
        ends = [asyncio.create_task(container.wait()) for container in running]
        ending = asyncio.create_task(self._ending.wait())
        all_ended: asyncio.Future[list[int]] = asyncio.gather(*ends)
        try:
            waiting: list[asyncio.Future[Any]] = [all_ended, ending]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not all_ended.done():
                for container in running if self._grace else ():
                    container.signal(signal.SIGTERM)
                await asyncio.wait([all_ended], timeout=self._grace)
                self.kill()
            await all_ended
        finally:
            for task in (ending, *ends):
                task.cancel()
            await asyncio.gather(all_ended, *ends, return_exceptions=True)

    def _finish(self) -> None:
        """The last state; a pod that was deleted goes from the API."""
        containers = self._pod["spec"]["containers"]
        codes = [
            self.containers[one["name"]].code
            for one in containers
            if one["name"] in self.containers
        ]
        is_good = len(codes) == len(containers) and not any(codes) and self._failure is None

        def tell(new: Object) -> None:
            new["status"]["phase"] = "Succeeded" if is_good else "Failed"
            for kind in ("ContainersReady", "Ready"):
                set_condition(new, kind, "False", "PodCompleted" if is_good else "PodFailed")
            self._tell_states(new)
            if self._failure is not None:
                new["status"]["reason"], new["status"]["message"] = self._failure

        self._tell(tell)
        if self._kubelet.is_lost:
            return
        metadata = self._pod["metadata"]
        pod = self._kubelet.store.find("pods", metadata["namespace"], metadata["name"])
        if pod is not None and pod["metadata"]["uid"] == metadata["uid"] and is_ending(pod):
            self._kubelet.store.remove("pods", pod)

    def _tell(self, change: Callable[[Object], None]) -> None:
        """Changes the pod's status, if the API still has this pod and this node reports."""
        if self._kubelet.is_lost:
            return
        metadata = self._pod["metadata"]
        try:
            pod = self._kubelet.store.get("pods", metadata["namespace"], metadata["name"])
        except Refused:
            return
        if pod["metadata"]["uid"] == metadata["uid"]:
            self._kubelet.store.change("pods", pod, change)

    def _tell_states(self, new: Object) -> None:
        _set_states(new, {name: _state(container) for name, container in self.containers.items()})

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._ending.wait(), seconds)
        except TimeoutError:
            return


def _names(pod: Object) -> list[str]:
    return [container["name"] for container in pod["spec"]["containers"]]


def _state(container: Container) -> Object:
    if container.code is None:
        return {"running": {"startedAt": container.began_at}}
    reason, message = container.why or ("Completed" if container.code == 0 else "Error", "")
    told = {"exitCode": container.code, "reason": reason, "startedAt": container.began_at}
    told |= {"finishedAt": container.ended_at} | ({"message": message} if message else {})
    return {"terminated": told}


def _set_states(pod: Object, states: dict[str, Object]) -> None:
    for field, given in (
        ("initContainerStatuses", "initContainers"),
        ("containerStatuses", "containers"),
    ):
        statuses = [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "restartCount": 0,
                "ready": "running" in states[container["name"]],
                "started": "running" in states[container["name"]],
                "state": states[container["name"]],
            }
            for container in pod["spec"].get(given) or ()
            if container["name"] in states
        ]
        if statuses:
            pod["status"][field] = statuses

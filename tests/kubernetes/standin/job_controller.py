"""Makes the pod of each Job, and tells the Job's end."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from tests.kubernetes.standin.admission import Admission
from tests.kubernetes.standin.deletion import Deletion
from tests.kubernetes.standin.objects import (
    Object,
    Refused,
    condition,
    is_ending,
    is_over,
    now,
    owned_by,
    set_condition,
)
from tests.kubernetes.standin.scheduler import Report
from tests.kubernetes.standin.store import Change, Store


class JobController:
    """``second_pods``: a pod that was deleted is made again, as by controllers before 1.23. Later ones count
    it as failed.
    """

    def __init__(
        self,
        store: Store,
        admission: Admission,
        deletion: Deletion,
        report: Report,
        second_pods: bool,
    ) -> None:
        self._store = store
        self._admission = admission
        self._deletion = deletion
        self._report = report
        self.second_pods = second_pods
        self._failed: dict[str, set[str]] = {}
        """By a Job's uid, the uids of its pods that failed or were deleted."""
        self._wanted: dict[tuple[str, str], None] = {}
        self.retry: Callable[[tuple[str, str]], None] = lambda key: None
        """Called for a Job whose pod was refused."""
        store.listeners.append(self._on_change)

    @property
    def is_wanted(self) -> bool:
        return bool(self._wanted)

    def want(self, key: tuple[str, str]) -> None:
        self._wanted[key] = None

    def _on_change(self, change: Change) -> None:
        metadata = change.last["metadata"]
        if change.plural == "jobs":
            self.want((metadata["namespace"], metadata["name"]))
            if change.after is None:
                self._failed.pop(metadata["uid"], None)
        elif change.plural == "pods":
            for owner in metadata.get("ownerReferences") or ():
                if owner["kind"] != "Job":
                    continue
                self.want((metadata["namespace"], owner["name"]))
                phase, is_gone = change.last["status"]["phase"], change.after is None
                if self._is_suspended(metadata["namespace"], owner["name"]):
                    continue
                if phase != "Succeeded" and (
                    is_gone or is_ending(change.last) or phase == "Failed"
                ):
                    self._failed.setdefault(owner["uid"], set()).add(metadata["uid"])

    def run(self) -> None:
        wanted, self._wanted = self._wanted, {}
        for namespace, name in wanted:
            job = self._store.find("jobs", namespace, name)
            if job is not None and not is_ending(job) and not is_finished(job):
                self._sync(job)

    def _sync(self, job: Object) -> None:
        namespace, uid, spec = job["metadata"]["namespace"], job["metadata"]["uid"], job["spec"]
        pods = self._store.select("pods", namespace, lambda pod: owned_by(pod, uid))
        succeeded = sum(pod["status"]["phase"] == "Succeeded" for pod in pods)
        failed = len(self._failed.get(uid, ()))
        if self.second_pods:
            # It knows no pods but those that are there.
            failed = sum(pod["status"]["phase"] == "Failed" for pod in pods)
        active = [pod for pod in pods if not is_over(pod) and not is_ending(pod)]
        is_suspended = bool(spec.get("suspend"))
        most = 0 if is_suspended else spec["parallelism"]
        over = succeeded >= spec["completions"] or failed > spec["backoffLimit"]
        for pod in active if over else active[most:]:
            self._deletion.delete("pods", pod, None, None)
            active = [one for one in active if one is not pod]
        if not over and not active and most > 0:
            active = self._make_pod(job)

        def tell(new: Object) -> None:
            status = new["status"]
            counts = {"active": len(active), "succeeded": succeeded, "failed": failed}
            for key, count in counts.items():
                status.pop(key, None)
                status |= {key: count} if count else {}
            if not is_suspended:
                status.setdefault("startTime", now())
            if is_suspended or condition(new, "Suspended"):
                set_condition(new, "Suspended", str(is_suspended), "JobSuspended", "Job suspended")
            if succeeded >= spec["completions"]:
                status["completionTime"] = now()
                set_condition(new, "Complete", "True")
            elif over:
                words = "Job has reached the specified backoff limit"
                set_condition(new, "Failed", "True", "BackoffLimitExceeded", words)

        self._store.change("jobs", job, tell)

    def _is_suspended(self, namespace: str, name: str) -> bool:
        """Pods that end because their Job is suspended do not count as failed."""
        job = self._store.find("jobs", namespace, name)
        return job is not None and bool(job["spec"].get("suspend"))

    def _make_pod(self, job: Object) -> list[Object]:
        metadata, template = job["metadata"], job["spec"]["template"]
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        name = f"{metadata['name']}-{uuid.uuid4().hex[:5]}"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": name, "ownerReferences": [owner]},
            "spec": template["spec"],
        }
        pod["metadata"]["generateName"] = f"{metadata['name']}-"
        try:
            new = self._admission.admit("pods", metadata["namespace"], pod)
        except Refused as refused:
            self._report(job, "Warning", "FailedCreate", f"Error creating: {refused.message}")
            self.retry((metadata["namespace"], metadata["name"]))
            return []
        self._report(job, "Normal", "SuccessfulCreate", f"Created pod: {name}")
        return [self._store.create("pods", new)]


def is_finished(job: Object) -> bool:
    return any(condition(job, kind) is not None for kind in ("Complete", "Failed"))

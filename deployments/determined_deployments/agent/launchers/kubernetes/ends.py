"""What objects of Kubernetes say of a leg: how it ended, or what it waits for. Pure functions."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

from determined.common.printable import cut, one_line
from determined.common.wire.legs import ExitKind
from determined.expconf.pod_spec import TRIAL_CONTAINER
from determined_deployments.agent.launchers.base import Exit
from determined_deployments.agent.launchers.kubernetes.labels import PREFIX

Json: TypeAlias = dict[str, Any]

END = PREFIX + "end"
"""Annotation of a Job that its agent has ended: the Exit, as JSON, unless the pod says that it ended in good
order before. With it the Job's parallelism is 0, so that no pod is made any more."""

LONGEST_WORDS = 1500
NEVER_RAN = "ended before its process ran"

CANNOT_BE = re.compile(
    r"not found|manifest unknown|does not exist|denied|unauthorized|authentication required"
    r"|no basic auth credentials|invalid reference format|InvalidImageName|couldn't parse image",
    re.IGNORECASE,
)
"""In a message about an image: another try gives the same answer."""
AWAY = re.compile(r"no such host|timeout|timed out|connection refused|i/o|EOF", re.IGNORECASE)
"""In a message about an image: the registry was not reached, whatever else it says."""
IMAGE_REASONS = (
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
    *("RegistryUnavailable", "ImageInspectError"),
)
UNPULLABLE_REASONS = ("InvalidImageName", "ErrImageNeverPull")
CONFIG_REASONS = (
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
    *("PreCreateHookError", "PreStartHookError", "PostStartHookError"),
)
CANNOT_RUN = ("ContainerCannotRun", "StartError")
"""Why a container ended: its command is not in the image."""
REFUSED_POD = re.compile(
    r"denied the request|violates PodSecurity|is invalid|unable to validate against any"
    r"|(maximum|minimum) (cpu|memory) usage per",
    re.IGNORECASE,
)
"""In the words about a pod that may not be made: no later one may either."""
NO_QUOTA = "exceeded quota"
DISRUPTIONS = {
    "PreemptionByScheduler": "preempted by a pod of higher priority",
    "PreemptionByKubeScheduler": "preempted by a pod of higher priority",
    "DeletionByTaintManager": "removed from its node, which has a taint that it does not tolerate",
    "EvictionByEvictionAPI": "evicted, as when a node is drained",
    "TerminationByKubelet": "ended by its node",
}
"""The condition DisruptionTarget of a pod, by its reason."""
NODE_GONE = "DeletionByPodGC"
LOST_AT_START = re.compile(
    r"No module named '?determined|can't open file|[Nn]o such file or directory"
)


@dataclass(frozen=True)
class Sight:
    """What is known of a leg.

    ``job``, ``pod``: as they were seen last; None: never. ``job_gone``, ``pod_gone``: they exist no more.
    ``node``: what is wrong with the pod's node, in words; None: nothing. ``told``: the messages of events
    about the Job and the pod, by their reasons.
    """

    job: Json | None = None
    pod: Json | None = None
    job_gone: bool = False
    pod_gone: bool = False
    node: str | None = None
    told: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        found = self.pod or self.job or {}
        return str((found.get("metadata") or {}).get("name", "?"))


@dataclass(frozen=True)
class Wait:
    """Why a leg does not run yet. ``words``: for the user; None: it is just being started. ``at_once``: more
    patience cannot help. ``kind``: of its end when the patience ends.
    """

    words: str | None
    at_once: bool = False
    kind: ExitKind = ExitKind.UNPLACED


def said(text: object) -> str:
    """Words of a cluster, fit for a log line."""
    return cut(one_line(str(text)).strip(), LONGEST_WORDS)


def ordered_end(job: Json | None) -> Exit | None:
    """How its agent has ended the Job; None: it has not."""
    text = ((job or {}).get("metadata", {}).get("annotations") or {}).get(END)
    if text is None:
        return None
    try:
        told = json.loads(text)
        return Exit(**{**told, "kind": ExitKind(told["kind"])})
    except (ValueError, TypeError, KeyError):
        # Somebody else wrote there.
        return Exit(reason="ended by its agent")


def end_text(end: Exit) -> str:
    """The annotation :data:`END`."""
    return json.dumps(asdict(end))


def container(pod: Json | None) -> Json:
    """The status of the leg's container; {}: there is none yet."""
    for one in ((pod or {}).get("status") or {}).get("containerStatuses") or ():
        if one.get("name") == TRIAL_CONTAINER:
            return dict(one)
    return {}


def is_running(pod: Json | None) -> bool:
    return "running" in (container(pod).get("state") or {})


def has_started(pod: Json | None) -> bool:
    """Whether the leg's container runs or has run."""
    state = container(pod).get("state") or {}
    return "running" in state or "terminated" in state


def is_ending(found: Json | None) -> bool:
    return bool(found and found["metadata"].get("deletionTimestamp"))


def node_of(pod: Json | None) -> str | None:
    name = ((pod or {}).get("spec") or {}).get("nodeName")
    return str(name) if name else None


def end(sight: Sight) -> Exit | None:
    """How the leg has ended; None: it has not. The log of a container that failed says more, see
    :func:`with_log`."""
    ordered = ordered_end(sight.job)
    is_killed = ordered is not None and ordered.signal == signal.SIGKILL
    pod = sight.pod
    terminated = (container(pod).get("state") or {}).get("terminated")
    status = (pod or {}).get("status") or {}
    if terminated is not None:
        # A kill comes after a SIGTERM, of which the supervisor may have made a good end.
        if terminated.get("exitCode") == 0 and not is_killed:
            return Exit(code=0)
        return ordered or _of_container(terminated, sight)
    if status.get("phase") == "Succeeded":
        return ordered if is_killed else Exit(code=0)
    if status.get("phase") == "Failed":
        return ordered or Exit(reason=_why_failed(sight))
    if pod is not None and not sight.pod_gone:
        if is_ending(pod) and sight.node is not None:
            return ordered or Exit(reason=f"its node is lost: {sight.node}")
        return None
    if ordered is not None:
        return ordered
    if pod is not None or sight.job_gone:
        return Exit(reason=why_gone(sight))
    return _of_job(sight.job)


def _of_job(job: Json | None) -> Exit | None:
    """The end of a Job whose pod is gone since before this agent began, or was never made."""
    for one in ((job or {}).get("status") or {}).get("conditions") or ():
        if one.get("status") != "True":
            continue
        if one.get("type") == "Complete":
            return Exit(code=0)
        if one.get("type") == "Failed":
            words = said(one.get("message") or one.get("reason") or "it failed")
            return Exit(reason=f"its pod is gone, and the Job says: {words}")
    if ((job or {}).get("spec") or {}).get("parallelism") == 0:
        # An agent saw the pod go, and died before it had told anybody.
        return Exit(reason="its pod was deleted in the cluster, not by its agent")
    return None


def _of_container(terminated: Json, sight: Sight) -> Exit:
    pod = sight.pod or {}
    status = pod.get("status") or {}
    reason, code = terminated.get("reason"), int(terminated.get("exitCode") or 0)
    if status.get("reason"):  # such as Evicted: the node's own doing
        return Exit(reason=_why_failed(sight))
    if reason == "OOMKilled":
        limit = _limit(pod)
        words = "out of memory" + (f": its limit is {limit}" if limit else ", of its node")
        return Exit(code=code, kind=ExitKind.EXITED, reason=words)
    if reason in CANNOT_RUN:
        words = said(terminated.get("message") or reason)
        return Exit(
            kind=ExitKind.FAILED_TO_START, reason=f"its container could not be started: {words}"
        )
    if is_ending(pod) or _disruption(pod):
        return Exit(reason=why_gone(sight))
    by_signal = code > 128
    found = Exit(signal=code - 128) if by_signal else Exit(code=code)
    return replace(found, reason=f"the supervisor in pod {sight.name} died ({found})")


def _limit(pod: Json) -> str | None:
    for one in (pod.get("spec") or {}).get("containers") or ():
        if one.get("name") == TRIAL_CONTAINER:
            limits = (one.get("resources") or {}).get("limits") or {}
            return str(limits["memory"]) if "memory" in limits else None
    return None


def _why_failed(sight: Sight) -> str:
    """Of a pod that its node, or an init container, has let fail."""
    pod = sight.pod or {}
    status = pod.get("status") or {}
    node = node_of(pod)
    where = f" from node {node}" if node else ""
    if status.get("reason") == "Evicted":
        return f"evicted{where}: {said(status.get('message') or 'no reason is given')}"
    if status.get("reason"):
        words = said(f"{status['reason']}: {status.get('message') or ''}".rstrip(": "))
        return f"pod {sight.name} failed{f' on node {node}' if node else ''}: {words}"
    for one in status.get("initContainerStatuses") or ():
        ended = (one.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            words = said(ended.get("message") or ended.get("reason") or "")
            return f"init container {one.get('name')} ended with exit code {ended['exitCode']}: {words}"
    if (_disruption(pod) or {}).get("reason") == NODE_GONE:
        return why_gone(sight)
    return f"pod {sight.name} failed: {said(status.get('message') or why_gone(sight))}"


def _disruption(pod: Json) -> Json | None:
    for one in (pod.get("status") or {}).get("conditions") or ():
        if one.get("type") == "DisruptionTarget" and one.get("status") == "True":
            return dict(one)
    return None


def why_gone(sight: Sight) -> str:
    """Of a pod or a Job that was deleted, and not by its agent."""
    told = _disruption(sight.pod or {})
    if told is not None and told.get("reason") == NODE_GONE:
        # As where the agent has seen it itself; which of the two comes first is chance.
        return f"its node is lost: node {node_of(sight.pod)} is gone from the cluster"
    if told is not None:
        words = DISRUPTIONS.get(str(told.get("reason")), said(told.get("reason")))
        message = said(told.get("message") or "")
        return f"{words}: {message}" if message else words
    for reason in ("Preempted", "Preempting", "TaintManagerEviction"):
        if reason in sight.told:
            return f"{reason.lower()} by Kubernetes: {said(sight.told[reason])}"
    if sight.node is not None:
        return f"its node is lost: {sight.node}"
    if sight.job_gone or is_ending(sight.job):
        return "its Job was deleted in the cluster, not by its agent"
    return f"its pod {sight.name} was deleted in the cluster, not by its agent (kubectl, or a drained node)"


def waits(sight: Sight) -> Wait | None:
    """What the leg waits for. None: it runs, or its container is being made."""
    pod = sight.pod
    if pod is None or sight.pod_gone:
        return _without_pod(sight)
    if has_started(pod):
        return None
    status = pod.get("status") or {}
    if not node_of(pod):
        for one in status.get("conditions") or ():
            if one.get("type") == "PodScheduled" and one.get("status") != "True":
                return Wait(said(one.get("message") or one.get("reason") or "") or None)
        return Wait(None)
    both = (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
    for one in both:
        waiting = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in IMAGE_REASONS:
            return _for_image(str(one.get("image") or "?"), waiting, sight)
        if waiting.get("reason") in CONFIG_REASONS:
            words = said(f"{waiting['reason']}: {waiting.get('message') or ''}")
            return Wait(words, kind=ExitKind.FAILED_TO_START)
    if "FailedMount" in sight.told:
        return Wait(said(f"FailedMount: {sight.told['FailedMount']}"))
    return None


def _for_image(image: str, waiting: Json, sight: Sight) -> Wait:
    """Of the two reasons that come by turns only ErrImagePull has the registry's words; events keep them."""
    message = str(waiting.get("message") or "")
    if waiting.get("reason") == "ImagePullBackOff":
        message = sight.told.get("Failed") or message
    words = said(f"image {image} cannot be pulled: {message or waiting.get('reason')}")
    cannot = waiting.get("reason") in UNPULLABLE_REASONS or (
        CANNOT_BE.search(message) is not None and AWAY.search(message) is None
    )
    if cannot:
        return Wait(words, at_once=True, kind=ExitKind.FAILED_TO_START)
    return Wait(words, kind=ExitKind.INFRASTRUCTURE)


def _without_pod(sight: Sight) -> Wait:
    message = sight.told.get("FailedCreate")
    if message is None:
        suspended = ((sight.job or {}).get("spec") or {}).get("suspend")
        return Wait("its Job is suspended" if suspended else None)
    if REFUSED_POD.search(message) and NO_QUOTA not in message:
        words = f"the cluster refuses its pod: {said(message)}"
        return Wait(words, at_once=True, kind=ExitKind.FAILED_TO_START)
    return Wait(said(message))


def with_log(ended: Exit, tail: str) -> Exit:
    """``ended`` with the last lines that a container printed before its supervisor began."""
    lines = [one_line(line).rstrip() for line in tail.splitlines() if line.strip()]
    if not lines or ended.reason is None:
        return ended
    words = cut(f"{ended.reason}; the end of its log: {' / '.join(lines[-5:])}", LONGEST_WORDS)
    kind = ExitKind.FAILED_TO_START if LOST_AT_START.search(lines[-1]) else ended.kind
    return replace(ended, reason=words, kind=kind)

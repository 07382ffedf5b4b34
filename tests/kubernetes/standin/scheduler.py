"""Places pods on nodes, or says why it cannot, in the words of the real scheduler."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from tests.kubernetes.standin.objects import Object, condition, is_over, quantity, set_condition
from tests.kubernetes.standin.store import Change, Store

Report = Callable[[Object, str, str, str], None]
HOSTNAME = "kubernetes.io/hostname"


class Scheduler:
    """``report(pod, type, reason, message)`` makes an event."""

    def __init__(self, store: Store, minor: int, report: Report) -> None:
        self._store = store
        self._minor = minor
        self._report = report
        self.is_wanted = False
        store.listeners.append(self._on_change)

    def _on_change(self, change: Change) -> None:
        self.is_wanted = self.is_wanted or change.plural in ("pods", "nodes")

    def run(self) -> None:
        """One round over all pods that have no node."""
        self.is_wanted = False
        pods = self._store.select("pods")
        used: dict[str, Counter[str]] = {}
        for pod in pods:
            if (name := pod["spec"].get("nodeName")) and not is_over(pod):
                used.setdefault(name, Counter()).update(requests(pod))
        waiting = [pod for pod in pods if not pod["spec"].get("nodeName") and not is_over(pod)]
        waiting.sort(key=lambda pod: -int(pod["spec"].get("priority") or 0))
        for pod in waiting:
            self._place(pod, used)

    def _place(self, pod: Object, used: dict[str, Counter[str]]) -> None:
        if gates := pod["spec"].get("schedulingGates"):
            names = ", ".join(gate["name"] for gate in gates)
            words = f"Scheduling is blocked due to non-empty scheduling gates ({names})"
            self._wait(pod, "SchedulingGated", words)
            return
        wanted, nodes = requests(pod), self._store.select("nodes")
        why: Counter[str] = Counter()
        fits: list[tuple[float, str]] = []
        for node in nodes:
            name = node["metadata"]["name"]
            reasons = self._reasons(pod, node, wanted, used.setdefault(name, Counter()))
            why.update(reasons)
            if not reasons:
                fits.append((sum(used[name].values()), name))
        if not fits:
            told = ", ".join(f"{count} {reason}" for reason, count in sorted(why.items()))
            message = f"0/{len(nodes)} nodes are available: {told}."
            self._wait(pod, "Unschedulable", message)
            return
        chosen = min(fits)[1]
        used[chosen].update(wanted)

        def bind(new: Object) -> None:
            new["spec"]["nodeName"] = chosen
            set_condition(new, "PodScheduled", "True")

        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        self._report(
            pod, "Normal", "Scheduled", f"Successfully assigned {namespace}/{name} to {chosen}"
        )
        self._store.change("pods", pod, bind)

    def _wait(self, pod: Object, reason: str, message: str) -> None:
        before = condition(pod, "PodScheduled") or {}
        if (before.get("reason"), before.get("message")) == (reason, message):
            return
        self._store.change(
            "pods", pod, lambda new: set_condition(new, "PodScheduled", "False", reason, message)
        )
        if reason == "Unschedulable":
            self._report(pod, "Warning", "FailedScheduling", message)

    def _reasons(
        self, pod: Object, node: Object, wanted: Counter[str], used: Counter[str]
    ) -> list[str]:
        """Why the pod cannot have the node; empty: it can."""
        is_new = self._minor >= 24
        if node["spec"].get("unschedulable"):
            return ["node(s) were unschedulable"]
        for taint in node["spec"].get("taints") or ():
            if taint["effect"] != "PreferNoSchedule" and not is_tolerated(pod, taint):
                named = f"{{{taint['key']}: {taint.get('value', '')}}}"
                if is_new:
                    return [f"node(s) had untolerated taint {named}"]
                return [f"node(s) had taint {named}, that the pod didn't tolerate"]
        if not _is_selected(pod, node):
            return [f"node(s) didn't match Pod's node affinity{'/selector' if is_new else ''}"]
        free = node["status"]["allocatable"]
        return [
            f"Insufficient {name}"
            for name, amount in wanted.items()
            if amount > quantity(free.get(name, 0)) - used[name] + 1e-9
        ]


def requests(pod: Object) -> Counter[str]:
    total: Counter[str] = Counter({"pods": 1})
    for container in pod["spec"]["containers"]:
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, amount in asked.items():
            total[name] += quantity(amount)  # type: ignore[assignment]
    return total


def is_tolerated(pod: Object, taint: Object) -> bool:
    return any(
        toleration.get("key") in (None, "", taint["key"])
        and toleration.get("effect") in (None, "", taint["effect"])
        and (
            toleration.get("operator") == "Exists"
            or toleration.get("value", "") == taint.get("value", "")
        )
        for toleration in pod["spec"].get("tolerations") or ()
    )


def _is_selected(pod: Object, node: Object) -> bool:
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(k) != v for k, v in (pod["spec"].get("nodeSelector") or {}).items()):
        return False
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    fields = {"metadata.name": node["metadata"]["name"]}
    return any(
        all(_holds(labels, one) for one in term.get("matchExpressions") or ())
        and all(_holds(fields, one) for one in term.get("matchFields") or ())
        for term in required["nodeSelectorTerms"]
    )


def _holds(labels: dict[str, str], expression: Object) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            if value is None or not re.fullmatch(r"-?\d+", value):
                return False
            return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
        case other:
            raise ValueError(other)

"""Objects as the API has them (JSON), the kinds of them, and selectors."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
Matches = Callable[[Object], bool]


@dataclass(frozen=True)
class Kind:
    """``plural``: as paths name it."""

    plural: str
    name: str
    group: str = "v1"
    namespaced: bool = True


KINDS = {
    kind.plural: kind
    for kind in (
        Kind("namespaces", "Namespace", namespaced=False),
        Kind("nodes", "Node", namespaced=False),
        Kind("pods", "Pod"),
        Kind("secrets", "Secret"),
        Kind("configmaps", "ConfigMap"),
        Kind("events", "Event"),
        Kind("persistentvolumeclaims", "PersistentVolumeClaim"),
        Kind("jobs", "Job", "batch/v1"),
        Kind("priorityclasses", "PriorityClass", "scheduling.k8s.io/v1", namespaced=False),
    )
}


class Refused(Exception):
    """An answer other than 2xx; becomes a Status object."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    def status(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


def not_found(plural: str, name: str) -> Refused:
    return Refused(404, "NotFound", f'{resource(plural)} "{name}" not found')


def conflict(plural: str, name: str) -> Refused:
    message = (
        f'Operation cannot be fulfilled on {resource(plural)} "{name}": the object has been modified; please'
        " apply your changes to the latest version and try again"
    )
    return Refused(409, "Conflict", message)


def too_old(version: int, oldest: int) -> Refused:
    return Refused(410, "Expired", f"too old resource version: {version} ({oldest})")


def resource(plural: str) -> str:
    """As messages name it: ``jobs.batch``."""
    group, _, _ = KINDS[plural].group.rpartition("/")
    return f"{plural}.{group}" if group else plural


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def owned_by(thing: Object, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in thing["metadata"].get("ownerReferences") or ())


def is_ending(thing: Object) -> bool:
    return "deletionTimestamp" in thing["metadata"]


def is_over(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def condition(thing: Object, kind: str) -> Object | None:
    found = (thing.get("status") or {}).get("conditions") or ()
    return next((one for one in found if one["type"] == kind), None)


def set_condition(
    thing: Object, kind: str, status: str, reason: str = "", message: str = ""
) -> None:
    conditions = thing.setdefault("status", {}).setdefault("conditions", [])
    before = condition(thing, kind)
    new = {"type": kind, "status": status, "lastTransitionTime": now()}
    new |= {"reason": reason} if reason else {}
    new |= {"message": message} if message else {}
    if before is None:
        conditions.append(new)
        return
    if before["status"] == status:
        new["lastTransitionTime"] = before["lastTransitionTime"]
    before.clear()
    before.update(new)


_ONE = re.compile(
    r"\s*(?:(?P<set>[^\s,=!()]+)\s+(?P<how>in|notin)\s*\((?P<values>[^)]*)\)"
    r"|(?P<key>[^\s,=!()]+)\s*(?P<op>==?|!=)\s*(?P<value>[^,]*)"
    r"|(?P<not>!?)\s*(?P<there>[^\s,=!()]+))\s*(?:,|$)"
)


def label_selector(text: str) -> Matches:
    """Raises Refused."""
    tests: list[Callable[[dict[str, str]], bool]] = []
    at = 0
    while at < len(text):
        found = _ONE.match(text, at)
        if found is None:
            raise Refused(400, "BadRequest", f"unable to parse requirement: {text[at:]!r}")
        at = found.end()
        tests.append(_requirement(found))
    return lambda thing: all(test(thing["metadata"].get("labels") or {}) for test in tests)


def _requirement(found: re.Match[str]) -> Callable[[dict[str, str]], bool]:
    if (key := found["set"]) is not None:
        values = {value.strip() for value in found["values"].split(",")}
        if found["how"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if (key := found["key"]) is not None:
        value = found["value"].strip()
        if found["op"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    there = found["there"]
    return lambda labels: (there in labels) != bool(found["not"])


def field_selector(text: str) -> Matches:
    tests = [part.partition("!=" if "!=" in part else "=") for part in text.split(",") if part]

    def matches(thing: Object) -> bool:
        return all(
            (_field(thing, path.strip()) == value.lstrip("=").strip()) == (operator == "=")
            for path, operator, value in tests
        )

    return matches


def _field(thing: Any, path: str) -> str:
    for name in path.split("."):
        thing = thing.get(name, "") if isinstance(thing, dict) else ""
    return str(thing).lower() if isinstance(thing, bool) else str(thing)


def quantity(text: str | int | float) -> float:
    """A number of cores, bytes or devices."""
    found = re.fullmatch(r"([0-9.]+)(m|[kMGTP]i?)?", str(text))
    if found is None:
        raise Refused(422, "Invalid", f"quantities must match the regular expression: {text!r}")
    number, unit = float(found[1]), found[2] or ""
    if unit == "m":
        return number / 1000
    power = "kMGTP".index(unit[0]) + 1 if unit else 0
    return float(number * (1024 if unit.endswith("i") else 1000) ** power)

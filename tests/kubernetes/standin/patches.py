"""The three kinds of patches that the API takes, as far as tests need them."""

from __future__ import annotations

import copy
from typing import Any

from tests.kubernetes.standin.objects import Object, Refused

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
MERGE_KEYS = ("name", "uid", "type", "key", "mountPath")
"""Lists of a strategic merge are maps by the first of these that their entries have."""


def apply(thing: Object, patch: Any, kind: str) -> None:
    """Changes ``thing``. Raises Refused."""
    if kind == JSON:
        for operation in patch:
            _operate(thing, operation)
    elif kind in (MERGE, STRATEGIC):
        _merge(thing, patch, is_strategic=kind == STRATEGIC)
    else:
        raise Refused(
            415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {kind}"
        )


def _merge(target: Object, patch: Object, *, is_strategic: bool) -> None:
    for key, value in patch.items():
        before = target.get(key)
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            inner = target[key] = before if isinstance(before, dict) else {}
            _merge(inner, value, is_strategic=is_strategic)
        elif isinstance(value, list) and is_strategic and isinstance(before, list):
            target[key] = _merge_lists(before, value)
        else:
            target[key] = copy.deepcopy(value)


def _merge_lists(before: list[Any], patch: list[Any]) -> list[Any]:
    result = list(before)
    for entry in patch:
        if not isinstance(entry, dict):
            result += [entry] if entry not in result else []
            continue
        by = next((key for key in MERGE_KEYS if key in entry), None)
        same = next((one for one in result if by is not None and one.get(by) == entry[by]), None)
        if entry.get("$patch") == "delete":
            result = [one for one in result if one is not same]
        elif same is None:
            result.append(copy.deepcopy(entry))
        else:
            _merge(same, entry, is_strategic=True)
    return result


def _operate(thing: Object, operation: Object) -> None:
    path = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    try:
        parent: Any = thing
        for part in path[:-1]:
            parent = parent[int(part)] if isinstance(parent, list) else parent[part]
        last: Any = path[-1]
        if isinstance(parent, list) and last != "-":
            last = int(last)
        if operation["op"] == "test":
            if parent[last] != operation["value"]:
                raise Refused(422, "Invalid", f"testing value {operation['path']} failed")
        elif operation["op"] == "remove":
            del parent[last]
        elif operation["op"] == "replace":
            _ = parent[last]
            parent[last] = operation["value"]
        elif isinstance(parent, list):
            parent.insert(len(parent) if last == "-" else last, operation["value"])
        else:
            parent[last] = operation["value"]
    except (KeyError, IndexError, ValueError, TypeError):
        words = (
            f"the server rejected our request due to an error in our request: {operation['path']}"
        )
        raise Refused(422, "Invalid", words) from None

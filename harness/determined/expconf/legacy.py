"""Turning older forms of the configuration into today's form.

Each function takes a value as users may write it, and returns it in today's form. A value that it does
not recognise is returned unchanged, because the models report mistakes.
"""

from collections.abc import Callable, Mapping
from typing import Any

DEVICES = ("cpu", "cuda", "rocm")

#: Fields that are no longer used: they are accepted and dropped.
IGNORED = (
    ("version",),
    ("data_layer",),
    ("security",),
    ("tensorboard_storage",),
    ("internal",),
    ("resources", "agent_label"),
    ("resources", "slots"),
)
#: Renamed fields: today's path, and the earlier last name.
RENAMED: dict[tuple[str | int, ...], str] = {
    ("environment", "image", "cuda"): "gpu",
    ("environment", "environment_variables", "cuda"): "gpu",
}
#: Top-level fields in which null is a value: it wins over a template's, and over the default.
NULLS = ("max_failures",)
#: Values that belong to the user: null and every key are kept as they are.
_FREE = {("hyperparameters",), ("data",), ("environment", "pod_spec")}


def images(value: Any) -> Any:
    """One image for all devices becomes one per device; ``gpu`` becomes ``cuda``."""
    if isinstance(value, str):
        return dict.fromkeys(DEVICES, value)
    return _gpu_to_cuda(value)


def environment_variables(value: Any) -> Any:
    """One list for all devices becomes one per device; ``gpu`` becomes ``cuda``."""
    if isinstance(value, list):
        return {device: list(value) for device in DEVICES}
    return _gpu_to_cuda(value)


def labels(value: Any) -> Any:
    """``{one: true, two: true}`` becomes ``[one, two]``; a label given twice is one label."""
    if isinstance(value, dict) and all(on is None or isinstance(on, bool) for on in value.values()):
        return [label for label, on in value.items() if on]
    if isinstance(value, list) and all(isinstance(label, str) for label in value):
        return list(dict.fromkeys(value))
    return value


def device(value: Any) -> Any:
    """``/dev/a:/dev/b:rw`` becomes a mapping."""
    if not isinstance(value, str):
        return value
    parts = value.split(":")
    if len(parts) not in (2, 3):
        return value
    return dict(zip(("host_path", "container_path", "mode"), parts, strict=False))


def label_values(value: Any) -> Any:
    """``{gpu: a100, rack: 7}`` becomes ``{gpu: [a100], rack: ["7"]}``."""
    if not isinstance(value, dict):
        return value
    lists = {key: item if isinstance(item, list) else [item] for key, item in value.items()}
    return {
        key: [str(one) if type(one) is int else one for one in items]
        for key, items in lists.items()
    }


def fallback(value: Any) -> Any:
    """``spot``, or a list of names, becomes ``{pools: …}``."""
    if isinstance(value, str):
        return {"pools": [value]}
    return {"pools": value} if isinstance(value, list) else value


def log_action(value: Any) -> Any:
    """``{type: cancel_retries}`` becomes ``cancel_retries``."""
    if isinstance(value, dict) and set(value) == {"type"}:
        return value["type"]
    return value


def shim(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a configuration (or part of one) in today's form, without ignored fields, and without nulls
    (but for :data:`NULLS` and the user's own values).

    Values of a wrong type are passed through.
    """
    data: dict[str, Any] = _without_nulls(dict(config), ())
    for path in IGNORED:
        holder = data if len(path) == 1 else data.get(path[0])
        if isinstance(holder, dict):
            holder.pop(path[-1], None)
    _rewrite(data, "labels", labels)
    environment = data.get("environment")
    if isinstance(environment, dict):
        _rewrite(environment, "image", images)
        _rewrite(environment, "environment_variables", environment_variables)
    resources = data.get("resources")
    if isinstance(resources, dict) and isinstance(resources.get("devices"), list):
        resources["devices"] = [device(item) for item in resources["devices"]]
    if isinstance(data.get("log_policies"), list):
        data["log_policies"] = [
            {**policy, "action": log_action(policy["action"])}
            if isinstance(policy, dict) and "action" in policy
            else policy
            for policy in data["log_policies"]
        ]
    return data


def gpu_schema(leaf: dict[str, Any]) -> dict[str, Any]:
    """JSON schema of a per-device mapping written with ``gpu``."""
    return {
        "type": "object",
        "properties": dict.fromkeys((*DEVICES, "gpu"), leaf),
        "required": ["gpu"],
        "additionalProperties": False,
    }


def _gpu_to_cuda(value: Any) -> Any:
    if not isinstance(value, dict) or "gpu" not in value:
        return value
    rest = {key: item for key, item in value.items() if key != "gpu"}
    if rest.get("cuda") is None:
        rest["cuda"] = value["gpu"]
    return rest


def _rewrite(data: dict[str, Any], key: str, change: Callable[[Any], Any]) -> None:
    if key in data:
        data[key] = change(data[key])


def _without_nulls(value: Any, path: tuple[str, ...]) -> Any:
    if not isinstance(value, dict) or path in _FREE:
        return value
    return {
        key: _without_nulls(item, (*path, key))
        for key, item in value.items()
        if item is not None or (not path and key in NULLS)
    }

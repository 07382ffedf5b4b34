"""Merging configurations: the user's over the template over the cluster's defaults.

Mappings merge key by key, and the upper value wins. An upper list replaces a lower one, except in the
fields below, whose items merge. Nothing here checks types: an upper value of a wrong type wins too.
"""

from collections.abc import Callable, Mapping
from typing import Any

from determined.expconf import fields, legacy
from determined.expconf.base import Section
from determined.expconf.paths import Path
from determined.expconf.pod_spec import merge_pod_specs
from determined.expconf.searcher import WarmStart
from determined.expconf.storage import BaseStorage

_Merge = Callable[[Any, Any], Any]


def merge(
    config: Mapping[str, Any],
    template: Mapping[str, Any] | None,
    defaults: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Merge a configuration over a template over the cluster's defaults.

    Returns:
        A new mapping in today's form (older forms are rewritten first), without nulls where null
        means "not given".
    """
    lower = (legacy.shim(below) for below in (template, defaults) if below is not None)
    return overlaid(legacy.shim(config), *lower)


def overlaid(config: dict[str, Any], *lower: dict[str, Any]) -> dict[str, Any]:
    """:func:`merge` of layers that are in today's form already, the upper one first."""
    merged = config
    for below in lower:
        merged = _over(merged, below, ())
    return merged


def _over(mine: Any, other: Any, path: Path) -> Any:
    special = _SPECIAL.get(path)
    if special is not None:
        return special(mine, other)
    if not isinstance(mine, dict) or not isinstance(other, dict):
        return mine
    merged = dict(mine)
    for key, value in other.items():
        merged[key] = _over(mine[key], value, (*path, key)) if key in mine else value
    return merged


def _upper(mine: Any, other: Any) -> Any:
    return mine


def _keys(mine: Any, other: Any) -> Any:
    """The keys of both mappings; their values are not merged."""
    return {**other, **mine} if isinstance(mine, dict) and isinstance(other, dict) else mine


def _groups(mine: Any, other: Any) -> Any:
    """Hyperparameters: only groups merge; a range or a value is replaced as a whole."""
    if not (_is_group(mine) and _is_group(other)):
        return mine
    merged = dict(mine)
    for key, value in other.items():
        merged[key] = _groups(mine[key], value) if key in mine else value
    return merged


def _is_group(value: Any) -> bool:
    return isinstance(value, dict) and "type" not in value


def _upper_last(mine: Any, other: Any) -> Any:
    """Environment variables: those of both, the upper ones last, because the last value counts."""
    if not isinstance(mine, list) or not isinstance(other, list):
        return mine
    return [variable for variable in other if variable not in mine] + mine


def _items_by(identity: Callable[[Any], Any]) -> _Merge:
    """Lists whose items have an identity: new items of the lower list are added to the upper one."""

    def combine(mine: Any, other: Any) -> Any:
        if not isinstance(mine, list) or not isinstance(other, list):
            return mine
        taken = [identity(item) for item in mine]
        return mine + [item for item in other if identity(item) not in taken]

    return combine


def _field(name: str) -> Callable[[Any], Any]:
    return lambda item: item.get(name) if isinstance(item, dict) else item


def _policy(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    name = item.get("name")
    return name if name is not None else (item.get("action"), item.get("pattern"))


def _kinds(path: Path, tag: str, common: type[Section]) -> _Merge:
    """Searchers and storages: if the kinds differ, only the common fields merge."""

    def combine(mine: Any, other: Any) -> Any:
        if not isinstance(mine, dict) or not isinstance(other, dict):
            return mine
        kind, below = mine.get(tag), other.get(tag)
        taken = set(other)
        if kind is not None and below is not None and kind != below:
            taken &= common.model_fields.keys()
        for section in fields.of_kind(path, tag, kind) if kind != below else ():
            # A template without a name may contain a custom searcher's own fields.
            if below is not None or section.model_config.get("extra") != "allow":
                taken &= section.model_fields.keys()
        return {**{key: other[key] for key in other if key in taken}, **mine}

    return combine


_SPECIAL: dict[Path, _Merge] = {
    ("searcher",): _kinds(("searcher",), "name", WarmStart),
    ("checkpoint_storage",): _kinds(("checkpoint_storage",), "type", BaseStorage),
    ("hyperparameters",): _groups,
    ("data",): _keys,
    ("labels",): _items_by(lambda label: label),
    ("bind_mounts",): _items_by(_field("container_path")),
    ("resources", "devices"): _items_by(_field("container_path")),
    ("log_policies",): _items_by(_policy),
    ("environment", "proxy_ports"): _items_by(_field("proxy_port")),
    ("environment", "environment_variables", "cpu"): _upper_last,
    ("environment", "environment_variables", "cuda"): _upper_last,
    ("environment", "environment_variables", "rocm"): _upper_last,
    ("environment", "pod_spec"): merge_pod_specs,
    # A length is one value, in any unit.
    ("min_validation_period",): _upper,
    ("min_checkpoint_period",): _upper,
}

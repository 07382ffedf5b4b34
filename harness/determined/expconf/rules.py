"""Rules that concern more than one field.

They read the raw configuration, so that a mistake in one place never hides another one. They ignore
values of a wrong type, which the models report. There are three groups: rules for every file, rules for
the merge of file, template and cluster defaults, and further rules for new experiments.
"""

import math
import posixpath
import re
from collections.abc import Iterator
from typing import Any

from determined.expconf import legacy, steps
from determined.expconf.hyperparameters import TYPES
from determined.expconf.masking import masked_fields
from determined.expconf.paths import Path
from determined.expconf.pod_spec import refused
from determined.expconf.problems import MASK, show
from determined.expconf.searcher import REMOVED
from determined.expconf.translate import MISSING, Finding

# Of checkpoints only.
_NOT_TENSORBOARD = (
    "save_experiment_best",
    "save_trial_best",
    "save_trial_latest",
    "pack_small_files",
)


def consistency(config: dict[str, Any]) -> Iterator[Finding]:
    """Rules for every file, template and set of defaults that has the fields."""
    yield from _search_space(_section(config, "hyperparameters"), ("hyperparameters",))
    yield from _sources(_section(config, "searcher"))
    yield from _storage(_section(config, "checkpoint_storage"))
    yield from _bind_mounts(config.get("bind_mounts"))
    yield from _profiling(_section(config, "profiling"))
    yield from _slots(_section(config, "resources"))
    yield from _fallback(_section(config, "resources"))
    yield from _log_policies(config.get("log_policies"))
    for path, why in refused(_section(config, "environment").get("pod_spec")):
        yield _rule(("environment", "pod_spec", *path), why)
    for key in _NOT_TENSORBOARD:
        if key in _section(config, "tensorboard_storage"):
            yield _rule(("tensorboard_storage", key), f"{key!r} belongs under checkpoint_storage")


def completeness(config: dict[str, Any]) -> Iterator[Finding]:
    """Rules for the merged configuration: a template may still change these fields in a file."""
    searcher = _section(config, "searcher")
    name = searcher.get("name")
    if name in ("adaptive_asha", "async_halving"):
        yield from _asha_length(searcher, str(name))
    storage = _section(config, "checkpoint_storage")
    if storage.get("type") == "azure" and not any(
        map(storage.get, ("connection_string", "account_url"))
    ):
        message = "azure needs a connection_string, or an account_url with a credential"
        yield Finding(MISSING, ("checkpoint_storage",), message)
    if name == "grid":
        yield from _uncounted(_section(config, "hyperparameters"), ("hyperparameters",))


def novelty(config: dict[str, Any], *, unmanaged: bool) -> Iterator[Finding]:
    """Rules for new experiments, which old ones may break."""
    name = _section(config, "searcher").get("name")
    if isinstance(name, str) and name in REMOVED:
        message = f"the {name!r} searcher has been removed and is not valid for new experiments: "
        yield _rule(("searcher", "name"), message + steps.instead_of(name, config))
    if config.get("entrypoint") is None and not unmanaged:
        message = "required field is missing: the command that runs a trial"
        yield Finding(MISSING, ("entrypoint",), message)


def masked(config: dict[str, Any]) -> Iterator[Finding]:
    """A configuration that was read with its secrets masked cannot be submitted again as it is."""
    for path in masked_fields(config):
        message = (
            f"holds {MASK}, which stands for a secret that was masked when the configuration was read: write "
            f"the secret itself, or leave the field out"
        )
        yield _rule(path, message)


def _search_space(space: dict[str, Any], path: Path) -> Iterator[Finding]:
    for name, value in space.items():
        here = (*path, name)
        if not isinstance(value, dict):
            continue
        if "type" not in value:
            yield from _search_space(value, here)
        elif value["type"] in ("int", "double", "log"):
            yield from _range(value, here)


def _range(value: dict[str, Any], path: Path) -> Iterator[Finding]:
    low, high = _number(value.get("minval")), _number(value.get("maxval"))
    if low is not None and high is not None and low >= high:
        message = f"minval must be less than maxval, found {show(low)} and {show(high)}"
        yield _rule((*path, "minval"), message, f"less than {show(high)}")
    base = _number(value.get("base"))
    if value["type"] == "log" and base is not None and base > 0:
        for key, exponent in (("minval", low), ("maxval", high)):
            if exponent is not None and not _finite_power(base, exponent):
                message = f"{show(base)} to the power of {show(exponent)} is too large; {key} is an exponent"
                yield _rule((*path, key), message)


def _finite_power(base: float, exponent: float) -> bool:
    try:
        return math.isfinite(math.pow(base, exponent))
    except OverflowError:
        return False


def _uncounted(value: Any, path: Path) -> Iterator[Finding]:
    """Ranges without ``count``, also inside groups and lists."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _uncounted(item, (*path, index))
    elif isinstance(value, dict) and value.get("type") in ("int", "double", "log"):
        if value.get("count") is None:
            message = "grid search is in use but count was not provided"
            yield Finding(MISSING, (*path, "count"), message, None, "an integer of at least 1")
    elif isinstance(value, dict) and value.get("type") not in tuple(TYPES):
        for key, item in value.items():
            yield from _uncounted(item, (*path, key))


def _sources(searcher: dict[str, Any]) -> Iterator[Finding]:
    if searcher.get("source_trial_id") is None or searcher.get("source_checkpoint_uuid") is None:
        return
    message = "give either source_trial_id or source_checkpoint_uuid, not both"
    yield _rule(("searcher", "source_checkpoint_uuid"), message)


def _asha_length(searcher: dict[str, Any], name: str) -> Iterator[Finding]:
    timed = [searcher.get(key) is not None for key in ("time_metric", "max_time")]
    if all(timed) or (not any(timed) and searcher.get("max_length") is not None):
        return
    path = (
        ("searcher",) if not any(timed) else ("searcher", "max_time" if timed[0] else "time_metric")
    )
    message = (
        f"the {name!r} searcher requires `max_time` and `time_metric` to be set, "
        "or a max_length such as {batches: 100}"
    )
    yield Finding(MISSING, path, message)


def _storage(storage: dict[str, Any]) -> Iterator[Finding]:
    path: Path = ("checkpoint_storage",)
    kind = storage.get("type")
    inner, outer = storage.get("storage_path"), storage.get("host_path")
    if kind in ("shared_fs", None) and isinstance(inner, str) and isinstance(outer, str):
        place = posixpath.normpath(posixpath.join(outer, inner))
        root = posixpath.normpath(outer)
        if place != root and not place.startswith(root.rstrip("/") + "/"):
            message = f"must be a relative path inside host_path, or a directory under {outer!r}"
            yield _rule((*path, "storage_path"), f"{message}, found {inner!r}", message)
    prefix = storage.get("prefix")
    if isinstance(prefix, str) and ".." in prefix.split("/"):
        yield _rule((*path, "prefix"), f"must not contain the component '..', found {prefix!r}")
    if kind == "azure":
        yield from _azure(storage, path)


def _azure(storage: dict[str, Any], path: Path) -> Iterator[Finding]:
    given = {
        k for k in ("connection_string", "account_url", "credential") if storage.get(k) is not None
    }
    if "connection_string" in given and len(given) > 1:
        others = " and ".join(sorted(given - {"connection_string"}))
        yield _rule((*path, "connection_string"), f"give either connection_string or {others}")
    elif "credential" in given and "account_url" not in given:
        yield _rule((*path, "credential"), "credential also needs account_url")


def _bind_mounts(mounts: Any) -> Iterator[Finding]:
    seen: dict[str, int] = {}
    for index, mount in enumerate(mounts if isinstance(mounts, list) else []):
        place = mount.get("container_path") if isinstance(mount, dict) else None
        if not isinstance(place, str):
            continue
        path = ("bind_mounts", index, "container_path")
        if posixpath.normpath(place or "x") == ".":
            yield _rule(path, "must not be the working directory itself ('.')")
        elif ".." in place.split("/"):
            yield _rule(path, f"must not contain the component '..', found {place!r}")
        elif (first := seen.setdefault(posixpath.normpath(place), index)) != index:
            yield _rule(path, f"{place!r} is already used by bind_mounts[{first}]")


def _profiling(profiling: dict[str, Any]) -> Iterator[Finding]:
    begin, end = _number(profiling.get("begin_on_batch")), _number(profiling.get("end_after_batch"))
    if begin is not None and end is not None and begin > end:
        message = f"must not be before begin_on_batch ({show(begin)}), found {show(end)}"
        yield _rule(("profiling", "end_after_batch"), message, f"at least {show(begin)}")


def _slots(resources: dict[str, Any]) -> Iterator[Finding]:
    most, each = _number(resources.get("max_slots")), _number(resources.get("slots_per_trial"))
    if most is not None and each is not None and most < each:
        message = f"must be at least slots_per_trial ({show(each)}), found {show(most)}"
        yield _rule(("resources", "max_slots"), message, f"at least {show(each)}")


def _fallback(resources: dict[str, Any]) -> Iterator[Finding]:
    path: Path = ("resources", "fallback")
    yield from repeated_pools(resources.get("fallback"), resources.get("resource_pool"), path)


def repeated_pools(fallback: Any, home: Any, path: Path) -> Iterator[Finding]:
    """Pools of a ``fallback`` section that stand there twice, or from which it leads away."""
    seen = {home: "the pool that it leads away from"}
    for where, name in fallback_pools(fallback, path):
        if name in seen:
            yield _rule(where, f"{show(name)} is {seen[name]}: leave it out")
        seen[name] = "listed already"


def fallback_pools(fallback: Any, path: Path) -> list[tuple[Path, str]]:
    """The pools that a ``fallback`` section names in any of its forms, with their paths."""
    given = fallback
    if isinstance(given, dict):
        path, given = (*path, "pools"), given.get("pools")
    if isinstance(given, str):
        return [(path, given)]
    names = given if isinstance(given, list) else []
    return [
        ((*path, index), name) for index, name in enumerate(names) if isinstance(name, str) and name
    ]


def _log_policies(policies: Any) -> Iterator[Finding]:
    seen: dict[Any, int] = {}
    for index, policy in enumerate(policies if isinstance(policies, list) else []):
        if not isinstance(policy, dict):
            continue
        path: Path = ("log_policies", index)
        name, pattern, action = (policy.get(key) for key in ("name", "pattern", "action"))
        if name is None and (pattern is None or action is None):
            yield _rule(path, "a policy needs a name, or a pattern and an action")
        if isinstance(pattern, str):
            try:
                re.compile(pattern)
            except re.error as error:
                message = f"not a regular expression: {error}"
                yield _rule((*path, "pattern"), message, "a regular expression")
        key = name if name is not None else (str(pattern), str(legacy.log_action(action)))
        if isinstance(key, str | tuple) and (first := seen.setdefault(key, index)) != index:
            yield _rule(path, f"the same policy as log_policies[{first}]; names must differ")


def _section(config: Any, key: str) -> dict[str, Any]:
    value = config.get(key) if isinstance(config, dict) else None
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _rule(path: Path, message: str, allowed: str | None = None) -> Finding:
    return Finding("value", path, message, None, allowed)

"""The limits on the size of a valid configuration, checked before its search is tried out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from determined.common.wire import limits
from determined_service.base.checks import check_text
from determined_service.base.errors import BadRequest
from determined_service.base.json import dumps

_TEXTS = {
    "name": limits.NAME_CHARS,
    "project": limits.NAME_CHARS,
    "workspace": limits.NAME_CHARS,
    "description": limits.TEXT_CHARS,
    "searcher.metric": limits.METRIC_NAME_BYTES // 4,
    "searcher.time_metric": limits.METRIC_NAME_BYTES // 4,
    "resources.resource_pool": limits.NAME_CHARS,
}


def check_size(config: Mapping[str, Any]) -> None:
    """Raise BadRequest, with the path, for a text, number or list above its limit."""
    for path, most in _TEXTS.items():
        value = _at(config, path)
        if isinstance(value, str):
            check_text(value, path, most)
    _check_count(len(config.get("labels") or ()), limits.LABELS, "labels")
    for place, label in enumerate(config.get("labels") or ()):
        check_text(label, f"labels[{place}]")
    policies = config.get("log_policies") or ()
    _check_count(len(policies), limits.LOG_POLICIES, "log_policies")
    for place, policy in enumerate(policies):
        for field in ("name", "pattern"):
            if isinstance(policy.get(field), str):
                check_text(policy[field], f"log_policies[{place}].{field}", limits.PATTERN_CHARS)
    _check_search(config)


def _check_search(config: Mapping[str, Any]) -> None:
    searcher = config["searcher"]
    for field in ("max_trials", "max_concurrent_trials", "population_size"):
        count = searcher.get(field)
        if isinstance(count, int) and count > limits.INT32:
            _check_count(count, limits.INT32, f"searcher.{field}")
    points = 1
    for path, range_ in _ranges(config.get("hyperparameters") or {}, "hyperparameters"):
        count = range_.get("count")
        if isinstance(count, int):
            _check_count(count, limits.CONFIG_VALUES, f"{path}.count")
            points *= max(count, 1)
        values = range_.get("vals")
        points *= len(values) if isinstance(values, list) and values else 1
    trials = points if searcher.get("name") == "grid" else searcher.get("max_trials") or 1
    at_once = searcher.get("max_concurrent_trials") or trials
    if isinstance(at_once, int) and isinstance(trials, int):
        found = min(at_once, trials)
        if found > limits.TRIALS_AT_ONCE:
            raise BadRequest(
                f"searcher.max_concurrent_trials: {found} trials at once found, at most "
                f"{limits.TRIALS_AT_ONCE} are allowed"
            )
        _check_points(config, found)
    population = searcher.get("population_size") or 0
    _check_count(population, limits.TRIALS_AT_ONCE, "searcher.population_size")
    if isinstance(population, int):
        _check_points(config, population)


def _check_points(config: Mapping[str, Any], trials: int) -> None:
    each = len(dumps(config.get("hyperparameters") or {}))
    if each * trials > limits.POINTS_BYTES:
        raise BadRequest(
            f"hyperparameters: {trials} trials at once with hyperparameters of {each:,} bytes each make "
            f"{each * trials:,} bytes; at most {limits.POINTS_BYTES:,} are allowed: set a smaller "
            "searcher.max_concurrent_trials, or move values that all trials share to data"
        )


def _ranges(group: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, value in group.items():
        if isinstance(value, Mapping):
            if "type" in value:
                yield f"{path}.{name}", value
            else:
                yield from _ranges(value, f"{path}.{name}")


def _check_count(found: Any, most: int, path: str) -> None:
    if isinstance(found, int) and found > most:
        raise BadRequest(f"{path}: {found} found, at most {most} are allowed")


def _at(config: Mapping[str, Any], path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value

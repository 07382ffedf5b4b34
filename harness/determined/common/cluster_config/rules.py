"""Rules that concern more than one field of the cluster configuration.

They read the raw file, so that a mistake in one place never hides another one, and ignore values of a wrong
type, which the models report.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from determined.common.cluster_config.pool import DEFAULT_POOL
from determined.common.cluster_config.scheduler import OF_PRIORITY
from determined.expconf import rules as of_experiments
from determined.expconf.paths import Path, render
from determined.expconf.problems import nearest, show
from determined.expconf.translate import Finding

_ADDITIONAL = "additional_resource_managers"
#: Characters that Prefect refuses in a name.
_NOT_IN_NAMES = '/%&><"'
#: Earlier names of fields, and today's: in ``resource_manager``, and in a pool.
RENAMED_DEFAULTS = {
    "default_gpu_resource_pool": "default_compute_resource_pool",
    "default_cpu_resource_pool": "default_aux_resource_pool",
}
RENAMED_LIMIT = ("max_cpu_containers_per_agent", "max_aux_containers_per_agent")


def findings(data: dict[str, Any]) -> Iterator[Finding]:
    """All that is wrong in a whole file."""
    manager, pools = _section(data.get("resource_manager")), data.get("resource_pools")
    listed = list(_pools(data))
    yield from _scheduler(data.get("scheduler"), ("scheduler",))
    for path, one in _managers(data):
        yield from _scheduler(one.get("scheduler"), (*path, "scheduler"))
    yield from _containers(data.get("task_container_defaults"), ("task_container_defaults",))
    for path, pool in listed:
        yield from _scheduler(pool.get("scheduler"), (*path, "scheduler"))
        defaults = pool.get("task_container_defaults")
        yield from _containers(defaults, (*path, "task_container_defaults"))
        yield from _twice(pool, *RENAMED_LIMIT, path)
    yield from _names(listed)
    yield from _fallbacks(listed)
    yield from _default_pools(manager, listed, is_given=isinstance(pools, list) and bool(pools))
    yield from _additional(data)
    yield from _legacy(data)
    if isinstance(data.get("checkpoint_storage"), dict):
        storage = {"checkpoint_storage": data["checkpoint_storage"]}
        yield from of_experiments.consistency(storage)
        yield from of_experiments.completeness(storage)


def _managers(data: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each resource manager and its path; the cluster's own first."""
    yield ("resource_manager",), _section(data.get("resource_manager"))
    for index, one in enumerate(_list(data.get(_ADDITIONAL))):
        yield (
            (_ADDITIONAL, index, "resource_manager"),
            _section(_section(one).get("resource_manager")),
        )


def _pools(data: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each pool and its path, those of additional resource managers too."""
    sections: list[tuple[Path, Any]] = [((), data)]
    sections += [
        ((_ADDITIONAL, index), one) for index, one in enumerate(_list(data.get(_ADDITIONAL)))
    ]
    for path, section in sections:
        for index, pool in enumerate(_list(_section(section).get("resource_pools"))):
            yield (*path, "resource_pools", index), _section(pool)


def _additional(data: dict[str, Any]) -> Iterator[Finding]:
    """Settings that the cluster has once."""
    for path, manager in list(_managers(data))[1:]:
        for key in (*RENAMED_DEFAULTS, *RENAMED_DEFAULTS.values(), "no_default_resource_pools"):
            if manager.get(key) not in (None, "", False):
                message = "default pools are the cluster's: set them in resource_manager at the top"
                yield _rule((*path, key), message)


def _scheduler(scheduler: Any, path: Path) -> Iterator[Finding]:
    kind = _section(scheduler).get("type", "priority")
    if kind == "priority" or kind is None:
        return
    for key in OF_PRIORITY:
        if _section(scheduler).get(key) not in (None, False):
            message = f"only the scheduler 'priority' has this setting, this one is {show(kind)}"
            yield _rule((*path, key), message)


def _containers(defaults: Any, path: Path) -> Iterator[Finding]:
    """The mistakes for which an experiment's configuration would be refused, too."""
    defaults = _section(defaults)
    same = {key: defaults[key] for key in ("bind_mounts", "log_policies") if key in defaults}
    for finding in of_experiments.consistency(same):
        yield replace(finding, path=(*path, *finding.path))
    if defaults.get("network_mode") == "none":
        message = (
            "trials would not reach the service: give 'host', 'bridge' or the name of a network"
        )
        yield _rule((*path, "network_mode"), message)
    if str(defaults.get("work_dir")).strip("/") == "" and defaults.get("work_dir"):
        yield _rule((*path, "work_dir"), "must not be the root of the container's files")
    for key in ("cpu_pod_spec", "gpu_pod_spec"):
        pod = {"environment": {"pod_spec": defaults.get(key)}}
        for finding in of_experiments.consistency(pod):
            yield replace(finding, path=(*path, key, *finding.path[2:]))


def _names(pools: list[tuple[Path, dict[str, Any]]]) -> Iterator[Finding]:
    seen: dict[str, Path] = {}
    for pool_path, pool in pools:
        name = pool.get("pool_name")
        path: Path = (*pool_path, "pool_name")
        if not isinstance(name, str) or not name:
            continue
        if (first := seen.setdefault(name, pool_path)) != pool_path:
            yield _rule(path, f"{show(name)} is already the name of {render(first)}")
        elif not name.isprintable() or any(sign in name for sign in _NOT_IN_NAMES):
            allowed = f"a name without line breaks and without any of {_NOT_IN_NAMES}"
            yield _rule(path, f"expected {allowed}, found {show(name)}", allowed)
        elif name != name.strip():
            yield _rule(path, f"must not begin or end with a space, found {show(name)}")
        elif name.lower().startswith("prefect"):
            message = (
                f"Prefect keeps names that begin with 'prefect' for itself, found {show(name)}"
            )
            yield _rule(path, message)


def _fallbacks(pools: list[tuple[Path, dict[str, Any]]]) -> Iterator[Finding]:
    """Pools that are not there, or to which what has left them would come back."""
    known = [pool.get("pool_name") for _, pool in pools]
    names = [name for name in known if isinstance(name, str)]
    leads: dict[str, list[str]] = {}
    for pool_path, pool in pools:
        path: Path = (*pool_path, "fallback")
        given, home = pool.get("fallback"), pool.get("pool_name")
        yield from of_experiments.repeated_pools(given, home, path)
        for where, name in of_experiments.fallback_pools(given, path):
            if name not in names:
                yield _unknown_pool(where, name, names)
            elif isinstance(home, str) and name != home:
                back = _way(leads, name, home)
                if back:
                    circle = " -> ".join([home, *back])
                    message = f"leads back to where it came from ({circle}): leave one of these out"
                    yield _rule(where, message)
                else:
                    leads.setdefault(home, []).append(name)


def _way(leads: dict[str, list[str]], start: str, end: str) -> list[str]:
    """How fallbacks lead from one pool to another; empty if they do not."""
    came: dict[str, str | None] = {start: None}
    ahead = [start]
    while ahead:
        here = ahead.pop()
        if here == end:
            way: list[str] = []
            step: str | None = here
            while step is not None:
                way.insert(0, step)
                step = came[step]
            return way
        for name in leads.get(here, ()):
            if name not in came:
                came[name] = here
                ahead.append(name)
    return []


def _default_pools(
    manager: dict[str, Any], pools: list[tuple[Path, dict[str, Any]]], *, is_given: bool
) -> Iterator[Finding]:
    names = [pool.get("pool_name") for _, pool in pools]
    if not is_given:
        names.append(DEFAULT_POOL)
    known = [name for name in names if isinstance(name, str)]
    if len(known) < len(names):
        return
    for older, newer in RENAMED_DEFAULTS.items():
        yield from _twice(manager, older, newer, ("resource_manager",))
    none = manager.get("no_default_resource_pools") is True
    for key in (*RENAMED_DEFAULTS, *RENAMED_DEFAULTS.values()):
        path: Path = ("resource_manager", key)
        value = manager.get(key)
        if isinstance(value, str) and value and none:
            message = "give either a default pool or no_default_resource_pools, not both"
            yield _rule(path, message)
        elif isinstance(value, str) and value and value not in known:
            yield _unknown_pool(path, value, known)
    if none or DEFAULT_POOL in known:
        return
    for older, newer in RENAMED_DEFAULTS.items():
        if not manager.get(newer) and not manager.get(older):
            listed = ", ".join(known)
            message = (
                f"required field is missing: no pool is called {DEFAULT_POOL!r}, so name one of yours "
                f"(allowed: {listed})"
            )
            yield Finding("value", ("resource_manager", newer), message, None, listed)


def _unknown_pool(path: Path, value: str, known: list[str]) -> Finding:
    suggestion = nearest(value, known)
    hint = f"; did you mean {suggestion!r}?" if suggestion else ""
    listed = ", ".join(known)
    message = f"there is no resource pool {show(value)}{hint} (allowed: {listed})"
    return Finding("value", path, message, show(value), listed, suggestion)


def _legacy(data: dict[str, Any]) -> Iterator[Finding]:
    if data.get("scheduler") is None:
        return
    for key in ("resource_manager", "resource_pools"):
        if data.get(key) is not None:
            message = (
                f"the earlier form of a file, with scheduler at the top, has no {key}: move it to "
                "resource_manager.scheduler"
            )
            yield _rule(("scheduler",), message)
            return


def _twice(section: dict[str, Any], older: str, newer: str, path: Path) -> Iterator[Finding]:
    if section.get(older) is not None and section.get(newer) is not None:
        yield _rule(
            (*path, older), f"is the earlier name of {newer}, which is given too: leave it out"
        )


def _section(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _rule(path: Path, message: str, allowed: str | None = None) -> Finding:
    return Finding("value", path, message, None, allowed)

"""The table of fields that some agents, searches or ways of training ignore, and why.

Every field of the format stands in :data:`ROWS` or in :data:`HEEDED`; a new field needs a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from determined.expconf.launch import TRIAL_CLASS

PROCESSES, KUBERNETES = "determined-process", "determined-kubernetes"
"""The types of agents that run processes, and pods (``worker_type``); the others run containers."""
ORDERS = {
    "priority": "by priority",
    "fair_share": "by fair shares",
    "round_robin": "in turns (round robin)",
    "first_in_first_out": "first in, first out",
}
"""The order in which a pool serves, by the type of its scheduler."""
HEEDS_PRIORITY, HEEDS_WEIGHT = ("priority",), ("fair_share",)

MOST_NAMED = 3
NAMED_CHARS = 200
"""The most mounts named in a sentence, and the most characters of each path."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The place where something is to run. None means not known, and then no remark depends on it.

    ``scheduler``: the type of the resource pool's. ``worker_type``: of its agents. ``is_task``: it is a
    command, a notebook and so on, not an experiment. ``unmanaged``: its processes run outside of the cluster.
    ``no_mounts``: why agents of the pool that run processes can mount nothing; None: they can.
    """

    pool: str = ""
    scheduler: str | None = None
    worker_type: str | None = None
    is_task: bool = False
    unmanaged: bool = False
    no_mounts: str | None = None


@dataclass(frozen=True, slots=True)
class IgnoredFields:
    """Fields that are ignored under the same conditions. ``why`` returns the reason; None: they take
    effect."""

    fields: tuple[str, ...] | Callable[[Mapping[str, Any]], list[str]]
    """Dotted names; or what finds those that a configuration gives, where users make up names."""
    why: Callable[[Mapping[str, Any], Surroundings], str | None]
    detail: Callable[[Mapping[str, Any]], str] | None = None
    """Adds details about the ignored fields."""


def shown(path: Any) -> str:
    text = str(path)
    return text if len(text) <= NAMED_CHARS else text[:NAMED_CHARS] + "…"


def _no_containers(_: Mapping[str, Any], where: Surroundings) -> str | None:
    if where.worker_type != PROCESSES:
        return None
    return (
        f"resource pool {where.pool!r} has agents that run processes, and only those that run containers do "
        "(docs/operate/agent.md)"
    )


def _no_pods(_: Mapping[str, Any], where: Surroundings) -> str | None:
    if where.worker_type in (None, KUBERNETES):
        return None
    return (
        f"resource pool {where.pool!r} has agents on machines, and only those on Kubernetes run pods "
        "(docs/operate/pods.md)"
    )


def _no_devices(_: Mapping[str, Any], where: Surroundings) -> str | None:
    if where.worker_type != KUBERNETES:
        return None
    return (
        f"resource pool {where.pool!r} is on Kubernetes, whose device plugins give pods devices: ask for "
        "them in environment.pod_spec"
    )


def _no_mounts(_: Mapping[str, Any], where: Surroundings) -> str | None:
    if where.worker_type != PROCESSES or where.no_mounts is None:
        return None
    return (
        f"resource pool {where.pool!r} has an agent that runs processes and can mount nothing"
        f" ({where.no_mounts}; docs/operate/agent.md)"
    )


def _shared(config: Mapping[str, Any]) -> list[str]:
    return [
        f"bind_mounts[{index}].propagation"
        for index, mount in enumerate(config.get("bind_mounts") or ())
        if mount.get("propagation") in ("shared", "rshared")
    ]


def _only_slaves(_: Mapping[str, Any], where: Surroundings) -> str | None:
    if where.worker_type == KUBERNETES:
        return "mounts of a pod reach no other process; rslave shows what the node mounts later"
    if where.worker_type != PROCESSES:
        return None
    return "mounts of processes reach no other process; rslave shows what the machine mounts later"


def _mounts(config: Mapping[str, Any]) -> str:
    mounts = list(config.get("bind_mounts") or ())
    if not mounts:
        return ""
    named = [
        f"{shown(one.get('container_path'))} (on the machine: {shown(one.get('host_path'))})"
        for one in mounts[:MOST_NAMED]
    ]
    more = f" and {len(mounts) - MOST_NAMED} more" if len(mounts) > MOST_NAMED else ""
    verb = "is" if len(mounts) == 1 else "are"
    return f"; {', '.join(named)}{more} {verb} not mounted"


def _priority(_: Mapping[str, Any], where: Surroundings) -> str | None:
    return not_served(where, HEEDS_PRIORITY)


def _weight(_: Mapping[str, Any], where: Surroundings) -> str | None:
    if where.is_task:
        # A fair share is at least the slots of one allocation and at most the wanted slots.
        return "a task has all of its slots or waits for them; weights share slots out among experiments"
    return not_served(where, HEEDS_WEIGHT)


def not_served(where: Surroundings, heeding: tuple[str, ...]) -> str | None:
    """The reason why the pool's scheduler ignores the field, unless it is one of ``heeding``."""
    if where.scheduler is None or where.scheduler in heeding:
        return None
    return f"resource pool {where.pool!r} serves {ORDERS[where.scheduler]}"


def _of_trial_classes(config: Mapping[str, Any], where: Surroundings) -> str | None:
    given = config.get("entrypoint")
    words = given if isinstance(given, list) else str(given or "").split()
    if where.is_task or where.unmanaged or _is_trial_class(list(map(str, words))):
        return None
    return (
        "the entrypoint is a command, not a trial class (module:TrialClass): its own code says how often it "
        "validates, reports and stores checkpoints"
    )


def _is_trial_class(words: list[str]) -> bool:
    if len(words) == 1 and TRIAL_CLASS.fullmatch(words[0]):
        return True
    return "--trial" in words or "determined.exec.harness" in words


def _of_horovod(config: Mapping[str, Any], _: Surroundings) -> str | None:
    if "horovod" in str(config.get("entrypoint")):
        return None
    return "only determined.launch.horovod does, and the entrypoint is another"


def _timed(config: Mapping[str, Any], _: Surroundings) -> str | None:
    searcher = config.get("searcher") or {}
    if searcher.get("time_metric") is None or searcher.get("max_time") is None:
        return None
    return "time_metric and max_time are given, too, and they count"


def _own_rungs(config: Mapping[str, Any], _: Surroundings) -> str | None:
    given = (config.get("searcher") or {}).get("bracket_rungs")
    return "bracket_rungs gives the numbers of rungs themselves" if given else None


def _counted(config: Mapping[str, Any]) -> list[str]:
    def names(space: Mapping[str, Any], path: str) -> Iterator[str]:
        for name, value in space.items():
            if isinstance(value, Mapping) and "type" not in value:
                yield from names(value, f"{path}.{name}")
            elif isinstance(value, Mapping) and value.get("count") is not None:
                yield f"{path}.{name}.count"

    found = list(map(shown, names(config.get("hyperparameters") or {}, "hyperparameters")))
    more = len(found) - MOST_NAMED
    return found if more <= 0 else [*found[:MOST_NAMED], f"and {more} more"]


def _no_grid(config: Mapping[str, Any], _: Surroundings) -> str | None:
    name = (config.get("searcher") or {}).get("name")
    # Searchers of packages have their own ideas.
    if name not in ("single", "random", "adaptive_asha", "async_halving", "tpe", "pbt"):
        return None
    return f"it is the number of points on a grid, and the searcher is {name}"


def _of_shared_fs(config: Mapping[str, Any], _: Surroundings) -> str | None:
    if (config.get("checkpoint_storage") or {}).get("type") != "shared_fs":
        return None
    return "checkpoints lie below storage_path in host_path, which is the same on every machine"


def _propagation(config: Mapping[str, Any], where: Surroundings) -> str | None:
    if (config.get("checkpoint_storage") or {}).get("type") != "shared_fs":
        return None
    return _no_containers(config, where)


def _outside(_: Mapping[str, Any], where: Surroundings) -> str | None:
    return (
        "the experiment is unmanaged: its processes run outside of the cluster"
        if where.unmanaged
        else None
    )


def _of_tasks(_: Mapping[str, Any], where: Surroundings) -> str | None:
    return "resources.slots is the number of slots that a task has" if where.is_task else None


def _always(words: str) -> Callable[[Mapping[str, Any], Surroundings], str | None]:
    def why(_: Mapping[str, Any], __: Surroundings) -> str | None:
        return words

    return why


ROWS: tuple[IgnoredFields, ...] = (
    IgnoredFields(("resources.priority",), _priority),
    IgnoredFields(("resources.weight",), _weight),
    IgnoredFields(
        (
            "environment.image",
            "environment.force_pull_image",
            "environment.registry_auth",
            "environment.add_capabilities",
            "environment.drop_capabilities",
            "resources.devices",
        ),
        _no_containers,
    ),
    IgnoredFields(("resources.devices",), _no_devices),
    IgnoredFields(("bind_mounts", "resources.shm_size"), _no_mounts, _mounts),
    IgnoredFields(_shared, _only_slaves),
    IgnoredFields(("checkpoint_storage.propagation",), _propagation),
    IgnoredFields(
        tuple(
            f"checkpoint_storage.{name}"
            for name in ("container_path", "checkpoint_path", "tensorboard_path")
        ),
        _of_shared_fs,
    ),
    IgnoredFields(
        (
            "min_validation_period",
            "min_checkpoint_period",
            "perform_initial_validation",
            "checkpoint_policy",
            "scheduling_unit",
            "optimizations.aggregation_frequency",
        ),
        _of_trial_classes,
    ),
    IgnoredFields(
        (
            "optimizations.tensor_fusion_threshold",
            "optimizations.tensor_fusion_cycle_time",
            "optimizations.auto_tune_tensor_fusion",
        ),
        _of_horovod,
    ),
    IgnoredFields(
        (
            "optimizations.average_training_metrics",
            "optimizations.gradient_compression",
            "optimizations.grad_updates_size_file",
            "optimizations.mixed_precision",
        ),
        _always("the training code says so itself (PyTorchTrialContext, torch.amp)"),
    ),
    IgnoredFields(("searcher.max_length", "searcher.stop_once"), _timed),
    IgnoredFields(("searcher.mode", "searcher.max_rungs"), _own_rungs),
    IgnoredFields(_counted, _no_grid),
    IgnoredFields(
        ("profiling.begin_on_batch", "profiling.end_after_batch", "profiling.sync_timings"),
        _always("the profiler samples the machine from the beginning of the training to its end"),
    ),
    IgnoredFields(("environment.pod_spec",), _no_pods),
    IgnoredFields(("slurm", "pbs"), _always("there are no agents on Slurm or PBS")),
    IgnoredFields(
        ("environment.ports",),
        _always("environment.proxy_ports names the ports that are reached through the service"),
    ),
    IgnoredFields(
        ("retention_policy",),
        _always("logs are kept as long as their experiment, and go when it is deleted"),
    ),
    IgnoredFields(
        ("integrations",),
        _always(
            "this platform has no webhooks and no Pachyderm: the field is data for the training code"
        ),
    ),
    IgnoredFields(("resources.native_parallel",), _always("it is no longer used")),
    IgnoredFields(("resources.max_slots",), _of_tasks),
    IgnoredFields(
        (
            "entrypoint",
            "resources",
            "environment",
            "bind_mounts",
            "max_restarts",
            "max_failures",
            "preemption_timeout",
        ),
        _outside,
    ),
)

HEEDED = frozenset(
    {
        *("name", "description", "labels", "data", "entrypoint", "hyperparameters", "debug"),
        *("workspace", "project"),
        *("records_per_epoch", "max_restarts", "max_failures", "preemption_timeout"),
        *("reproducibility", "log_policies", "profiling.enabled"),
        # By determined.pytorch, in scripts as well.
        *("async_checkpoints", "optimizations.average_aggregated_gradients"),
        *(f"resources.{name}" for name in ("slots_per_trial", "max_slots", "resource_pool")),
        *(f"resources.{name}" for name in ("fallback", "placement", "is_single_node")),
        "environment.environment_variables",
        "environment.proxy_ports",
        *(f"searcher.{name}" for name in ("name", "metric", "smaller_is_better", "max_trials")),
        *(f"searcher.{name}" for name in ("source_trial_id", "source_checkpoint_uuid", "divisor")),
        *(f"searcher.{name}" for name in ("max_concurrent_trials", "time_metric", "max_time")),
        *(f"searcher.{name}" for name in ("num_rungs", "bracket_rungs", "unit")),
        *(f"checkpoint_storage.{name}" for name in ("type", "save_experiment_best")),
        *(f"checkpoint_storage.{name}" for name in ("save_trial_best", "save_trial_latest")),
        *(f"checkpoint_storage.{name}" for name in ("host_path", "storage_path", "bucket")),
        *(f"checkpoint_storage.{name}" for name in ("access_key", "secret_key", "endpoint_url")),
        *(f"checkpoint_storage.{name}" for name in ("prefix", "pack_small_files", "container")),
        *(f"checkpoint_storage.{name}" for name in ("connection_string", "account_url")),
        "checkpoint_storage.credential",
        # Of tasks.
        *("work_dir", "return_files", "idle_timeout", "notebook_idle_type", "tensorboard_args"),
        "resources.slots",
    }
)
"""Fields that take effect wherever they are allowed, or everywhere except in unmanaged experiments."""

DROPPED: Mapping[str, str] = {
    "data_layer": "there is none any more: read the data in the training code",
    "tensorboard_storage": "TensorBoard files lie in checkpoint_storage",
    "security": "there is no Kerberos",
    "resources.agent_label": "today's field is resources.placement, such as {labels: {gpu: a100}}",
    "resources.slots": "today's field is resources.slots_per_trial",
}
"""Fields of experiments of old, which are read and not stored, and what there is instead."""

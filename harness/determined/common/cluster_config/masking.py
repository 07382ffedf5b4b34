"""A cluster configuration for printing: every default filled in, secrets masked."""

from typing import Any

from determined.common.cluster_config.config import ClusterConfig
from determined.common.cluster_config.scheduler import SchedulerConfig
from determined.expconf.masking import masked_to_share

_PODS = ("cpu_pod_spec", "gpu_pod_spec")


def masked(config: ClusterConfig) -> dict[str, Any]:
    """The configuration in force, as plain JSON in the form of the file.

    ``********`` stands for secrets and for the values of environment variables that are not plainly harmless.
    """
    plain = config.model_dump(mode="json", exclude_none=True)
    manager = plain["resource_manager"]
    manager.setdefault("scheduler", SchedulerConfig().model_dump(mode="json"))
    for slots, name in ((1, "default_compute_resource_pool"), (0, "default_aux_resource_pool")):
        default = config.default_pool(slots)
        if default is not None:
            manager[name] = default
    more = [pool for one in plain["additional_resource_managers"] for pool in one["resource_pools"]]
    for section in (plain, *plain["resource_pools"], *more):
        if "task_container_defaults" in section:
            section["task_container_defaults"] = _containers(section["task_container_defaults"])
    if not more:
        del plain["additional_resource_managers"]
    storage = {"checkpoint_storage": plain.get("checkpoint_storage", {})}
    return {**plain, **{key: value for key, value in masked_to_share(storage).items() if value}}


def _containers(defaults: dict[str, Any]) -> dict[str, Any]:
    """The same fields, masked where an experiment's configuration has them: in ``environment``."""
    pods = {key: defaults[key] for key in _PODS if key in defaults}
    rest = {key: value for key, value in defaults.items() if key not in _PODS}
    found: dict[str, Any] = masked_to_share({"environment": rest})["environment"]
    for key, pod in pods.items():
        found[key] = masked_to_share({"environment": {"pod_spec": pod}})["environment"]["pod_spec"]
    return found

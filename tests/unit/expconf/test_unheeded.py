"""Ignored fields of a configuration get a remark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest

from determined import expconf
from determined.common.cluster_config.scheduler import SchedulerType
from determined.expconf import searcher, storage, tasks
from determined.expconf.base import Section
from determined.expconf.config import ExperimentConfig
from determined.expconf.heeding import (
    DROPPED,
    HEEDED,
    KUBERNETES,
    ORDERS,
    PROCESSES,
    ROWS,
    Surroundings,
)
from determined.expconf.unheeded import dropped, unheeded, unmounted
from determined_service.views.values import SCHEDULER_TYPES

NAMED = {"priority": "resources.priority (7)", "weight": "resources.weight (2.5)"}


@pytest.mark.parametrize(
    ("scheduler", "vain"),
    [
        ("priority", ["weight"]),
        ("fair_share", ["priority"]),
        ("round_robin", ["priority", "weight"]),
        ("first_in_first_out", ["priority", "weight"]),
    ],
)
def test_each_scheduler_applies_its_own_settings(scheduler: str, vain: list[str]) -> None:
    config = {"resources": {"priority": 7, "weight": 2.5}}
    found = unheeded(config, Surroundings("gpu", scheduler))
    assert [words.split(" is stored but ignored: ")[0] for words in found] == [
        NAMED[one] for one in vain
    ]
    assert all("resource pool 'gpu' serves " in words for words in found)


@pytest.mark.parametrize("resources", [{}, {"priority": None, "weight": 1.0}])
def test_unset_fields_need_no_remark(resources: dict[str, Any]) -> None:
    assert unheeded({"resources": resources}, Surroundings("gpu", "round_robin")) == []


def test_a_change_gets_a_remark_even_if_it_sets_the_default() -> None:
    where = Surroundings("gpu", "priority")
    (found,) = unheeded({"resources": {"weight": 1.0}}, where, all_that_is_there=True)
    assert found.startswith("resources.weight (1) is stored but ignored")


def test_a_task_has_all_of_its_slots_at_any_weight() -> None:
    (found,) = unheeded({"resources": {"weight": 2}}, Surroundings("gpu", "fair_share", None, True))
    assert "a task has all of its slots or waits for them" in found


def test_every_scheduler_has_words_and_a_name_in_the_api() -> None:
    types = set(get_args(SchedulerType))
    assert set(ORDERS) == types
    assert set(SCHEDULER_TYPES) == types


OF_CONTAINERS: dict[str, Any] = {
    "bind_mounts": [{"host_path": "/data/team", "container_path": "/mnt/dataset"}],
    "environment": {
        "image": {"cpu": "example.org/team/torch:2.1"},
        "force_pull_image": True,
        "registry_auth": {"username": "u"},
        "add_capabilities": ["SYS_PTRACE"],
        "drop_capabilities": ["MKNOD"],
    },
    "resources": {"devices": [{"host_path": "/dev/a"}], "shm_size": "4G"},
}
ON_PROCESSES = Surroundings("default", "priority", PROCESSES)
WITHOUT_MOUNTS = Surroundings("default", "priority", PROCESSES, no_mounts="Operation not permitted")


def test_processes_have_no_containers() -> None:
    assert unheeded(OF_CONTAINERS, ON_PROCESSES) == [
        "environment.image, environment.force_pull_image, environment.registry_auth, "
        "environment.add_capabilities, environment.drop_capabilities, resources.devices "
        "are stored but ignored: resource pool 'default' has agents that run processes, and only those "
        "that run containers do (docs/operate/agent.md)"
    ]


def test_some_machines_let_processes_mount_nothing() -> None:
    assert unheeded(OF_CONTAINERS, WITHOUT_MOUNTS)[1:] == [
        "bind_mounts, resources.shm_size are stored but ignored: resource pool 'default' has an agent "
        "that runs processes and can mount nothing (Operation not permitted; "
        "docs/operate/agent.md); /mnt/dataset (on the machine: /data/team) is not mounted"
    ]


def test_mounts_of_processes_are_private() -> None:
    mount = {"host_path": "/a", "container_path": "/b", "propagation": "rshared"}
    (found,) = unheeded({"bind_mounts": [mount]}, ON_PROCESSES)
    assert found.startswith("bind_mounts[0].propagation is stored but ignored: mounts of processes")
    assert unheeded({"bind_mounts": [mount]}, Surroundings("a", None, "determined-docker")) == []


@pytest.mark.parametrize("worker_type", ["determined-docker", None])
def test_containers_and_pools_without_agents_need_no_remark(worker_type: str | None) -> None:
    assert unheeded(OF_CONTAINERS, Surroundings("default", "priority", worker_type)) == []


def test_many_long_mounts_make_no_long_sentence() -> None:
    mounts = [{"host_path": "/h" * 5000, "container_path": f"/{one}"} for one in range(1000)]
    (found,) = unheeded({"bind_mounts": mounts}, WITHOUT_MOUNTS)
    assert found.endswith(") and 997 more are not mounted")
    assert len(found) < 1200


def test_the_default_configuration_needs_no_remark() -> None:
    text = "entrypoint: python3 train.py\nsearcher: {name: single, metric: loss, max_length: 1}\n"
    config = expconf.complete(expconf.load_yaml(text), defaults=STORAGE)
    assert unheeded(config, ON_PROCESSES) == []


STORAGE = {"checkpoint_storage": {"type": "directory", "container_path": "/x"}}


@pytest.mark.parametrize(
    "reason",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: '/mnt/dataset/x.csv' (train.py, line 4)",
        "PermissionError: [Errno 13] Permission denied: '/mnt/dataset'",
        "no data in /mnt/dataset",
    ],
)
def test_a_failure_below_a_mount_names_it(reason: str) -> None:
    assert unmounted(OF_CONTAINERS, reason, WITHOUT_MOUNTS) == (
        "/mnt/dataset of bind_mounts is not mounted, because the agent can mount nothing; there "
        "the directory is /data/team"
    )
    assert unmounted(OF_CONTAINERS, reason, ON_PROCESSES) is None
    docker = Surroundings("default", None, "determined-docker")
    assert unmounted(OF_CONTAINERS, reason, docker) is None


@pytest.mark.parametrize(
    "reason", ["No such file: '/mnt/dataset2/x.csv'", "'/other/mnt/dataset/x'", "ValueError: x"]
)
def test_other_failures_name_none(reason: str) -> None:
    assert unmounted(OF_CONTAINERS, reason, WITHOUT_MOUNTS) is None


def test_a_mount_below_the_working_directory() -> None:
    config = {"bind_mounts": [{"host_path": "/data", "container_path": "data"}]}
    assert unmounted(config, "No such file or directory: 'data/x.csv'", WITHOUT_MOUNTS)
    assert unmounted(config, "No such file or directory: './data/x.csv'", WITHOUT_MOUNTS)
    assert unmounted(config, "the data are wrong", ON_PROCESSES) is None


def test_a_workspace_needs_no_remark() -> None:
    given = {"workspace": "Vision Team", "project": "segmentation"}
    assert unheeded(given, Surroundings()) == []


def leaves(model: type[Section], known: set[str], path: str = "") -> Iterator[str]:
    """The dotted names of the model's fields, down to the known ones."""
    for name, field in model.model_fields.items():
        here = f"{path}{name}"
        inner = field.annotation
        if here in known or not (isinstance(inner, type) and issubclass(inner, Section)):
            yield here
        else:
            yield from leaves(inner, known, f"{here}.")


KNOWN = (
    HEEDED
    | {name for row in ROWS if not callable(row.fields) for name in row.fields}
    | set(DROPPED)
)
SEARCHERS = [getattr(searcher, name) for name in searcher.BUILT_IN.values()]
STORAGES = [
    storage.SharedFsStorage,
    storage.DirectoryStorage,
    storage.S3Storage,
    storage.GcsStorage,
    storage.AzureStorage,
]
TASKS = [
    tasks.CommandConfig,
    tasks.NotebookConfig,
    tasks.ShellConfig,
    tasks.TensorboardConfig,
    tasks.GenericConfig,
]
# The table names a whole section only for fields that apply outside the cluster.
SECTIONS = {"resources", "environment"}
# These fields name the kind of the file, or one of several kinds that are checked separately.
APART = {"version", "internal", "searcher", "checkpoint_storage"}


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (ExperimentConfig, ""),
        *((one, "") for one in TASKS),
        *((one, "searcher.") for one in SEARCHERS),
        *((one, "checkpoint_storage.") for one in STORAGES),
    ],
)
def test_every_field_is_known_to_the_table(model: type[Section], path: str) -> None:
    known = KNOWN - SECTIONS
    assert {one for one in leaves(model, known, path) if one not in known} - APART == set()


def test_the_table_knows_no_field_that_there_is_not() -> None:
    real = {
        name
        for model, path in (
            (ExperimentConfig, ""),
            *((one, "") for one in TASKS),
            *((one, "searcher.") for one in SEARCHERS),
            *((one, "checkpoint_storage.") for one in STORAGES),
        )
        for known in (KNOWN, KNOWN - SECTIONS)
        for name in leaves(model, known, path)
    }
    assert set(DROPPED) | KNOWN <= real | {"integrations", "retention_policy"}


SCRIPT = "entrypoint: python3 train.py\n"
CLASS = "entrypoint: model_def:Trial\n"
SINGLE = "searcher: {name: single, metric: loss, max_length: {batches: 8}}\n"
TIMED = (
    "searcher: {name: adaptive_asha, metric: loss, max_trials: 4, time_metric: batches, max_time: 8, "
    "max_length: {batches: 8}, stop_once: true}\n"
)
BRACKETS = (
    "searcher: {name: adaptive_asha, metric: loss, max_trials: 4, max_length: {batches: 8}, "
    "bracket_rungs: [2], mode: aggressive, max_rungs: 3}\n"
)
GRID = "searcher: {name: grid, metric: loss}\n"
COUNTED = "hyperparameters: {g: {x: {type: int, minval: 1, maxval: 9, count: 3}}}\n"

# configuration → how each remark begins
CASES: dict[str, tuple[str, list[str]]] = {
    "periods of a script": (
        SCRIPT + SINGLE + "min_validation_period: {batches: 10}\nscheduling_unit: 50\n",
        ["min_validation_period, scheduling_unit (50) are stored but ignored: the entrypoint is a com"],
    ),
    "periods of a trial class": (CLASS + SINGLE + "min_validation_period: {batches: 10}\n", []),
    "periods of a launched trial class": (
        "entrypoint: python3 -m determined.launch.torch_distributed --trial model_def:Trial\n"
        + SINGLE
        + "checkpoint_policy: all\n",
        [],
    ),
    "horovod": (
        "entrypoint: python3 -m determined.launch.horovod train.py\n"
        + SINGLE
        + "optimizations: {tensor_fusion_threshold: 1}\n",
        [],
    ),
    "no horovod": (
        SCRIPT + SINGLE + "optimizations: {tensor_fusion_threshold: 1, mixed_precision: O1}\n",
        ["optimizations.tensor_fusion_threshold (1) is", "optimizations.mixed_precision is"],
    ),
    "two forms of a length": (SCRIPT + TIMED, ["searcher.max_length, searcher.stop_once are"]),
    "two forms of rungs": (SCRIPT + BRACKETS, ["searcher.mode, searcher.max_rungs (3) are"]),
    "a grid": (SCRIPT + GRID + COUNTED, []),
    "no grid": (SCRIPT + SINGLE + COUNTED, ["hyperparameters.g.x.count (3) is stored but ignored"]),
    "other systems": (
        SCRIPT
        + SINGLE
        + "environment: {pod_spec: {spec: {}}, ports: {a: 8080}}\nslurm: {slots_per_node: 2}\n"
        "retention_policy: {log_retention_days: 3}\nintegrations: {webhooks: {webhook_id: [1]}}\n",
        [
            "environment.pod_spec is stored but ignored: resource pool 'default' has agents on machines",
            "slurm is stored but ignored: there are no agents on Slurm or PBS",
            "environment.ports is",
            "retention_policy is stored but ignored: logs are kept as long as their experiment",
            "integrations is stored but ignored: this platform has no webhooks",
        ],
    ),
    "profiling": (
        SCRIPT + SINGLE + "profiling: {enabled: true, begin_on_batch: 5}\n",
        ["profiling.begin_on_batch (5) is stored but ignored"],
    ),
    "a shared file system": (
        SCRIPT + SINGLE + "checkpoint_storage: {type: shared_fs, host_path: /x, container_path: /y}\n",
        ["checkpoint_storage.container_path is stored but ignored"],
    ),
    "a directory": (
        SCRIPT + SINGLE + "checkpoint_storage: {type: directory, container_path: /y}\n",
        [],
    ),
}  # fmt: skip


def test_pods_heed_what_containers_do_and_their_own() -> None:
    given = {
        "environment": {
            "image": "mine",
            "add_capabilities": ["SYS_PTRACE"],
            "pod_spec": {"spec": {}},
        },
        "resources": {"devices": [{"host_path": "/dev/a", "container_path": "/dev/a"}]},
        "bind_mounts": [{"host_path": "/a", "container_path": "/b", "propagation": "rshared"}],
    }
    devices, propagation = unheeded(given, Surroundings("k8s", worker_type=KUBERNETES))
    assert devices.startswith("resources.devices is stored but ignored: resource pool 'k8s' is on")
    assert propagation.startswith(
        "bind_mounts[0].propagation is stored but ignored: mounts of a pod"
    )
    # Before a pool has agents nobody knows.
    assert not unheeded({"environment": {"pod_spec": {"spec": {}}}}, Surroundings("new"))


@pytest.mark.parametrize("case", CASES)
def test_ignored_fields_of_a_configuration(case: str) -> None:
    text, begins = CASES[case]
    config = expconf.complete(expconf.load_yaml(text), defaults=STORAGE)
    found = unheeded(config, ON_PROCESSES)
    assert [one[: len(words)] for one, words in zip(found, begins, strict=True)] == begins


def test_scripts_outside_the_cluster() -> None:
    text = (
        "searcher: {name: single, metric: loss}\nresources: {slots_per_trial: 2}\nmax_restarts: 1\n"
    )
    config = expconf.complete(expconf.load_yaml(text), defaults=STORAGE, unmanaged=True)
    (found,) = unheeded(config, Surroundings(unmanaged=True))
    assert found.startswith(
        "resources, max_restarts (1) are stored but ignored: the experiment is unmanaged"
    )


def test_fields_of_old_that_are_dropped() -> None:
    text = "resources: {agent_label: gpu, slots: 3}\ndata_layer: {type: shared_fs}\n"
    assert [one.split(" is read and dropped: ")[0] for one in dropped(text)] == [
        "data_layer",
        "resources.agent_label",
        "resources.slots",
    ]
    assert dropped("resources: {slots_per_trial: 3}\ndescription: slots\n") == []
    assert dropped("resources: {agent_label: ") == []


def test_hostile_texts_cost_no_time() -> None:
    mounts = [{"host_path": "/h", "container_path": f"/{'a/' * 50}{one}"} for one in range(10_000)]
    text = "/" * 20_000 + "'" * 20_000 + "/a" * 20_000
    assert unmounted({"bind_mounts": mounts}, text, ON_PROCESSES) is None
    # Words that only look like one, and texts that are long anyway.
    assert dropped("slots_per_trial: 1\n" * 10) == []
    assert dropped("slots: 1\n" + "# x\n" * 100_000) == []

"""What a configuration asks for in vain is said."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from determined import expconf
from determined.common.cluster_config.scheduler import SchedulerType
from determined.expconf.unheeded import ORDERS, PROCESSES, Surroundings, unheeded, unmounted
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
def test_each_scheduler_heeds_its_own_settings(scheduler: str, vain: list[str]) -> None:
    config = {"resources": {"priority": 7, "weight": 2.5}}
    found = unheeded(config, Surroundings("gpu", scheduler))
    assert [words.split(" is stored but not heeded: ")[0] for words in found] == [
        NAMED[one] for one in vain
    ]
    assert all("resource pool 'gpu' serves " in words for words in found)


@pytest.mark.parametrize("resources", [{}, {"priority": None, "weight": 1.0}])
def test_what_is_not_set_needs_no_remark(resources: dict[str, Any]) -> None:
    assert unheeded({"resources": resources}, Surroundings("gpu", "round_robin")) == []


def test_what_somebody_has_just_set_is_said_even_if_it_is_the_default() -> None:
    where = Surroundings("gpu", "priority")
    (found,) = unheeded({"resources": {"weight": 1.0}}, where, all_that_is_there=True)
    assert found.startswith("resources.weight (1) is stored but not heeded")


def test_a_task_has_all_of_its_slots_whatever_its_weight() -> None:
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


def test_processes_have_no_containers() -> None:
    assert unheeded(OF_CONTAINERS, ON_PROCESSES) == [
        "bind_mounts, environment.image, environment.force_pull_image, environment.registry_auth, "
        "environment.add_capabilities, environment.drop_capabilities, resources.devices, resources.shm_size "
        "are stored but not heeded: resource pool 'default' has agents that run processes, and only those "
        "that run containers do (docs/agent.md); /mnt/dataset (on the machine: /data/team) is not mounted"
    ]


@pytest.mark.parametrize("worker_type", ["determined-docker", None])
def test_containers_and_pools_without_agents_need_no_remark(worker_type: str | None) -> None:
    assert unheeded(OF_CONTAINERS, Surroundings("default", "priority", worker_type)) == []


def test_many_long_mounts_make_no_long_sentence() -> None:
    mounts = [{"host_path": "/h" * 5000, "container_path": f"/{one}"} for one in range(1000)]
    (found,) = unheeded({"bind_mounts": mounts}, ON_PROCESSES)
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
    assert unmounted(OF_CONTAINERS, reason, ON_PROCESSES) == (
        "/mnt/dataset of bind_mounts is not mounted: resource pool 'default' has agents that run processes, "
        "where the directory is /data/team"
    )
    assert (
        unmounted(OF_CONTAINERS, reason, Surroundings("default", None, "determined-docker")) is None
    )


@pytest.mark.parametrize(
    "reason", ["No such file: '/mnt/dataset2/x.csv'", "'/other/mnt/dataset/x'", "ValueError: x"]
)
def test_other_failures_name_none(reason: str) -> None:
    assert unmounted(OF_CONTAINERS, reason, ON_PROCESSES) is None


def test_a_mount_below_the_working_directory() -> None:
    config = {"bind_mounts": [{"host_path": "/data", "container_path": "data"}]}
    assert unmounted(config, "No such file or directory: 'data/x.csv'", ON_PROCESSES)
    assert unmounted(config, "No such file or directory: './data/x.csv'", ON_PROCESSES)
    assert unmounted(config, "the data are wrong", ON_PROCESSES) is None


@pytest.mark.parametrize(
    ("given", "fields", "words"),
    [
        (
            {"workspace": "Vision Team", "project": "segmentation"},
            "workspace, project are",
            "not in Vision Team / segmentation",
        ),
        ({"workspace": "Vision Team"}, "workspace is", "not in Vision Team / Uncategorized"),
        ({"project": "x", "workspace": ""}, "project is", "not in Uncategorized / x"),
    ],
)
def test_there_is_one_workspace(given: dict[str, Any], fields: str, words: str) -> None:
    (found,) = unheeded(given, Surroundings())
    assert found == (
        f"{fields} stored but not heeded: this cluster has one workspace and one project, both "
        f"'Uncategorized', and the experiment is there, {words}; tell experiments apart by labels and names"
    )


def test_the_workspace_that_there_is_needs_no_remark() -> None:
    given = {"workspace": "Uncategorized", "project": "Uncategorized"}
    assert unheeded(given, Surroundings()) == []

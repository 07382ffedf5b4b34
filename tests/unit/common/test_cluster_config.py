"""The cluster configuration: reading, messages about mistakes, unused fields."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from determined.common.cluster_config import (
    ClusterConfig,
    Quotas,
    SchedulerConfig,
    masked,
    read_file,
    read_text,
    restored,
    stored,
)
from determined.common.wire import limits
from determined.expconf import ConfigError, complete, fields
from determined.expconf.base import Section

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "operate" / "cluster-config.md"


def read(text: str) -> ClusterConfig:
    return read_text(text, "c.yaml")[0]


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return str(caught.value).splitlines()


def pools(*names: str) -> str:
    return "resource_pools: [" + ", ".join(f"{{pool_name: {name}}}" for name in names) + "]\n"


# Each entry lists all messages: none may be missing, none may occur twice.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "launch_eror: true\n",
            [
                "c.yaml:1: launch_eror: unknown field; did you mean 'launch_error'? (allowed: "
                "resource_manager, resource_pools, additional_resource_managers, task_container_defaults, "
                "checkpoint_storage, launch_error, security, logging, tensorboard_timeout, "
                "notebook_timeout, notebook_files, quotas)"
            ],
            id="misspelled field",
        ),
        pytest.param(
            "launch_error: 'no'\nfitting_policy: best\n",
            [
                "c.yaml:1: launch_error: expected true or false, found 'no'",
                "c.yaml:2: fitting_policy: unknown field (allowed: resource_manager, resource_pools, "
                "additional_resource_managers, task_container_defaults, checkpoint_storage, launch_error, "
                "security, logging, tensorboard_timeout, notebook_timeout, notebook_files, quotas)",
            ],
            id="wrong type and wrong place",
        ),
        pytest.param(
            "resource_manager:\n  scheduler:\n    type: fairshare\n    default_priority: 100\n",
            [
                "c.yaml:3: resource_manager.scheduler.type: found 'fairshare'; did you mean "
                "'fair_share'? (allowed: priority, fair_share, round_robin, first_in_first_out)",
                "c.yaml:4: resource_manager.scheduler.default_priority: must be at most 99, found 100",
                "c.yaml:4: resource_manager.scheduler.default_priority: only the scheduler 'priority' has "
                "this setting, this one is 'fairshare'",
            ],
            id="scheduler",
        ),
        pytest.param(
            "resource_manager: {scheduler: {type: fair_share, preemption: true}}\n",
            [
                "c.yaml:1: resource_manager.scheduler.preemption: only the scheduler 'priority' has this "
                "setting, this one is 'fair_share'"
            ],
            id="preemption without priorities",
        ),
        pytest.param(
            "resource_manager:\n  default_compute_resource_pool: gpu\n" + pools("gpus", "default"),
            [
                "c.yaml:2: resource_manager.default_compute_resource_pool: there is no resource pool 'gpu'; "
                "did you mean 'gpus'? (allowed: gpus, default)"
            ],
            id="default pool that is not there",
        ),
        pytest.param(
            "resource_manager:\n  default_compute_resource_pool: gpus\n" + pools("gpus", "aux"),
            [
                "c.yaml:1: resource_manager.default_aux_resource_pool: required field is missing: no pool is "
                "called 'default', so name one of yours (allowed: gpus, aux)"
            ],
            id="no pool called default",
        ),
        pytest.param(
            "resource_manager: {no_default_resource_pools: true, default_aux_resource_pool: a}\n"
            + pools("a"),
            [
                "c.yaml:1: resource_manager.default_aux_resource_pool: give either a default pool or "
                "no_default_resource_pools, not both"
            ],
            id="default pool and none",
        ),
        pytest.param(
            "resource_pools:\n"
            "- {pool_name: default, fallback: spto}\n"
            "- {pool_name: spot, fallback: {pools: [spot, default, default], after_seconds: -1}}\n"
            "- {pool_name: c, fallback: []}\n",
            [
                "c.yaml:2: resource_pools[0].fallback: there is no resource pool 'spto'; did you mean "
                "'spot'? (allowed: default, spot, c)",
                "c.yaml:3: resource_pools[1].fallback.after_seconds: must be at least 0, found -1",
                "c.yaml:3: resource_pools[1].fallback.pools[0]: 'spot' is the pool that it leads away from: "
                "leave it out",
                "c.yaml:3: resource_pools[1].fallback.pools[2]: 'default' is listed already: leave it out",
                "c.yaml:4: resource_pools[2].fallback: must not be empty",
            ],
            id="fallbacks",
        ),
        pytest.param(
            "resource_pools:\n"
            "- {pool_name: default, fallback: b}\n"
            "- {pool_name: b, fallback: [c]}\n"
            "- pool_name: c\n"
            "  fallback:\n"
            "    pools:\n"
            "    - default\n",
            [
                "c.yaml:7: resource_pools[2].fallback.pools[0]: leads back to where it came from "
                "(c -> default -> b -> c): leave one of these out"
            ],
            id="fallbacks in a circle",
        ),
        pytest.param(
            pools("default", "a", "a", "'b/c'", "Prefect-x", "' d'"),
            [
                "c.yaml:1: resource_pools[2].pool_name: 'a' is already the name of resource_pools[1]",
                "c.yaml:1: resource_pools[3].pool_name: expected a name without line breaks and without any "
                "of /%&><\", found 'b/c'",
                "c.yaml:1: resource_pools[4].pool_name: Prefect keeps names that begin with 'prefect' for "
                "itself, found 'Prefect-x'",
                "c.yaml:1: resource_pools[5].pool_name: must not begin or end with a space, found ' d'",
            ],
            id="names",
        ),
        pytest.param(
            "resource_pools:\n  - description: x\n    provider: {type: aws}\n"
            "    max_cpu_containers_per_agent: 1\n    max_aux_containers_per_agent: -1\n",
            [
                "c.yaml:2: resource_pools[0].pool_name: required field is missing",
                "c.yaml:3: resource_pools[0].provider: agents are not started in a cloud: leave provider "
                "out, and start agents on machines of your own",
                "c.yaml:4: resource_pools[0].max_cpu_containers_per_agent: is the earlier name of "
                "max_aux_containers_per_agent, which is given too: leave it out",
                "c.yaml:5: resource_pools[0].max_aux_containers_per_agent: must be at least 0, found -1",
            ],
            id="pool",
        ),
        pytest.param(
            "scheduler: {type: priority}\n" + pools("default"),
            [
                "c.yaml:1: scheduler: the earlier form of a file, with scheduler at the top, has no "
                "resource_pools: move it to resource_manager.scheduler"
            ],
            id="both forms",
        ),
        pytest.param(
            "task_container_defaults:\n  environment_variables: [SECRET]\n  network_mode: none\n"
            "  bind_mounts: [{host_path: /a, container_path: .}]\n"
            "  log_policies: [{pattern: '(', action: cancel_retries}]\n"
            "  cpu_pod_spec: {metadata: {name: x}}\n",
            [
                "c.yaml:2: task_container_defaults.environment_variables[0]: expected NAME=VALUE, found "
                "'SECRET' without a value: variables of the agent are not passed on to tasks; write "
                "SECRET=VALUE, or SECRET= for an empty value",
                "c.yaml:3: task_container_defaults.network_mode: trials would not reach the service: give "
                "'host', 'bridge' or the name of a network",
                "c.yaml:4: task_container_defaults.bind_mounts[0].container_path: must not be the working "
                "directory itself ('.')",
                "c.yaml:5: task_container_defaults.log_policies[0].pattern: not a regular expression: "
                "missing ), unterminated subpattern at position 0",
                "c.yaml:6: task_container_defaults.cpu_pod_spec.metadata.name: the platform chooses the "
                "pod's name and namespace",
            ],
            id="defaults of tasks",
        ),
        pytest.param(
            "quotas:\n  experimets: 5\n  trials: 0\n  log_bytes: 20GB\n  sessions: 3e9\nlog_bytes: 1\n",
            [
                "c.yaml:2: quotas.experimets: unknown field; did you mean 'experiments'? (allowed: "
                "experiments, trials, tasks, stored_experiments, stored_trials, stored_tasks, "
                "metric_bytes, model_definition_bytes, log_bytes, returned_file_bytes, "
                "notebook_file_bytes, package_bytes, access_tokens, sessions, connections)",
                "c.yaml:3: quotas.trials: must be at least 1, found 0",
                "c.yaml:4: quotas.log_bytes: expected an integer, found '20GB'",
                "c.yaml:5: quotas.sessions: must be at most 2147483647, found 3000000000.0",
                "c.yaml:6: log_bytes: unknown field; did you mean 'quotas.log_bytes'?",
            ],
            id="quotas",
        ),
        pytest.param(
            "checkpoint_storage:\n  type: s33\n  buckt: x\n",
            [
                "c.yaml:2: checkpoint_storage.type: found 's33'; did you mean 's3'? (allowed: shared_fs, "
                "directory, s3, gcs, azure, hdfs)",
                "c.yaml:3: checkpoint_storage.buckt: unknown field; did you mean 'bucket'?",
            ],
            id="storage, and what is wrong behind its type",
        ),
        pytest.param(
            "resource_manager: {type: slurm}\nsecurity: {tls: {cert: a}, authz: {type: rbca}}\n"
            "saml: {enabled: true}\nlogging: {type: elastic}\n",
            [
                "c.yaml:1: resource_manager.type: Slurm and PBS are not supported: leave type out, or write "
                "'agent' or 'kubernetes'",
                "c.yaml:2: security.authz.type: found 'rbca'; did you mean 'rbac'? (allowed: basic, rbac)",
                "c.yaml:2: security.tls: the service speaks plain HTTP: leave tls out, and put a proxy with "
                "TLS in front of it",
                "c.yaml:3: saml: users log in with a name and a password: leave it out",
                "c.yaml:4: logging.type: logs of trials are kept in Postgres: leave type out, or write "
                "'default'",
            ],
            id="what would mislead",
        ),
        pytest.param(
            "security:\n  initial_user_password: first\n",
            [
                "c.yaml:2: security.initial_user_password: the first passwords are not set here: leave it "
                "out, and start the cluster with `det deploy local cluster-up --initial-user-password "
                "PASSWORD`",
            ],
            id="the first passwords",
        ),
        pytest.param(
            "resource_pools: [{pool_name: default, fallback: far}]\nadditional_resource_managers:\n"
            "- resource_manager: {type: kubernetes, default_aux_resource_pool: k8s,\n"
            "    scheduler: {type: fair_share, preemption: true}}\n"
            "  resource_pools:\n  - {pool_name: default}\n  - {pool_name: k8s, fallback: fra}\n"
            "- resource_pools: []\n",
            [
                "c.yaml:1: resource_pools[0].fallback: there is no resource pool 'far'",
                "c.yaml:3: additional_resource_managers[0].resource_manager.default_aux_resource_pool: "
                "default pools are the cluster's",
                "c.yaml:4: additional_resource_managers[0].resource_manager.scheduler.preemption: only the "
                "scheduler 'priority' has this setting",
                "c.yaml:6: additional_resource_managers[0].resource_pools[0].pool_name: 'default' is already "
                "the name of resource_pools[0]",
                "c.yaml:7: additional_resource_managers[0].resource_pools[1].fallback: there is no resource "
                "pool 'fra'",
                "c.yaml:8: additional_resource_managers[1].resource_pools: ",
            ],
            id="additional resource managers",
        ),
    ],
)
def test_mistakes(text: str, expected: list[str]) -> None:
    found = problems(text)
    assert [line[: len(one)] for line, one in zip(found, expected, strict=True)] == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: " + "[" * 100 + "]" * 100, "at most 64 levels"),
        ("x: " + "y" * limits.CONFIG_BYTES, "at most 1048576 are allowed"),
        (pools(*(f"p{n}" for n in range(limits.POOLS + 1))), "resource_pools"),
        (f"resource_pools: [{{pool_name: {'x' * 201}}}]", "resource_pools[0].pool_name"),
        ("", "found nothing"),
    ],
)
def test_the_size_is_bounded(text: str, says: str) -> None:
    assert says in "\n".join(problems(text))


def test_a_pools_missing_fields_come_from_the_resource_manager() -> None:
    config = read(
        "resource_manager: {scheduler: {type: round_robin, fitting_policy: worst}}\n"
        "resource_pools:\n"
        "- {pool_name: default}\n"
        "- {pool_name: own, scheduler: {preemption: true, default_priority: 1e1}}\n"
    )
    assert config.scheduler_of("default") == SchedulerConfig(
        type="round_robin", fitting_policy="worst"
    )
    # Nothing is inherited.
    assert config.scheduler_of("own") == SchedulerConfig(preemption=True, default_priority=10)


def test_defaults() -> None:
    config = ClusterConfig()
    assert [pool.pool_name for pool in config.resource_pools] == ["default"]
    assert (config.default_pool(1), config.default_pool(0)) == ("default", "default")
    assert config.pool_of_flows == "default"
    assert config.scheduler_of("default") == SchedulerConfig(
        type="priority", fitting_policy="best", preemption=False, default_priority=42
    )
    assert config.launch_error


def test_quotas_that_are_not_given_have_their_defaults() -> None:
    config = read("quotas: {trials: 1e6, sessions: null}\n")
    assert config.quotas == Quotas(trials=1_000_000)
    assert stored(config) == {"quotas": {"trials": 1_000_000}}
    assert ClusterConfig().quotas == read("launch_error: true\n").quotas == Quotas()
    # The number of trials with which one search may begin.
    assert Quotas().trials >= limits.TRIALS_AT_ONCE


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (
            "scheduler: {type: fair_share}\n",
            "resource_manager: {scheduler: {type: fair_share}}\n",
        ),
        (
            "resource_manager: {default_gpu_resource_pool: a, default_cpu_resource_pool: b}\n"
            "resource_pools: [{pool_name: a, max_cpu_containers_per_agent: 3}, {pool_name: b}]\n",
            "resource_manager: {default_compute_resource_pool: a, default_aux_resource_pool: b}\n"
            "resource_pools: [{pool_name: a, max_aux_containers_per_agent: 3}, {pool_name: b}]\n",
        ),
        (
            "resource_manager: null\nport: 8080\nlaunch_error: false\n",
            "launch_error: false\n",
        ),
    ],
)
def test_older_forms_become_todays(older: str, newer: str) -> None:
    assert read(older) == read(newer)
    assert stored(read(older)) == stored(read(newer))


FULL = """
resource_manager: {default_aux_resource_pool: b, default_compute_resource_pool: a}
resource_pools:
- pool_name: a
  task_container_defaults:
    image: own
    environment_variables: [API_KEY=qwertyuiop1234567890, N=4]
    registry_auth: {username: u, password: hunter2hunter2}
    gpu_pod_spec: {spec: {containers: [{name: x, env: [{name: TOKEN, value: gpusecretgpu}]}]}}
- {pool_name: b, max_aux_containers_per_agent: 2}
task_container_defaults:
  environment_variables: {cuda: [A=1], cpu: [B=2]}
  preemption_timeout: 60
  shm_size_bytes: 1024
  devices: ['/dev/a:/dev/b']
  cpu_pod_spec: {spec: {hostNetwork: true}}
checkpoint_storage: {type: s3, bucket: b, access_key: AKIA1234, secret_key: s3secrets3secret}
"""


def test_stored_values_come_back_unchanged() -> None:
    config = read(FULL)
    assert restored(stored(config)) == config
    assert stored(restored(stored(config))) == stored(config)


def test_defaults_of_tasks_lie_beneath_the_experiment() -> None:
    config = read(FULL)
    text = {"entrypoint": "x", "searcher": {"name": "single", "metric": "m"}}

    def submitted(pool: str, slots: int, **more: Any) -> dict[str, Any]:
        beneath = config.container_defaults_of(pool).for_experiment(slots)
        storage = {"checkpoint_storage": {"type": "directory", "container_path": "/c"}}
        return complete({**text, **more}, defaults={**beneath, **storage})

    shared = submitted("b", 0, environment={"environment_variables": ["A=2"]})
    assert shared["preemption_timeout"] == 60
    assert shared["resources"]["shm_size"] == 1024
    assert shared["resources"]["devices"][0]["container_path"] == "/dev/b"
    assert shared["environment"]["environment_variables"]["cuda"] == ["A=1", "A=2"]
    assert shared["environment"]["environment_variables"]["cpu"] == ["B=2", "A=2"]
    assert shared["environment"]["pod_spec"] == {"spec": {"hostNetwork": True}}
    assert "determinedai" in shared["environment"]["image"]["cpu"]
    assert submitted("b", 0, preemption_timeout=5)["preemption_timeout"] == 5
    # The pool's defaults replace the cluster's as a whole.
    own = submitted("a", 1)
    assert own["preemption_timeout"] is None
    assert own["environment"]["image"]["cuda"] == "own"
    assert own["environment"]["registry_auth"]["password"] == "hunter2hunter2"
    assert own["environment"]["pod_spec"]["spec"]["containers"][0]["name"] == "x"


def test_secrets_are_masked_for_printing() -> None:
    shown = masked(read(FULL))
    text = repr(shown)
    for secret in ("qwertyuiop", "hunter2", "gpusecret", "s3secret", "AKIA1234"):
        assert secret not in text
    assert shown["resource_pools"][0]["task_container_defaults"]["image"]["cuda"] == "own"
    assert (
        "N=4"
        in shown["resource_pools"][0]["task_container_defaults"]["environment_variables"]["cpu"]
    )
    assert shown["resource_manager"]["scheduler"]["type"] == "priority"
    # The output can be read as a file again.
    assert read_text(str(shown).replace("'", '"').replace("True", "true").replace("False", "false"))


def test_unused_fields_are_reported(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "master.yaml"
    path.write_text(
        "port: 8080\nlog:\n  level: info\nresource_manager:\n  metadata: {a: b}\n"
        "resource_pools:\n  - pool_name: default\n    agent_reattach_enabled: true\n"
        "telemetry: null\nsaml: {enabled: false}\n"
    )
    _, remarks = read_file(path)
    assert [str(remark).partition(": not used: ")[0] for remark in remarks] == [
        f"{path}:1: port",
        f"{path}:2: log",
        f"{path}:5: resource_manager.metadata",
        f"{path}:8: resource_pools[0].agent_reattach_enabled",
    ]
    assert "--master-port" in str(remarks[0])


def test_fields_for_containers_only_get_a_remark() -> None:
    _, remarks = read_text(
        "task_container_defaults:\n  network_mode: host\n  work_dir: /srv\n  startup_hook: 'true'\n"
        "  shm_size_bytes: 1024\n  image: own\n  environment_variables: [A=1]\n",
        "c.yaml",
    )
    assert [str(remark).partition(" only: ")[0] for remark in remarks] == [
        "c.yaml:2: task_container_defaults.network_mode: of agents with containers",
        "c.yaml:3: task_container_defaults.work_dir: of agents with containers",
        "c.yaml:6: task_container_defaults.image: of agents with containers",
    ]
    assert problems("task_container_defaults: {work_dir: //}") == [
        "c.yaml:1: task_container_defaults.work_dir: must not be the root of the container's files"
    ]


def test_every_field_is_on_the_page() -> None:
    page = re.sub(r"```.*?```", "", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    words = {word for code in re.findall(r"`([^`]+)`", page) for word in re.findall(r"\w+", code)}

    def own(section: type[Section]) -> Iterator[type[Section]]:
        yield section
        for field in section.model_fields.values():
            for inner in fields.sections_in(field.annotation):
                if inner.__module__.startswith("determined.common"):
                    yield from own(inner)

    missing = {
        f"{section.__name__}.{name}"
        for section in own(ClusterConfig)
        for name in section.model_fields
        if name not in words
    }
    assert not missing


def test_how_long_agents_may_be_silent_is_a_pools_own() -> None:
    config = read(
        "resource_pools:\n- {pool_name: default}\n- {pool_name: far, agent_reconnect_wait: 1h30m}\n"
        "additional_resource_managers:\n- resource_manager: {type: kubernetes}\n"
        "  resource_pools: [{pool_name: pods, agent_reconnect_wait: 25s}]\n"
    )
    assert restored(stored(config)).reconnect_waits() == {"far": 5400.0, "pods": 25.0}
    text = "resource_pools:\n- pool_name: default\n  agent_reconnect_wait: {}\n"
    where = "c.yaml:3: resource_pools[0].agent_reconnect_wait: "
    assert problems(text.format("169h")) == [f"{where}expected at most 168h, found '169h'"]
    (unit,) = problems(text.format(25))
    assert unit.startswith(f"{where}expected a duration with its unit, such as '25s'")


def test_the_way_that_fallbacks_lead() -> None:
    config = read(
        "resource_pools:\n"
        "- {pool_name: default, fallback: [a, c]}\n"
        "- {pool_name: a, fallback: {pools: [b], after_seconds: 5}}\n"
        "- {pool_name: b, fallback: c}\n"
        "- {pool_name: c}\n"
    )
    assert config.fallback_route("default") == ["a", "b", "c"]
    assert config.fallback_route("a") == ["b", "c"]
    assert config.fallback_route("c") == config.fallback_route("gone") == []
    first = config.resource_pools[0].fallback
    assert first is not None
    assert first.after_seconds == 300
    assert restored(stored(config)) == config


ON_KUBERNETES = """
resource_manager: {scheduler: {default_priority: 40}}
resource_pools: [{pool_name: default}]
additional_resource_managers:
- resource_manager:
    type: kubernetes
    default_namespace: trials
    max_slots_per_pod: 4
    scheduler: {preemption: true}
  resource_pools:
  - {pool_name: k8s, kubernetes_namespace: other, max_cpu_containers_per_agent: 7}
  - pool_name: wide
    task_container_defaults:
      kubernetes: {max_slots_per_pod: 8}
      gpu_pod_spec:
        spec: {containers: [{name: determined-container, env: [{name: TOKEN, value: hushhush}]}]}
"""


def test_pools_of_another_resource_manager() -> None:
    config = read(ON_KUBERNETES)
    assert [pool.pool_name for pool in config.pools] == ["default", "k8s", "wide"]
    assert [config.manager_of(one).type for one in ("default", "k8s", "gone")] == [
        "agent",
        "kubernetes",
        "agent",
    ]
    assert config.scheduler_of("k8s").preemption and not config.scheduler_of("default").preemption
    assert [config.max_slots_per_pod(one) for one in ("default", "k8s", "wide")] == [None, 4, 8]
    found = config.pool("k8s")
    assert found is not None and found.max_aux_containers_per_agent == 7
    assert config.pool_of_flows == "default"


def test_the_default_priority_of_kubernetes() -> None:
    config = read(ON_KUBERNETES)
    assert [config.scheduler_of(one).default_priority for one in ("default", "k8s")] == [40, 50]
    named = read("resource_manager: {type: kubernetes, scheduler: {default_priority: 42}}")
    assert named.scheduler_of("default").default_priority == 42
    assert (
        read("resource_manager: {type: kubernetes}").scheduler_of("default").default_priority == 50
    )


def test_a_configuration_of_two_managers_is_stored_shown_and_read_again() -> None:
    config = read(ON_KUBERNETES)
    assert restored(json.loads(json.dumps(stored(config)))) == config
    shown = masked(config)
    assert "hushhush" not in json.dumps(shown)
    again = read(yaml.safe_dump(shown))
    assert again.max_slots_per_pod("wide") == 8 and again.manager_of("k8s").type == "kubernetes"


def test_what_the_agents_settings_say_instead() -> None:
    _, remarks = read_text(ON_KUBERNETES, "c.yaml")
    assert [str(one) for one in remarks] == [
        "c.yaml:7: additional_resource_managers[0].resource_manager.default_namespace: not used: it is a "
        "setting of the pool's agent, kubernetes.namespace",
        "c.yaml:11: additional_resource_managers[0].resource_pools[0].kubernetes_namespace: not used: it is "
        "a setting of the pool's agent, kubernetes.namespace",
    ]

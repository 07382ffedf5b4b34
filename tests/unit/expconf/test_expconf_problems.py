"""Broken configurations: the messages to the user, and their places."""

import pytest
from expconf_examples import STORAGE

from determined.expconf import ConfigError, complete, load_yaml, validate
from determined.expconf.problems import nearest

OK_SEARCHER = "searcher: {name: single, metric: loss}\n"
OK = "entrypoint: x\n" + OK_SEARCHER


def problems(text: str, template: dict | None = None) -> list[str]:
    """Every line of the error that submitting the text gives."""
    with pytest.raises(ConfigError) as caught:
        complete(load_yaml(text, "c.yaml"), template=template, defaults=STORAGE)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.problems)
    return lines


# Each entry lists all messages: none may be missing, none may occur twice.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "entrypoint: x\nsearcher:\n  nmae: single\n  metric: loss\n",
            [
                "c.yaml:3: searcher.nmae: unknown field; did you mean 'name'? (allowed: one of 24 "
                "fields, which `det experiment schema` lists)"
            ],
            id="misspelled name of the searcher",
        ),
        pytest.param(
            "entrypoint: x\nsearcher:\n  name: adaptve_asha\n  metric: loss\n  max_trials: ten\n",
            [
                "c.yaml:2: searcher: the 'adaptive_asha' searcher requires `max_time` and "
                "`time_metric` to be set, or a max_length such as {batches: 100}",
                "c.yaml:3: searcher.name: found 'adaptve_asha'; did you mean 'adaptive_asha'? "
                "(allowed: single, random, grid, adaptive_asha, async_halving, custom, pbt, tpe)",
                "c.yaml:5: searcher.max_trials: expected an integer, found 'ten'",
            ],
            id="misspelled kind of searcher, and what is wrong behind it",
        ),
        pytest.param(
            "entrypoint: x\nsearcher: grid\n",
            ["c.yaml:2: searcher: expected a mapping, found 'grid'; write it as {name: grid, ...}"],
            id="searcher as a word",
        ),
        pytest.param(
            "entrypoint: x\nsearcher: {name: random, metric: loss, max_trials: '8'}\n",
            ["c.yaml:2: searcher.max_trials: expected an integer, found '8'"],
            id="number in quotes",
        ),
        pytest.param(
            "entrypoint: x\nsearcher:\n  name: random\n  metric: loss\n",
            ["c.yaml:2: searcher.max_trials: required field is missing"],
            id="required field missing",
        ),
        pytest.param(
            "searcher:\n  name: single\nentrypont: x\n",
            [
                "c.yaml:1: searcher.metric: required field is missing",
                "c.yaml:3: entrypont: unknown field; did you mean 'entrypoint'? (allowed: one of 32 "
                "fields, which `det experiment schema` lists)",
            ],
            id="misspelled required field is not also missing",
        ),
        pytest.param(
            "name: nothing else\n",
            [
                "c.yaml: searcher: required field is missing",
                "c.yaml: entrypoint: required field is missing: the command that runs a trial",
            ],
            id="nothing there",
        ),
        pytest.param(
            OK + "slots_per_trial: 4\n",
            [
                "c.yaml:3: slots_per_trial: unknown field; did you mean 'resources.slots_per_trial'? "
                "(allowed: one of 32 fields, which `det experiment schema` lists)"
            ],
            id="right field in the wrong section",
        ),
        pytest.param(
            OK.replace("loss", "loss, max_trials: 3, max_lenght: 7"),
            [
                "c.yaml:2: searcher.max_trials: unknown field for name: single (allowed: name, metric, "
                "smaller_is_better, source_trial_id, source_checkpoint_uuid, max_length)",
                "c.yaml:2: searcher.max_lenght: unknown field for name: single; did you mean "
                "'max_length'? (allowed: name, metric, smaller_is_better, source_trial_id, "
                "source_checkpoint_uuid, max_length)",
            ],
            id="field of another searcher",
        ),
        pytest.param(
            OK + "hyperparameters:\n  lr: {type: log, minval: -1, maxval: -5, base: 10, cuont: 3}\n"
            "  opt:\n    type: adam\n  n: {type: int, minval: 0.5, maxval: 3}\n"
            "  v: {type: categorical, vals: []}\n  g:\n    d: {type: double, maxval: 1}\n",
            [
                "c.yaml:4: hyperparameters.lr.cuont: unknown field for type: log; did you mean "
                "'count'? (allowed: type, base, minval, maxval, count)",
                "c.yaml:4: hyperparameters.lr.minval: minval must be less than maxval, found -1 and -5",
                "c.yaml:6: hyperparameters.opt.type: found 'adam' (allowed: const, int, double, log, "
                "categorical); a group of hyperparameters cannot have a member called 'type': {type: const, "
                "val: {type: …}} hands such a mapping to the trials as it is",
                "c.yaml:7: hyperparameters.n.minval: expected an integer, found 0.5",
                "c.yaml:8: hyperparameters.v.vals: must not be empty",
                "c.yaml:10: hyperparameters.g.d.minval: required field is missing",
            ],
            id="search space",
        ),
        pytest.param(
            "entrypoint: x\nsearcher: {name: grid, metric: loss}\nhyperparameters:\n"
            "  a: {type: int, minval: 0, maxval: 1}\n  g:\n    b: [1, {type: log, base: 2, minval: 0,"
            " maxval: 1}]\n  c: {type: double, minval: 0, maxval: 1, count: 2}\n",
            [
                "c.yaml:4: hyperparameters.a.count: grid search is in use but count was not provided",
                "c.yaml:6: hyperparameters.g.b[1].count: grid search is in use but count was not "
                "provided",
            ],
            id="grid without counts",
        ),
        pytest.param(
            "entrypoint: x\nsearcher: {name: async_halving, metric: l, max_trials: 2, num_rungs: 2,\n"
            "  max_length: 0}\n",
            ["c.yaml:3: searcher.max_length: must be at least 1, found 0"],
            id="halving without a length",
        ),
        pytest.param(
            "entrypoint: x\nsearcher: {name: adaptive_asha, metric: l, max_trials: 2,\n"
            "  max_time: 100}\n",
            [
                "c.yaml:2: searcher.time_metric: the 'adaptive_asha' searcher requires `max_time` and "
                "`time_metric` to be set, or a max_length such as {batches: 100}"
            ],
            id="max_time alone",
        ),
        pytest.param(
            OK.replace(
                "loss", "loss, max_length: 0, source_trial_id: 1, source_checkpoint_uuid: a"
            ),
            [
                "c.yaml:2: searcher.max_length: must be at least 1, found 0",
                "c.yaml:2: searcher.source_checkpoint_uuid: give either source_trial_id or "
                "source_checkpoint_uuid, not both",
            ],
            id="two sources, no length",
        ),
        pytest.param(
            OK + "min_validation_period: {batches: 1, epochs: 2}\n"
            "min_checkpoint_period: {batchs: 1}\n",
            [
                "c.yaml:3: min_validation_period: expected exactly one of batches, records and epochs, "
                "found batches and epochs",
                "c.yaml:4: min_checkpoint_period.batchs: unknown field; did you mean 'batches'? "
                "(allowed: batches, records, epochs)",
            ],
            id="lengths",
        ),
        pytest.param(
            OK + "resources: {slots_per_trial: yes, max_slots: -1, priority: 100, shm_size: big,\n"
            "  resource_pool: 10, devices: ['/dev/a', '/a:/b:x'], weight: heavy}\n",
            [
                "c.yaml:3: resources.slots_per_trial: expected an integer, found true",
                "c.yaml:3: resources.max_slots: must be at least 0, found -1",
                "c.yaml:3: resources.priority: must be at most 99, found 100",
                "c.yaml:3: resources.shm_size: expected a size such as 4294967296, '4G' or '1.5GiB', "
                "found 'big'",
                "c.yaml:4: resources.weight: expected a number, found 'heavy'",
                "c.yaml:4: resources.resource_pool: expected text, found 10; put it in quotes: '10'",
                "c.yaml:4: resources.devices[0]: expected 'host:container[:rwm]', found '/dev/a'",
                "c.yaml:4: resources.devices[1]: expected a mode made of the letters r, w and m, "
                "found '/a:/b:x'",
            ],
            id="resources",
        ),
        pytest.param(
            OK + "resources: {slots_per_trial: 4, max_slots: 2}\n",
            ["c.yaml:3: resources.max_slots: must be at least slots_per_trial (4), found 2"],
            id="fewer slots than a trial needs",
        ),
        pytest.param(
            OK.replace("metric: loss", "metric: loss, source_trial_id: 2147483648")
            + "max_restarts: 2147483648\nmax_failures: 9007199254740992\npreemption_timeout: 1e12\n"
            "resources: {slots_per_trial: 3000000000, max_slots: 4000000000,\n"
            "  fallback: {pools: [b], after_seconds: 9223372036854775807}}\n",
            [
                "c.yaml:2: searcher.source_trial_id: must be at most 2147483647, found 2147483648",
                "c.yaml:3: max_restarts: must be at most 2147483647, found 2147483648",
                "c.yaml:4: max_failures: must be at most 2147483647, found 9007199254740992",
                "c.yaml:5: preemption_timeout: must be at most 2147483647, found 1000000000000.0",
                "c.yaml:6: resources.slots_per_trial: must be at most 2147483647, found 3000000000",
                "c.yaml:6: resources.max_slots: must be at most 2147483647, found 4000000000",
                "c.yaml:7: resources.fallback.after_seconds: must be at most 2147483647, found "
                "9223372036854775807",
            ],
            id="more than the database keeps",
        ),
        pytest.param(
            OK + "checkpoint_storage:\n  type: S3\n  bucket: b\n",
            [
                "c.yaml:4: checkpoint_storage.type: found 'S3'; did you mean 's3'? (allowed: "
                "shared_fs, directory, s3, gcs, azure, hdfs)"
            ],
            id="kind of storage",
        ),
        pytest.param(
            OK + "checkpoint_storage: {type: shared_fs, host_path: ckpt, storage_path: ../x,\n"
            "  save_trial_best: -1}\n",
            [
                "c.yaml:3: checkpoint_storage.host_path: expected an absolute path (one that begins "
                "with '/'), found 'ckpt'",
                "c.yaml:3: checkpoint_storage.storage_path: must be a relative path inside host_path, "
                "or a directory under 'ckpt', found '../x'",
                "c.yaml:4: checkpoint_storage.save_trial_best: must be at least 0, found -1",
            ],
            id="paths of the storage",
        ),
        pytest.param(
            OK
            + "checkpoint_storage:\n  type: shared_fs\n  host_path: /a\n  pack_small_files: true\n",
            [
                "c.yaml:6: checkpoint_storage.pack_small_files: unknown field for type: shared_fs (allowed: "
                "type, save_experiment_best, save_trial_best, save_trial_latest, host_path, storage_path, "
                "propagation, container_path, checkpoint_path, tensorboard_path)"
            ],
            id="packs in a file system",
        ),
        pytest.param(
            OK + "checkpoint_storage: {type: s3, bucket: b, pack_small_files: 1}\n",
            ["c.yaml:3: checkpoint_storage.pack_small_files: expected true or false, found 1"],
            id="packs: neither true nor false",
        ),
        pytest.param(
            OK + "checkpoint_storage: {type: gcs, bucket: b, prefix: a/../b}\n",
            [
                "c.yaml:3: checkpoint_storage.prefix: must not contain the component '..', found 'a/../b'"
            ],
            id="prefix",
        ),
        pytest.param(
            OK + "checkpoint_storage: {type: azure, container: c, connection_string: s, "
            "account_url: u}\n",
            [
                "c.yaml:3: checkpoint_storage.connection_string: give either connection_string or "
                "account_url"
            ],
            id="azure: two ways to connect",
        ),
        pytest.param(
            OK + "checkpoint_storage: {type: azure, container: c}\n",
            [
                "c.yaml:3: checkpoint_storage: azure needs a connection_string, or an account_url with a "
                "credential"
            ],
            id="azure: no way to connect",
        ),
        pytest.param(
            OK + "bind_mounts:\n- {host_path: a, container_path: .}\n- {host_path: /a}\n"
            "- {host_path: /a, container_path: /b, propagation: sharde}\n"
            "- {host_path: /c, container_path: /b/}\n",
            [
                "c.yaml:4: bind_mounts[0].host_path: expected an absolute path (one that begins with "
                "'/'), found 'a'",
                "c.yaml:4: bind_mounts[0].container_path: must not be the working directory itself "
                "('.')",
                "c.yaml:5: bind_mounts[1].container_path: required field is missing",
                "c.yaml:6: bind_mounts[2].propagation: found 'sharde'; did you mean 'shared'? "
                "(allowed: private, rprivate, shared, rshared, slave, rslave)",
                "c.yaml:7: bind_mounts[3].container_path: '/b/' is already used by bind_mounts[2]",
            ],
            id="bind mounts",
        ),
        pytest.param(
            OK
            + "environment:\n  image: {gpu: 5, tpu: x}\n  environment_variables: [HF_TOKEN, 3, hunter2, =x]\n"
            "  ports: {a: 70000}\n  pod_spec: {metadata: {name: x}, spec: {containers: [{name: "
            "determined-container, image: y}]}}\n  proxy_ports: [{port: 1}]\n",
            [
                "c.yaml:4: environment.image.gpu: expected text, found 5; put it in quotes: '5'",
                "c.yaml:4: environment.image.tpu: unknown field; did you mean 'cpu'? (allowed: cpu, "
                "cuda, rocm)",
                "c.yaml:5: environment.environment_variables[0]: expected NAME=VALUE, found 'HF_TOKEN' "
                "without a value: variables of the agent are not passed on to tasks; write "
                "HF_TOKEN=VALUE, or HF_TOKEN= for an empty value",
                "c.yaml:5: environment.environment_variables[1]: expected text, found ********",
                "c.yaml:5: environment.environment_variables[2]: expected NAME=VALUE, found ******** without "
                "a value: variables of the agent are not passed on to tasks; write NAME=VALUE, or "
                "NAME= for an empty value",
                "c.yaml:5: environment.environment_variables[3]: expected NAME=VALUE, found ********",
                "c.yaml:6: environment.ports.a: must be at most 65535, found 70000",
                "c.yaml:7: environment.pod_spec.metadata.name: the platform chooses the pod's name and "
                "namespace",
                "c.yaml:7: environment.pod_spec.spec.containers[0].image: the platform sets this field "
                "of 'determined-container' itself",
                "c.yaml:8: environment.proxy_ports[0].port: unknown field; did you mean 'proxy_port'? "
                "(allowed: proxy_port, proxy_tcp, unauthenticated, default_service_id)",
            ],
            id="environment",
        ),
        pytest.param(
            OK + "profiling: {begin_on_batch: 5, end_after_batch: 2}\nmax_restarts: -1\n"
            "checkpoint_policy: bets\nretention_policy: {log_retention_days: -2}\nversion: 1\n"
            "reproducibility: {experiment_seed: -1}\nscheduling_unit: 0\nmax_failures: 0\n"
            "async_checkpoints: skpi\n",
            [
                "c.yaml:3: profiling.end_after_batch: must not be before begin_on_batch (5), found 2",
                "c.yaml:4: max_restarts: must be at least 0, found -1",
                "c.yaml:5: checkpoint_policy: found 'bets'; did you mean 'best'? (allowed: best, all, "
                "none)",
                "c.yaml:6: retention_policy.log_retention_days: must be at least -1, found -2",
                "c.yaml:7: version: found 1 (allowed: 0)",
                "c.yaml:8: reproducibility.experiment_seed: must be at least 0, found -1",
                "c.yaml:9: scheduling_unit: must be at least 1, found 0",
                "c.yaml:10: max_failures: must be at least 1, found 0",
                "c.yaml:11: async_checkpoints: found 'skpi'; did you mean 'skip'? (allowed: true, false, "
                "skip)",
            ],
            id="ranges",
        ),
        pytest.param(
            OK + "log_policies:\n- {pattern: a}\n- {name: x, pattern: '('}\n- {name: x}\n"
            "- {pattern: a, action: reboot}\n- {pattern: b, action: {type: exclude_nod}}\n",
            [
                "c.yaml:4: log_policies[0]: a policy needs a name, or a pattern and an action",
                "c.yaml:5: log_policies[1].pattern: not a regular expression: missing ), unterminated "
                "subpattern at position 0",
                "c.yaml:6: log_policies[2]: the same policy as log_policies[1]; names must differ",
                "c.yaml:7: log_policies[3].action: found 'reboot' (allowed: cancel_retries, "
                "exclude_node)",
                "c.yaml:8: log_policies[4].action: found 'exclude_nod'; did you mean 'exclude_node'? "
                "(allowed: cancel_retries, exclude_node)",
            ],
            id="log policies",
        ),
        pytest.param(
            OK + "internal: {native: 1}\n"
            "tensorboard_storage: {type: s3, save_trial_best: 1, pack_small_files: true}\n"
            "security: {kerberos: {config: x}}\nlabels: {team: vision}\ndata: [1]\nname: ''\n",
            [
                "c.yaml:3: internal: expected null, found a mapping",
                "c.yaml:4: tensorboard_storage.save_trial_best: 'save_trial_best' belongs under "
                "checkpoint_storage",
                "c.yaml:4: tensorboard_storage.pack_small_files: 'pack_small_files' belongs under "
                "checkpoint_storage",
                "c.yaml:5: security.kerberos.config: unknown field; did you mean 'config_file'? "
                "(allowed: config_file)",
                "c.yaml:6: labels: expected a list, found a mapping",
                "c.yaml:7: data: expected a mapping, found a list",
                "c.yaml:8: name: must not be empty",
            ],
            id="odds and ends",
        ),
        pytest.param(
            OK_SEARCHER + "entrypoint: {command: x}\n",
            [
                "c.yaml:2: entrypoint: expected a command, as text or as a list of words, found a mapping"
            ],
            id="entrypoint",
        ),
    ],
)
def test_messages_for_the_user(text: str, expected: list[str]) -> None:
    assert sorted(problems(text)) == sorted(expected)


def test_problems_come_in_the_order_of_the_file() -> None:
    lines = problems(
        "zebra: 1\nsearcher: {name: single, metric: 3}\nmax_restarts: x\nentrypoint: x\n"
    )
    assert [line.split(":")[1] for line in lines] == ["1", "2", "3"]


def test_the_parts_of_a_problem() -> None:
    with pytest.raises(ConfigError) as caught:
        complete(load_yaml(OK.replace("single", "singel"), "c.yaml"), defaults=STORAGE)
    (problem,) = caught.value.problems
    assert problem.as_dict() == {
        "path": "searcher.name",
        "line": 2,
        "found": "'singel'",
        "allowed": "single, random, grid, adaptive_asha, async_halving, custom, pbt, tpe",
        "suggestion": "single",
        "message": "found 'singel'; did you mean 'single'? "
        "(allowed: single, random, grid, adaptive_asha, async_halving, custom, pbt, tpe)",
        "source": "c.yaml",
    }


@pytest.mark.parametrize(
    ("found", "names", "meant"),
    [
        ("nmae", ["name", "metric"], "name"),
        ("Max-Trials", ["max_rungs", "max_trials"], "max_trials"),
        ("asha", ["single", "adaptive_asha"], "adaptive_asha"),
        ("zebra", ["name", "metric"], None),
        ("a", ["a_b", "b_c"], None),
        (5, ["name"], None),
    ],
)
def test_nearest_names(found: object, names: list[str], meant: str | None) -> None:
    assert nearest(found, names) == meant


@pytest.mark.parametrize("name", ["sync_halving", "adaptive", "adaptive_simple"])
def test_removed_searchers_load_but_are_refused_for_new_experiments(name: str) -> None:
    fields = {
        "sync_halving": "num_rungs: 2, max_length: {batches: 1}, budget: {batches: 9}",
        "adaptive": "max_length: {batches: 1}, budget: {batches: 9}",
        "adaptive_simple": "max_length: {batches: 1}, max_trials: 2000",
    }[name]
    instead = {
        "sync_halving": "name: async_halving, max_length: {batches: 1}, max_trials: 9; keep num_rungs; "
        "leave budget and train_stragglers out",
        "adaptive": "name: adaptive_asha, max_length: {batches: 1}, max_trials: 9; leave budget and "
        "train_stragglers out",
        "adaptive_simple": "name: adaptive_asha, max_length: {batches: 1}, max_trials: 2000",
    }[name]
    text = f"entrypoint: x\nsearcher: {{name: {name}, metric: loss, {fields}}}\n"
    assert problems(text) == [
        f"c.yaml:2: searcher.name: the '{name}' searcher has been removed and is not valid for new "
        f"experiments: write {instead}"
    ]
    stored = {
        **load_yaml(text).data,
        **STORAGE,
        "name": "old",
        "hyperparameters": {},
        "reproducibility": {"experiment_seed": 1},
    }
    assert validate(stored).searcher.name == name


def test_a_template_is_blamed_for_its_own_mistakes() -> None:
    template = {"resources": {"slots_per_trail": 2}, "bind_mounts": [{"host_path": "/a"}]}
    assert problems(OK, template) == [
        "template: resources.slots_per_trail: unknown field; did you mean 'slots_per_trial'? (allowed: "
        "slots_per_trial, max_slots, weight, priority, resource_pool, fallback, placement, shm_size, "
        "devices, native_parallel, is_single_node)",
        "template: bind_mounts[0].container_path: required field is missing",
    ]


def test_fields_that_a_template_may_still_bring_are_not_missing() -> None:
    part = load_yaml("searcher: {metric: loss}\ncheckpoint_storage: {type: s3}\nresources: {}\n")
    assert validate(part, complete=False) is None
    with pytest.raises(ConfigError, match=r"searcher\.name: required field is missing"):
        validate(part)


def test_python_data_has_no_lines_and_must_be_plain() -> None:
    with pytest.raises(ConfigError) as caught:
        validate({"data": {"path": object(), "set": {1}}, "labels": ("a", b"b")})
    assert str(caught.value).splitlines() == [
        "data.path: a object is not plain data; use text, numbers, booleans, null, lists and mappings",
        "data.set: a set is not plain data; use text, numbers, booleans, null, lists and mappings",
        "labels[1]: a bytes is not plain data; use text, numbers, booleans, null, lists and mappings",
    ]

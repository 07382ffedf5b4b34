"""Config over template over cluster defaults."""

import copy
from typing import Any

import pytest
from expconf_examples import VALID
from hypothesis import given
from hypothesis import strategies as st

from determined.expconf import load_yaml, merge

ASHA = {"name": "adaptive_asha", "metric": "loss", "max_trials": 9, "max_length": {"batches": 8}}
S3 = {"type": "s3", "bucket": "b", "secret_key": "s", "save_trial_best": 3}


@pytest.mark.parametrize(
    ("config", "template", "defaults", "merged"),
    [
        pytest.param(
            {"name": "mine", "resources": {"slots_per_trial": 2}},
            {"name": "t", "resources": {"slots_per_trial": 4, "priority": 3}},
            {"resources": {"priority": 9, "weight": 2}, "debug": True},
            {
                "name": "mine",
                "resources": {"slots_per_trial": 2, "priority": 3, "weight": 2},
                "debug": True,
            },
            id="field by field, the upper wins",
        ),
        pytest.param(
            {"description": None, "searcher": {"name": "single", "metric": None}},
            {"description": "t", "searcher": {"metric": "loss"}},
            None,
            {"description": "t", "searcher": {"name": "single", "metric": "loss"}},
            id="null is absent",
        ),
        pytest.param(
            {"entrypoint": ["a"], "slurm": {"sbatch_args": ["-a"]}},
            {"entrypoint": ["b", "c"], "slurm": {"sbatch_args": ["-b"], "gpu_type": "x"}},
            None,
            {"entrypoint": ["a"], "slurm": {"sbatch_args": ["-a"], "gpu_type": "x"}},
            id="lists replace each other",
        ),
        pytest.param(
            {"bind_mounts": [{"host_path": "/1", "container_path": "a"}]},
            {
                "bind_mounts": [
                    {"host_path": "/2", "container_path": "a"},
                    {"host_path": "/3", "container_path": "b"},
                ]
            },
            {"bind_mounts": [{"host_path": "/4", "container_path": "b"}, {"container_path": "c"}]},
            {
                "bind_mounts": [
                    {"host_path": "/1", "container_path": "a"},
                    {"host_path": "/3", "container_path": "b"},
                    {"container_path": "c"},
                ]
            },
            id="bind mounts are added unless their place is taken",
        ),
        pytest.param(
            {"resources": {"devices": ["/a:/x"]}},
            {"resources": {"devices": ["/b:/x:r", "/b:/y:r"]}},
            None,
            {
                "resources": {
                    "devices": [
                        {"host_path": "/a", "container_path": "/x"},
                        {"host_path": "/b", "container_path": "/y", "mode": "r"},
                    ]
                }
            },
            id="devices too, in either form",
        ),
        pytest.param(
            {"environment": {"proxy_ports": [{"proxy_port": 1, "proxy_tcp": True}]}},
            {"environment": {"proxy_ports": [{"proxy_port": 1}, {"proxy_port": 2}]}},
            None,
            {
                "environment": {
                    "proxy_ports": [{"proxy_port": 1, "proxy_tcp": True}, {"proxy_port": 2}]
                }
            },
            id="proxy ports by port",
        ),
        pytest.param(
            {"log_policies": [{"name": "a"}, {"pattern": "p", "action": {"type": "exclude_node"}}]},
            {
                "log_policies": [
                    {"name": "a", "pattern": "x"},
                    {"pattern": "p", "action": "exclude_node"},
                    {"pattern": "p", "action": "cancel_retries"},
                ]
            },
            None,
            {
                "log_policies": [
                    {"name": "a"},
                    {"pattern": "p", "action": "exclude_node"},
                    {"pattern": "p", "action": "cancel_retries"},
                ]
            },
            id="log policies by name, or by what they do",
        ),
        pytest.param(
            {"environment": {"environment_variables": ["A=mine"]}},
            {"environment": {"environment_variables": {"gpu": ["A=t", "B=t"]}}},
            {"environment": {"environment_variables": {"cpu": ["C=d"]}}},
            {
                "environment": {
                    "environment_variables": {
                        "cpu": ["C=d", "A=mine"],
                        "cuda": ["A=t", "B=t", "A=mine"],
                        "rocm": ["A=mine"],
                    }
                }
            },
            id="environment variables: the user's last, so that they count",
        ),
        pytest.param(
            {"environment": {"image": {"gpu": "mine"}}},
            {"environment": {"image": "t"}},
            None,
            {"environment": {"image": {"cuda": "mine", "cpu": "t", "rocm": "t"}}},
            id="images per device",
        ),
        pytest.param(
            {"labels": ["a"]},
            {"labels": {"b": True, "a": True}},
            {"labels": ["c"]},
            {"labels": ["a", "b", "c"]},
            id="labels are a set",
        ),
        pytest.param(
            {"searcher": {"name": "random", "max_trials": 2}},
            {"searcher": {**ASHA, "smaller_is_better": False}},
            None,
            {
                "searcher": {
                    "name": "random",
                    "max_trials": 2,
                    "metric": "loss",
                    "smaller_is_better": False,
                }
            },
            id="another searcher: only common fields come through",
        ),
        pytest.param(
            {"searcher": {"name": "custom"}},
            {"searcher": {"name": "single", "metric": "loss", "source_trial_id": 1}},
            None,
            {"searcher": {"name": "custom", "metric": "loss"}},
            id="a custom searcher has no source",
        ),
        pytest.param(
            {"searcher": {"name": "custom"}},
            {"searcher": {"metric": "loss", "mine": 1}},
            None,
            {"searcher": {"name": "custom", "metric": "loss", "mine": 1}},
            id="but a custom searcher takes any field",
        ),
        pytest.param(
            {"searcher": {"name": "adaptive_asha", "max_length": {"epochs": 1}}},
            {"searcher": ASHA},
            None,
            {"searcher": {**ASHA, "max_length": {"epochs": 1}}},
            id="the same searcher: all fields, lengths whole",
        ),
        pytest.param(
            {"searcher": {"name": "single"}},
            {"searcher": {"metric": "loss", "max_trials": 3}},
            None,
            {"searcher": {"name": "single", "metric": "loss"}},
            id="a template without a name gives what fits",
        ),
        pytest.param(
            {"searcher": {"max_trials": 3}},
            {"searcher": ASHA},
            None,
            {"searcher": {**ASHA, "max_trials": 3}},
            id="a config without a name changes the template's searcher",
        ),
        pytest.param(
            {"checkpoint_storage": {"type": "gcs", "bucket": "mine"}},
            {"checkpoint_storage": S3},
            {
                "checkpoint_storage": {
                    "type": "shared_fs",
                    "host_path": "/a",
                    "save_trial_latest": 7,
                }
            },
            {
                "checkpoint_storage": {
                    "type": "gcs",
                    "bucket": "mine",
                    "save_trial_best": 3,
                    "save_trial_latest": 7,
                }
            },
            id="another storage: no bucket, no key, only what to keep",
        ),
        pytest.param(
            {"checkpoint_storage": {"save_trial_best": 9}},
            None,
            {"checkpoint_storage": S3},
            {"checkpoint_storage": {**S3, "save_trial_best": 9}},
            id="the cluster's storage with a change",
        ),
        pytest.param(
            {
                "hyperparameters": {
                    "g": {"a": 1},
                    "r": {"type": "int", "minval": 0, "maxval": 1},
                    "n": None,
                }
            },
            {
                "hyperparameters": {
                    "g": {"a": 2, "b": 2},
                    "r": {"type": "int", "minval": 5, "maxval": 9, "count": 2},
                    "n": 4,
                    "z": [1],
                }
            },
            None,
            {
                "hyperparameters": {
                    "g": {"a": 1, "b": 2},
                    "r": {"type": "int", "minval": 0, "maxval": 1},
                    "n": None,
                    "z": [1],
                }
            },
            id="hyperparameters: groups merge, the rest is whole, null is a value",
        ),
        pytest.param(
            {"hyperparameters": {"g": {"a": 1}, "h": 3}},
            {"hyperparameters": {"g": {"type": "const", "val": 1}, "h": {"x": 1}}},
            None,
            {"hyperparameters": {"g": {"a": 1}, "h": 3}},
            id="hyperparameters: a group against something else",
        ),
        pytest.param(
            {"data": {"a": {"x": 1}}},
            {"data": {"a": {"y": 2}, "b": None}},
            None,
            {"data": {"a": {"x": 1}, "b": None}},
            id="data: keys of both",
        ),
        pytest.param(
            {"min_validation_period": {"epochs": 1}},
            {"min_validation_period": {"batches": 5}},
            {"min_checkpoint_period": {"batches": 7}},
            {"min_validation_period": {"epochs": 1}, "min_checkpoint_period": {"batches": 7}},
            id="lengths are one value",
        ),
        pytest.param(
            {
                "environment": {
                    "pod_spec": {
                        "metadata": {"labels": {"a": "1"}},
                        "spec": {
                            "containers": [
                                {"name": "side", "image": "mine"},
                                {
                                    "name": "determined-container",
                                    "env": [{"name": "A", "value": "1"}],
                                    "volumeMounts": [{"mountPath": "/x", "name": "v"}],
                                },
                            ],
                            "tolerations": [{"key": "mine"}],
                        },
                    }
                }
            },
            {
                "environment": {
                    "pod_spec": {
                        "metadata": {"labels": {"a": "2", "b": "2"}},
                        "spec": {
                            "containers": [
                                {
                                    "name": "determined-container",
                                    "env": [
                                        {"name": "A", "value": "2"},
                                        {"name": "B", "value": "2"},
                                    ],
                                    "volumeMounts": [
                                        {"mountPath": "/x", "name": "w", "readOnly": True}
                                    ],
                                }
                            ],
                            "tolerations": [{"key": "theirs"}],
                            "volumes": [{"name": "v"}],
                        },
                    }
                }
            },
            None,
            {
                "environment": {
                    "pod_spec": {
                        "metadata": {"labels": {"a": "1", "b": "2"}},
                        "spec": {
                            "containers": [
                                {
                                    "name": "determined-container",
                                    "env": [
                                        {"name": "A", "value": "1"},
                                        {"name": "B", "value": "2"},
                                    ],
                                    "volumeMounts": [
                                        {"mountPath": "/x", "name": "v", "readOnly": True}
                                    ],
                                },
                                {"name": "side", "image": "mine"},
                            ],
                            "tolerations": [{"key": "mine"}],
                            "volumes": [{"name": "v"}],
                        },
                    }
                }
            },
            id="pod specs as Kubernetes does it",
        ),
    ],
)
def test_merging(
    config: dict[str, Any],
    template: dict[str, Any] | None,
    defaults: dict[str, Any] | None,
    merged: dict[str, Any],
) -> None:
    before = copy.deepcopy((config, template, defaults))
    assert merge(config, template, defaults) == merged
    assert (config, template, defaults) == before


@pytest.mark.parametrize("text", VALID.values(), ids=VALID)
def test_a_config_over_itself_is_itself(text: str) -> None:
    data = load_yaml(text).data
    once = merge(data, None, None)
    assert merge(once, once, once) == once
    assert merge({}, data, None) == once == merge({}, None, data)


FIELDS = """searcher checkpoint_storage environment resources labels bind_mounts hyperparameters data name
log_policies min_validation_period type image environment_variables pod_spec proxy_ports devices cpu gpu
containers env"""
SECTIONS = st.sampled_from(FIELDS.split())
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["single", "s3", "a", "a:b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SECTIONS, inner, max_size=4),
    max_leaves=20,
)


@given(*[st.dictionaries(SECTIONS, ANYTHING, max_size=5)] * 3)
def test_merging_never_fails(config: dict, template: dict, defaults: dict) -> None:
    assert isinstance(merge(config, template, defaults), dict)

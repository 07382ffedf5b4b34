"""The stored configuration: merged, with every default."""

import copy
import json
import re
import time
from typing import Any

import pytest
from expconf_examples import MINIMAL, STORAGE, VALID
from hypothesis import given, settings
from hypothesis import strategies as st

from determined.expconf import ConfigError, ExperimentConfig, check, complete, load_yaml, validate
from determined.expconf.length import PositiveLength
from determined_searchers import simulate


def completed(text: str, **kwargs: Any) -> dict[str, Any]:
    return complete(load_yaml(text), defaults=STORAGE, **kwargs)


def test_every_default_exists() -> None:
    assert completed(MINIMAL, seed=7, name_factory=lambda: "n") == {
        "name": "n",
        "description": None,
        "labels": [],
        "workspace": "",
        "project": "",
        "data": {},
        "entrypoint": "python3 train.py",
        "hyperparameters": {},
        "searcher": {
            "name": "single",
            "metric": "loss",
            "smaller_is_better": True,
            "source_trial_id": None,
            "source_checkpoint_uuid": None,
            "max_length": None,
        },
        "checkpoint_storage": {
            "type": "shared_fs",
            "save_experiment_best": 0,
            "save_trial_best": 1,
            "save_trial_latest": 1,
            "host_path": "/ckpt",
            "storage_path": None,
            "propagation": "rprivate",
            "container_path": None,
            "checkpoint_path": None,
            "tensorboard_path": None,
        },
        "checkpoint_policy": "best",
        "async_checkpoints": None,
        "min_validation_period": {"batches": 0},
        "min_checkpoint_period": {"batches": 0},
        "perform_initial_validation": False,
        "records_per_epoch": 0,
        "scheduling_unit": 100,
        "max_restarts": 5,
        "max_failures": 10,
        "preemption_timeout": None,
        "reproducibility": {"experiment_seed": 7},
        "resources": {
            "slots_per_trial": 1,
            "max_slots": None,
            "weight": 1.0,
            "priority": None,
            "resource_pool": "",
            "fallback": None,
            "placement": None,
            "shm_size": None,
            "devices": [],
            "native_parallel": False,
            "is_single_node": None,
        },
        "environment": {
            "image": {
                "cpu": "determinedai/environments:py-3.8-pytorch-1.12-tf-2.8-cpu-835d8b1",
                "cuda": "determinedai/environments:cuda-11.3-pytorch-1.12-tf-2.8-gpu-835d8b1",
                "rocm": "determinedai/environments:rocm-5.0-pytorch-1.10-tf-2.7-rocm-835d8b1",
            },
            "environment_variables": {"cpu": [], "cuda": [], "rocm": []},
            "proxy_ports": [],
            "ports": {},
            "force_pull_image": False,
            "registry_auth": None,
            "add_capabilities": [],
            "drop_capabilities": [],
            "pod_spec": None,
        },
        "bind_mounts": [],
        "optimizations": {
            "aggregation_frequency": 1,
            "average_aggregated_gradients": True,
            "average_training_metrics": True,
            "gradient_compression": False,
            "grad_updates_size_file": None,
            "mixed_precision": "O0",
            "tensor_fusion_threshold": 64,
            "tensor_fusion_cycle_time": 1,
            "auto_tune_tensor_fusion": False,
        },
        "profiling": {
            "enabled": False,
            "begin_on_batch": 0,
            "end_after_batch": None,
            "sync_timings": True,
        },
        "log_policies": [
            {"name": "CUDA OOM", "pattern": ".*CUDA out of memory.*", "action": None},
            {
                "name": "ECC Error",
                "pattern": ".*uncorrectable ECC error encountered.*",
                "action": None,
            },
        ],
        "retention_policy": None,
        "integrations": None,
        "slurm": {"slots_per_node": None, "gpu_type": None, "sbatch_args": []},
        "pbs": {"slots_per_node": None, "pbsbatch_args": []},
        "debug": False,
    }


@pytest.mark.parametrize("text", VALID.values(), ids=VALID)
def test_valid_configs(text: str) -> None:
    document = load_yaml(text)
    before = copy.deepcopy(document.data)
    check(document)
    stored = complete(document, defaults=STORAGE)
    assert document.data == before
    assert json.loads(json.dumps(stored)) == stored
    # Reading a stored configuration gives the same configuration, and completing it again changes nothing.
    assert complete(stored) == stored
    typed = validate(stored)
    assert isinstance(typed, ExperimentConfig)
    assert typed.model_dump(mode="json") == stored


def test_name_and_seed_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1234.5)
    first, second = completed(MINIMAL), completed(MINIMAL)
    assert re.fullmatch(r"Experiment \([a-z]+-[a-z]+-[a-z]+\)", first["name"])
    assert first["name"] != second["name"]
    assert first["reproducibility"]["experiment_seed"] == 1234
    given_ = MINIMAL + "reproducibility: {experiment_seed: 3}\nname: mine\n"
    assert completed(given_, seed=9)["reproducibility"] == {"experiment_seed": 3}
    assert completed(given_)["name"] == "mine"


def test_storage_comes_from_the_cluster_or_nowhere() -> None:
    with pytest.raises(ConfigError, match="checkpoint_storage: required field is missing"):
        complete(load_yaml(MINIMAL))
    check(load_yaml(MINIMAL))


def test_an_unmanaged_experiment_needs_no_entrypoint() -> None:
    text = "searcher: {name: single, metric: loss}\n"
    with pytest.raises(ConfigError, match="entrypoint: required field is missing"):
        completed(text)
    assert completed(text, unmanaged=True)["entrypoint"] is None


def test_templates_lie_between_config_and_defaults() -> None:
    template = load_yaml("searcher: {name: random, max_trials: 4}\nmax_restarts: 1\ndebug: true\n")
    text = "entrypoint: x\nsearcher: {metric: loss}\nmax_restarts: 2\n"
    stored = complete(load_yaml(text), template=template, defaults={**STORAGE, "debug": False})
    assert stored["searcher"]["max_trials"] == 4
    assert stored["max_restarts"] == 2
    assert stored["debug"] is True


@pytest.mark.parametrize("text", [MINIMAL, VALID["ASHA, newer form"], VALID["older names"]])
@pytest.mark.parametrize(
    ("own", "template", "stored"),
    [
        ("", "", 10),
        ("max_failures: 3\n", "", 3),
        ("max_failures: null\n", "", None),
        ("max_failures: null\n", "max_failures: 3\n", None),
        ("", "max_failures: null\n", None),
        ("max_failures: 1e1\n", "max_failures: null\n", 10),
    ],
)
def test_null_is_a_value_of_max_failures(
    text: str, own: str, template: str, stored: int | None
) -> None:
    found = complete(load_yaml(text + own), template=load_yaml(template or "{}"), defaults=STORAGE)
    assert found["max_failures"] == stored
    assert complete(found) == found
    assert validate(found).max_failures == stored


def test_older_forms_are_stored_in_todays() -> None:
    stored = completed(VALID["older names"])
    assert stored["labels"] == ["one"]
    image = stored["environment"]["image"]
    assert (image["cpu"], image["cuda"]) == ("j", "i")
    assert image["rocm"].startswith("determinedai/environments:rocm-")
    assert stored["environment"]["environment_variables"]["cuda"] == ["A=b"]
    for gone in ("data_layer", "security", "tensorboard_storage", "internal", "version"):
        assert gone not in stored
    assert not {"slots", "agent_label"} & stored["resources"].keys()


def test_one_list_of_variables_is_for_all_devices() -> None:
    stored = completed(MINIMAL + "environment: {environment_variables: [A=1], image: i}\n")
    assert stored["environment"]["environment_variables"] == {
        "cpu": ["A=1"],
        "cuda": ["A=1"],
        "rocm": ["A=1"],
    }
    assert stored["environment"]["image"] == {"cpu": "i", "cuda": "i", "rocm": "i"}


@pytest.mark.parametrize(
    ("length", "stop_once"),
    [
        ("max_length: {batches: 9}", False),
        ("max_length: {batches: 9}, stop_once: true", True),
        ("max_length: 9", False),
        ("max_length: 9, stop_once: true", True),
        ("time_metric: batches, max_time: 9", None),
        ("time_metric: batches, max_time: 9, max_length: {batches: 9}", None),
    ],
)
def test_promotion_is_the_default_of_the_older_form_only(length: str, stop_once: object) -> None:
    text = f"entrypoint: x\nsearcher: {{name: adaptive_asha, metric: l, max_trials: 3, {length}}}\n"
    assert completed(text)["searcher"]["stop_once"] is stop_once


def test_lengths_keep_their_form() -> None:
    searcher = completed(VALID["older form, unitless"])["searcher"]
    assert searcher["max_length"] == 100
    assert isinstance(searcher["max_length"], int)
    stored = completed(VALID["ASHA, older form"])
    assert stored["searcher"]["max_length"] == {"epochs": 9}
    length = validate(stored).searcher.max_length  # type: ignore[union-attr]
    assert isinstance(length, PositiveLength)
    assert (length.unit, length.units) == ("epochs", 9)


@pytest.mark.parametrize(
    "searcher",
    [
        "name: adaptive_asha, max_trials: 16",
        "name: async_halving, max_trials: 16, num_rungs: 3",
        "name: tpe, max_trials: 16",
        "name: pbt, population_size: 4, num_rounds: 2",
        "name: random, max_trials: 2",
        "name: grid",
        "name: single",
    ],
)
def test_a_length_without_a_unit_is_the_same_search(searcher: str) -> None:
    """Every searcher that takes lengths takes a number; the operations equal those for 100 batches."""
    text = "entrypoint: x\nsearcher: {{metric: l, {}, max_length: {}}}\nhyperparameters: {{a: 1}}\n"
    bare, batches = (completed(text.format(searcher, one)) for one in ("100", "{batches: 100}"))
    assert bare["searcher"]["max_length"] == 100
    assert bare["searcher"] == {**batches["searcher"], "max_length": 100}
    searches = [simulate(config, seed=3, workers=4) for config in (bare, batches)]
    trials = [[(one.request_id, one.lengths) for one in search.trials] for search in searches]
    assert trials[0] == trials[1]
    assert max(lengths[-1] for _, lengths in trials[0]) == 100


def test_custom_searchers_keep_their_own_fields() -> None:
    stored = completed(VALID["custom searcher with its own fields"])
    assert stored["searcher"]["anything"] == {"goes": "here"}


def test_built_in_log_policies_can_be_switched_off() -> None:
    stored = completed(MINIMAL + "log_policies: [{name: CUDA OOM, pattern: null}, {name: x}]\n")
    assert [(p["name"], p["pattern"]) for p in stored["log_policies"]] == [
        ("CUDA OOM", None),
        ("x", None),
        ("ECC Error", ".*uncorrectable ECC error encountered.*"),
    ]


def test_null_stays_a_value_where_it_is_one() -> None:
    stored = completed(VALID["older form, unitless"])
    assert stored["hyperparameters"]["model"]["nothing"] == {"type": "const", "val": None}
    assert stored["hyperparameters"]["model"]["kind"]["vals"][2] is None
    assert completed(VALID["older form, single"])["hyperparameters"]["dropout"] is None
    assert completed(VALID["everything else"])["data"]["nested"] == {"null_is_kept": None}


PLACES = [
    ("searcher",),
    ("searcher", "name"),
    ("searcher", "max_length"),
    ("searcher", "bracket_rungs"),
    ("hyperparameters",),
    ("hyperparameters", "x"),
    ("hyperparameters", "model", "depth", "minval"),
    ("checkpoint_storage",),
    ("checkpoint_storage", "type"),
    ("checkpoint_storage", "storage_path"),
    ("environment",),
    ("environment", "image"),
    ("environment", "environment_variables"),
    ("environment", "pod_spec"),
    ("environment", "proxy_ports"),
    ("resources", "devices"),
    ("resources", "shm_size"),
    ("bind_mounts",),
    ("log_policies",),
    ("labels",),
    ("entrypoint",),
    ("integrations",),
    ("reproducibility",),
    ("tensorboard_storage",),
    ("optimizations", "mixed_precision"),
    ("min_validation_period",),
]
FIELDS = """name type batches gpu cpu metric max_trials spec containers minval maxval host_path
container_path pattern action x path"""
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "grid", "adaptive_asha", "s3", "azure", "int", "/a", "A=b", "a:b", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS.split()),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    st.sampled_from([load_yaml(text).data for text in VALID.values()]),
    st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3),
)
def test_every_mistake_has_our_own_message(base: dict, changes: list) -> None:
    data = copy.deepcopy(base)
    for path, value in changes:
        holder = data
        for step in path[:-1]:
            if not isinstance(holder.get(step), dict):
                holder[step] = {}
            holder = holder[step]
        holder[path[-1]] = value
    try:
        stored = complete(data, defaults=STORAGE)
    except ConfigError as error:
        assert error.problems
        for line in str(error).splitlines():
            assert "Input should" not in line
            assert "\0" not in line
            assert "pydantic" not in line
    else:
        assert complete(stored) == stored

"""The JSON schema agrees with the models."""

import json

import pytest
from expconf_examples import MINIMAL, STORAGE, VALID
from jsonschema import Draft202012Validator

from determined.expconf import ConfigError, complete, json_schema, load_yaml

VALIDATOR = Draft202012Validator(json_schema())


def test_it_is_a_schema_for_editors() -> None:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    assert json.loads(json.dumps(schema)) == schema
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["required"] == ["entrypoint", "searcher"]
    # A hover text for every field.
    assert all("description" in field for field in schema["properties"].values())


@pytest.mark.parametrize("text", VALID.values(), ids=VALID)
def test_it_accepts_valid_keys(text: str) -> None:
    VALIDATOR.validate(load_yaml(text).data)
    VALIDATOR.validate(complete(load_yaml(text), defaults=STORAGE))


@pytest.mark.parametrize(
    "text",
    [
        "searcher: {name: single, metric: loss}",
        "entrypoint: x",
        "entrypoint: 3\nsearcher: {name: single, metric: loss}",
        "entrypoint: []\nsearcher: {name: single, metric: loss}",
        "entrypoint: x\nsearcher: {name: sinlge, metric: loss}",
        "entrypoint: x\nsearcher: {name: single}",
        "entrypoint: x\nsearcher: {name: single, metric: loss, max_trials: 3}",
        "entrypoint: x\nsearcher: {name: single, metric: loss, max_length: 0}",
        "entrypoint: x\nsearcher: {name: single, metric: loss, max_length: {batches: 0}}",
        "entrypoint: x\nsearcher: {name: single, metric: loss, max_length: {batches: 1, epochs: 1}}",
        "entrypoint: x\nsearcher: {name: adaptive_asha, metric: l, max_trials: 1, max_length: 0}",
        "entrypoint: x\nsearcher: {name: adaptive_asha, metric: l, max_trials: 1, max_time: 0}",
        MINIMAL + "hyperparameters: {a: {type: int, minval: 1.5, maxval: 3}}",
        MINIMAL + "hyperparameters: {a: {b: {type: wrong}}}",
        MINIMAL + "hyperparameters: {a: {type: categorical, vals: []}}",
        MINIMAL + "hyperparameters: [a]",
        MINIMAL + "resources: {priority: 100}",
        MINIMAL + "resources: {slots_per_trial: -1}",
        MINIMAL + "resources: {shm_size: 4 GB or so}",
        MINIMAL + "resources: {devices: [{host_path: /a}]}",
        MINIMAL + "environment: {image: {tpu: x}}",
        MINIMAL + "environment: {environment_variables: {cpu: [FOO]}}",
        MINIMAL + "bind_mounts: [{host_path: a, container_path: b}]",
        MINIMAL + "checkpoint_storage: {type: s3}",
        MINIMAL + "checkpoint_storage: {type: shared_fs, host_path: relative}",
        MINIMAL + "checkpoint_policy: never",
        MINIMAL + "labels: {a: b}",
        MINIMAL + "log_policies: [{name: a, action: {type: reboot}}]",
        MINIMAL + "retention_policy: {}",
        MINIMAL + "internal: {}",
        MINIMAL + "version: 1",
        MINIMAL + "unknown: 1",
    ],
)
def test_it_refuses_invalid_keys(text: str) -> None:
    document = load_yaml(text)
    with pytest.raises(ConfigError):
        complete(document, defaults=STORAGE)
    assert not VALIDATOR.is_valid(document.data)

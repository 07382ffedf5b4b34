"""Overrides, secrets, entrypoints, and what importing costs."""

import json
import subprocess
import sys
from typing import Any

import pytest
from expconf_examples import MINIMAL, STORAGE, VALID

from determined import expconf
from determined.expconf import (
    ConfigError,
    apply_overrides,
    complete,
    complete_search,
    launch_command,
    load_yaml,
    masked,
    masked_for_others,
    validate,
)
from determined.expconf.secret_text import masked_text
from tests.waiting import TIMEOUT_S


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("searcher.max_trials=8", ("searcher", "max_trials"), 8),
        ("hyperparameters.lr=1e-3", ("hyperparameters", "lr"), 0.001),
        ("a.b.c=", ("a", "b", "c"), None),
        ("a = b ", ("a",), "b"),
        ("a.b={type: int, minval: 1}", ("a", "b"), {"type": "int", "minval": 1}),
        ("a=[x, 2]", ("a",), ["x", 2]),
        ("a.b=x: y", ("a", "b"), {"x": "y"}),
        ("a=x=y", ("a",), "x=y"),
        ("a=yes", ("a",), True),
        ("a='yes'", ("a",), "yes"),
        ("items.1.x=5", ("items", 1, "x"), 5),
        ("items.0=5", ("items", 0), 5),
    ],
)
def test_overrides(override: str, path: tuple, value: object) -> None:
    data: dict[str, Any] = {"items": [{"x": 1}, {"x": 2}], "searcher": {"max_trials": 1, "m": 2}}
    changed: Any = apply_overrides(data, [override])
    for step in path:
        changed = changed[step]
    assert changed == value
    assert data == {"items": [{"x": 1}, {"x": 2}], "searcher": {"max_trials": 1, "m": 2}}


def test_overrides_keep_unnamed_fields() -> None:
    data = {"searcher": {"name": "random", "max_trials": 1}}
    changed = apply_overrides(data, ["searcher.max_trials=8", "searcher.metric=loss"])
    assert changed == {"searcher": {"name": "random", "max_trials": 8, "metric": "loss"}}


def test_overrides_of_a_file_keep_its_lines() -> None:
    document = load_yaml("entrypoint: x\nsearcher:\n  name: single\n  metric: 3\n", "c.yaml")
    changed = apply_overrides(document, ["searcher.name=random"])
    assert (changed.line("searcher.metric"), changed.line("searcher.name")) == (4, None)
    assert document.data["searcher"]["name"] == "single"
    with pytest.raises(ConfigError, match=r"c\.yaml:4: searcher\.metric: expected text, found 3"):
        complete(changed, defaults=STORAGE)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "searcher.max_trial=3",
            "searcher.max_trial: unknown field for name: random; did you mean 'max_trials'?",
        ),
        ("searcher.max_trials=a", "searcher.max_trials: expected an integer, found 'a'"),
        ("seracher.metric=x", "seracher: unknown field; did you mean 'searcher'?"),
    ],
)
def test_a_mistake_on_the_command_line_is_not_looked_for_in_the_file(
    override: str, message: str
) -> None:
    text = "entrypoint: x\nsearcher:\n  name: random\n  metric: loss\n  max_trials: 4\n"
    changed = apply_overrides(load_yaml(text, "c.yaml"), [override, "searcher.max_length.epochs=3"])
    with pytest.raises(ConfigError) as caught:
        validate(changed, complete=False)
    assert str(caught.value).startswith(f"--config: {message}")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("searcher", "'searcher' is not of the form a.b.c=value"),
        ("=3", "'=3' is not of the form a.b.c=value"),
        ("a..b=3", "'a..b=3' is not of the form a.b.c=value"),
        ("n.x=3", "'n.x=3': n is 5, which has no fields to set"),
        ("list.2=3", "'list.2=3': list is a list; its items are 0 to 0, found '2'"),
        ("list.x.y=3", "'list.x.y=3': list is a list; its items are 0 to 0, found 'x'"),
        ("a=[1", "'a=[1': the value is not usable: not YAML"),
        ("a=.nan", "'a=.nan': the value is not usable: infinite"),
    ],
)
def test_overrides_that_make_no_sense(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_overrides({"n": 5, "list": [1]}, [override, "fine=1"])
    assert str(caught.value).startswith(f"--config: {message}")


SECRETS = ("key-id", "s3cret", "hunter2", "tok-1", "conn")


def secretive() -> dict[str, Any]:
    return {
        "entrypoint": "x",
        "searcher": {"name": "single", "metric": "loss"},
        "hyperparameters": {"token": 5, "credential": {"type": "const", "val": 1}},
        "data": {"password": "is the user's own word"},
        "checkpoint_storage": {
            "type": "s3",
            "bucket": "b",
            "access_key": "key-id",
            "secret_key": "s3cret",
        },
        "environment": {"registry_auth": {"username": "u", "password": "hunter2"}},
        "integrations": {"pachyderm": {"dataset": {"token": "tok-1"}}},
    }


def test_secrets_are_masked_when_printed() -> None:
    config = complete(secretive())
    shown = masked(config)
    assert shown["checkpoint_storage"]["secret_key"] == "********"
    assert shown["checkpoint_storage"]["bucket"] == "b"
    assert shown["environment"]["registry_auth"]["password"] == "********"
    assert shown["environment"]["registry_auth"]["identitytoken"] is None
    assert shown["hyperparameters"] == config["hyperparameters"]
    assert shown["data"] == config["data"]
    assert not any(secret in str(shown) for secret in SECRETS)
    assert config["checkpoint_storage"]["secret_key"] == "s3cret"


def test_fields_unknown_to_determineds_client_need_a_request() -> None:
    config = secretive()
    assert "pack_small_files" not in complete(config)["checkpoint_storage"]
    config["checkpoint_storage"]["pack_small_files"] = True
    assert complete(config)["checkpoint_storage"]["pack_small_files"] is True


def test_azure_is_masked() -> None:
    storage = {"type": "azure", "container": "c", "connection_string": "conn"}
    assert masked({"checkpoint_storage": storage})["checkpoint_storage"] == {
        "type": "azure",
        "container": "c",
        "connection_string": "********",
    }


OTHERS_SECRETS = (
    "s3cret",
    "hunter2",
    "tok-1",
    "in-a-variable",
    "for-gpus",
    "in-a-pod",
    "in-data",
    "in-an-address",
    "ghp_" + "a1B2" * 9,
    "on-the-command-line",
)


def others_config() -> dict[str, Any]:
    config = secretive()
    config["environment"] |= {
        "environment_variables": {
            "cpu": ["A=in-a-variable"],
            "cuda": ["B=for-gpus"],
        },
        "pod_spec": {
            "spec": {
                "containers": [
                    {"name": "determined-container", "env": [{"name": "P", "value": "in-a-pod"}]}
                ]
            }
        },
    }
    config["data"] = {
        "db_password": "in-data",
        "url": "postgresql://me:in-an-address@db/x",
        "git": f"https://{OTHERS_SECRETS[8]}@github.com/me/it",
        "sizes": [1, 2],
    }
    config["entrypoint"] = "python3 train.py --api-key on-the-command-line --lr 1"
    return config


def test_others_see_no_secret_and_everything_else() -> None:
    config = complete(others_config())
    shown = masked_for_others(config)
    assert [secret for secret in OTHERS_SECRETS if secret in json.dumps(shown)] == []
    environment = shown["environment"]
    assert environment["environment_variables"]["cpu"] == ["A=********"]
    assert environment["environment_variables"]["cuda"] == ["B=********"]
    (container,) = environment["pod_spec"]["spec"]["containers"]
    assert container["env"] == [{"name": "P", "value": "********"}]
    assert shown["data"] == {
        "db_password": "********",
        "url": "postgresql://me:********@db/x",
        "git": "https://********@github.com/me/it",
        "sizes": [1, 2],
    }
    assert shown["entrypoint"] == "python3 train.py --api-key ******** --lr 1"
    same = ("hyperparameters", "searcher", "resources", "name", "bind_mounts", "log_policies")
    assert {key: shown[key] for key in same} == {key: config[key] for key in same}
    assert all(secret in json.dumps(config) for secret in OTHERS_SECRETS)


def test_the_clusters_own_storage_is_not_a_secret() -> None:
    config = complete(secretive())
    storage = config["checkpoint_storage"]
    assert masked_for_others(config, known=storage)["checkpoint_storage"] == storage
    other = {**storage, "secret_key": "another"}
    shown = masked_for_others(config, known=other)["checkpoint_storage"]
    assert (shown["access_key"], shown["secret_key"]) == ("key-id", "********")


def test_a_masked_configuration_is_refused_by_field() -> None:
    sent = masked_for_others(others_config())
    with pytest.raises(ConfigError) as caught:
        complete(sent)
    refused = {problem.path for problem in caught.value.problems}
    assert {
        "checkpoint_storage.secret_key",
        "environment.registry_auth.password",
        "environment.environment_variables.cpu[0]",
        "integrations.pachyderm.dataset.token",
        "data.db_password",
        "data.url",
        "entrypoint",
    } <= refused
    assert "write the secret itself, or leave the field out" in str(caught.value)
    # A preview runs nothing.
    complete_search(sent)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("https://me:pa:ss@w@host/x", "https://me:********@host/x"),
        ("s3://bucket/a@b and mail me@host", "s3://bucket/a@b and mail me@host"),
        ("ssh://git@host/repo", "ssh://git@host/repo"),
        ("AKIAIOSFODNN7EXAMPLE", "********"),
        ("Authorization: Bearer abcdefghijklmnopqrst", "Authorization: Bearer ********"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl", "********"),
        ("password=hunter2 user=me", "password=******** user=me"),
        ('{"note": "password=hunter2", "x": 1}', '{"note": "password=********", "x": 1}'),
        ("the password is wrong; tokens/s: 512", "the password is wrong; tokens/s: 512"),
        ("max_length 128, num_keys=5", "max_length 128, num_keys=5"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----", "********"),
    ],
)
def test_values_that_look_like_secrets(text: str, found: str) -> None:
    assert masked_text(text) == found


@pytest.mark.parametrize(
    "part",
    ["a", "://", "://a:", "eyJ", "-----BEGIN PRIVATE KEY-----", "secret=", "--a-", "bearer "],
)
def test_long_texts_end(part: str) -> None:
    """A pattern that took the square of the length would take hours: the test's time limit would end it."""
    masked_text(part * (1_000_000 // len(part)))


def test_secrets_are_not_in_the_models_repr_nor_in_errors() -> None:
    typed = validate(complete(secretive()))
    assert not any(secret in repr(typed) + str(typed) for secret in SECRETS)
    broken = secretive()
    broken["checkpoint_storage"]["secret_kye"] = "s3cret"
    broken["checkpoint_storage"]["secret_key"] = ["s3cret"]
    broken["checkpoint_storage"]["prefix"] = 5
    broken["environment"]["registry_auth"] = "u:hunter2"
    broken["environment"]["environment_variables"] = ["hunter2"]
    broken["integrations"]["pachyderm"]["dataset"]["token"] = 12345
    with pytest.raises(ConfigError) as caught:
        complete(broken)
    assert len(caught.value.problems) == 6
    assert not any(secret in str(caught.value) for secret in (*SECRETS, "12345"))


@pytest.mark.parametrize(
    ("entrypoint", "command"),
    [
        (["python3", "train.py", "--a b"], ["python3", "train.py", "--a b"]),
        ("python3 train.py && echo done", ["sh", "-c", "python3 train.py && echo done"]),
        (
            "model_def:MNistTrial",
            [
                "python3",
                "-m",
                "determined.launch.torch_distributed",
                "--trial",
                "model_def:MNistTrial",
            ],
        ),
        (
            "pkg.sub:Trial",
            ["python3", "-m", "determined.launch.torch_distributed", "--trial", "pkg.sub:Trial"],
        ),
        ("echo a:b", ["sh", "-c", "echo a:b"]),
        ("./run:me", ["sh", "-c", "./run:me"]),
    ],
)
def test_entrypoints(entrypoint: str | list[str], command: list[str]) -> None:
    config = complete({**load_yaml(MINIMAL).data, **STORAGE, "entrypoint": entrypoint})
    assert config["entrypoint"] == entrypoint
    assert launch_command(config) == command


def test_no_entrypoint() -> None:
    with pytest.raises(ValueError, match="no entrypoint"):
        launch_command({"entrypoint": None})


def loaded_by(statement: str, modules: set[str]) -> set[str]:
    code = f"import sys\n{statement}\nprint(*({modules!r} & sys.modules.keys()))"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    return set(shown.stdout.split())


def test_importing_is_light() -> None:
    heavy = {
        "prefect",
        "torch",
        "sqlalchemy",
        "fastapi",
        "mlflow",
        "numpy",
        "rich",
        "httpx",
        "pydantic",
    }
    everything = "from determined.expconf import complete, json_schema, validate"
    assert loaded_by(everything, heavy) == {"pydantic"}
    assert loaded_by("from determined.expconf import launch_command", heavy) == set()


def test_every_public_name_exists() -> None:
    for name in expconf.__all__:
        assert getattr(expconf, name).__module__.startswith("determined.expconf.")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        expconf.nothing


def test_typed_access() -> None:
    config = validate(complete(load_yaml(VALID["everything else"])))
    assert config.checkpoint_storage.save_trial_best == 2
    assert config.resources.slots_per_trial == 2
    assert config.environment.environment_variables.rocm == ["B=x=y"]
    assert config.resources.devices[0].container_path == "/dev/b"
    assert config.min_validation_period.unit == "records"
    assert config.searcher.metric == "loss"

"""``prefect.yaml``, read and refused without a server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema

from determined.common.wire.prefect import TASK_FLOWS
from determined_deployments import deploy, plain_entries, prefect_yaml
from determined_deployments.prefect_yaml import PrefectYamlError
from determined_deployments.registered_schedules import build, name_items
from tests.waiting import TIMEOUT_S


def write(folder: Path, text: str) -> Path:
    path = folder / "prefect.yaml"
    path.write_text(text)
    return path


def test_our_own_file_has_no_mistake() -> None:
    entries, mistakes = prefect_yaml.read(deploy.default_prefect_yaml())
    assert {entry.config["name"] for entry in entries} == {
        "experiment",
        "trial",
        "checkpoint-gc",
        "retrain",
        "pipeline",
        *TASK_FLOWS,
    }
    assert mistakes == []


PLAIN: dict[str, Any] = {
    "name": "a",
    "entrypoint": "determined_flows.trial.run_trial",
    "description": "One.",
    "tags": ["x"],
    "work_pool": {"name": "default"},
    "schedules": [],
}


@pytest.mark.parametrize(
    ("entry", "document", "plain"),
    [
        ({}, {}, True),
        ({"description": None, "tags": None}, {"name": "n", "prefect-version": "3.8.8"}, True),
        ({"schedules": [{"cron": "* * * * *"}]}, {}, False),
        ({"schedules": None}, {"build": None, "push": [], "pull": None}, True),
        ({"name": "{{ $NAME }}"}, {}, False),
        ({"tags": ["{{ prefect.variables.x }}"]}, {}, False),
        ({"tags": "x"}, {}, False),
        ({"work_pool": {"name": "default", "job_variables": {}}}, {}, False),
        ({"work_pool": {}}, {}, False),
        ({"entrypoint": "flows.py:plain"}, {}, False),
        ({"entrypoint": "somebodys.flows.nightly"}, {}, False),
        ({"parameters": {}}, {}, False),
        ({"triggers": []}, {}, False),
        ({}, {"pull": []}, False),
        ({}, {"build": [{"step": {}}]}, False),
        ({}, {"name": 3}, False),
    ],
)
def test_only_plain_entries_have_a_fingerprint(
    tmp_path: Path, entry: dict[str, Any], document: dict[str, Any], plain: bool
) -> None:
    path = tmp_path / "prefect.yaml"
    whole = {**document, "deployments": [{**PLAIN, **entry}]}
    (found,) = plain_entries.fingerprints(path, whole)
    assert (found is not None) is plain


def test_a_fingerprint_changes_with_the_file_its_place_the_flows_and_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(path: Path, **changes: Any) -> str | None:
        return plain_entries.fingerprints(path, {"deployments": [{**PLAIN, **changes}]})[0]

    here = tmp_path / "prefect.yaml"
    found = {of(here), of(tmp_path / "other" / "prefect.yaml"), of(here, description="Two.")}
    package = tmp_path / "flows_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plain_entries, "FLOWS", package.name)
    for text in ("x = 1", "x = 2"):
        (package / "trial.py").write_text(text)
        found.add(of(here, entrypoint="flows_of_a_test.trial.run_trial"))
    monkeypatch.setattr(plain_entries.metadata, "version", lambda package: "0")
    found.add(of(here, entrypoint="flows_of_a_test.trial.run_trial"))
    assert len(found) == 6
    assert None not in found


def test_the_parameters_of_our_flows_have_built_in_types() -> None:
    """Else a fingerprint would have to cover more than the source of their package."""
    document = prefect_yaml.load(deploy.default_prefect_yaml())
    for entry in document["deployments"]:
        flow = load_flow_from_entrypoint(entry["entrypoint"])
        assert not parameter_schema(flow).definitions


def test_our_own_file_is_read_without_prefect() -> None:
    code = (
        "import sys; from determined_deployments import deploy, prefect_yaml\n"
        "entries, _ = prefect_yaml.read(deploy.default_prefect_yaml())\n"
        "assert len(entries) == 10 and all(entry.fingerprint for entry in entries)\n"
        "assert 'prefect' not in sys.modules and 'pydantic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=TIMEOUT_S)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n", "must be a mapping with the key deployments"),
        ("a: [", "not valid YAML"),
        ("deployments: {a: b}", "deployments: must be a list"),
        ("pull: 3", "pull: Input should be a valid list"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(PrefectYamlError) as caught:
        prefect_yaml.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)


def test_one_wrong_entry_does_not_hide_the_others(tmp_path: Path) -> None:
    text = """
deployments:
  - {name: a, entrypoint: m.f, work_pool: {name: default}, tags: 3}
  - {name: b, entrypoint: m.f, work_pool: {name: default}}
  - {name: c, entrypoint: m.f}
  - word
"""
    path = write(tmp_path, text)
    entries, mistakes = prefect_yaml.read(path)
    assert [entry.config["name"] for entry in entries] == ["b"]
    assert mistakes == [
        f"{path}: deployment 'a': tags: Input should be a valid string",
        f"{path}: deployment 'c': work_pool.name is missing",
        f"{path}: deployment number 4: the entry: Input should be a valid dictionary or instance of"
        " DeploymentConfig",
    ]


def test_no_pull_and_an_empty_pull_are_told_apart(tmp_path: Path) -> None:
    entry = "deployments: [{name: b, entrypoint: m.f, work_pool: {name: default}}]\n"
    for pull, expected in (("", None), ("pull: null\n", None), ("pull: []\n", [])):
        ((read,), _) = prefect_yaml.read(write(tmp_path, pull + entry))
        assert read.actions["pull"] == expected


def test_equal_schedules_have_different_stable_names() -> None:
    item = {"cron": "* * * * *"}
    names = list(name_items([item, item, {"interval": 5}]))
    assert len(set(names)) == 3
    assert list(name_items([{"interval": 5}, dict(item)])) == [names[2], names[0]]


def test_a_schedule_without_a_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="Unknown schedule type"):
        build({})


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (PrefectYamlError(["f: a: wrong", "f: b: wrong"]), deploy.MISTAKES, "f: b: wrong"),
        (httpx.ConnectError("refused"), deploy.TRY_AGAIN, "refused"),
    ],
)
def test_the_fork_tells_if_another_try_may_help(
    error: Exception,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def register(path: Path | None, work_pool: str) -> None:
        raise error

    monkeypatch.setattr(deploy, "register", register)
    assert deploy.register_in_fork({}) == code
    assert said in caplog.text


@pytest.mark.parametrize(("status", "away"), [(503, True), (401, True), (409, False), (422, False)])
def test_a_refusal_is_a_mistake_and_silence_is_not(status: int, away: bool) -> None:
    request = httpx.Request("POST", "http://prefect/api")
    cause = httpx.HTTPStatusError("no", request=request, response=httpx.Response(status))
    error = RuntimeError("while applying")
    error.__cause__ = cause
    assert (deploy._prefect_is_away(error) is cause) is away

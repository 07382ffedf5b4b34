"""`det preview-search`: its output, the place of the computation, and refusals."""

from __future__ import annotations

import json
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from determined.cli.submission import preview
from tests.unit.cli.conftest import Det
from tests.unit.sdk.fake_service import FakeService

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "tests/fixtures/preview"
NAMES = ("adaptive_asha", "async_halving", "nested_grid", "time_metric")

_COUNT = {"type": "integer", "minimum": 0}
_LENGTH = {"type": ["integer", "null"], "minimum": 1}
_NAMED = {"type": ["string", "null"]}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["searcher", "seed", "form", "trials", "breakdown", "training_times", "rungs"],
    "properties": {
        "searcher": {"type": "object", "required": ["name", "metric"]},
        "seed": _COUNT,
        "form": {"enum": ["operations", "reports"]},
        "trials": _COUNT,
        "breakdown": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["trials", "lengths"],
                "properties": {
                    "trials": {"type": "integer", "minimum": 1},
                    "lengths": {"type": "array", "items": {"type": "integer", "minimum": 1}},
                },
            },
        },
        "training_times": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["trials", "length"],
                "properties": {"trials": _COUNT, "length": _LENGTH},
            },
        },
        "rungs": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["lengths", "trials", "max_concurrent"],
                "properties": {
                    "lengths": {"type": "array", "items": _LENGTH, "minItems": 1},
                    "trials": {"type": "array", "items": _COUNT, "minItems": 1},
                    "max_concurrent": {"type": "integer", "minimum": 1},
                },
            },
        },
        "peak_trials": {"type": "integer", "minimum": 1},
        "total_units": _LENGTH,
        "unit": _NAMED,
    },
}


@pytest.fixture(autouse=True)
def no_cluster(service: FakeService) -> None:
    """No service answers, unless a test starts one."""
    service.away = True


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text((CONFIGS / "adaptive_asha.yaml").read_text())
    return path


@pytest.mark.parametrize("name", NAMES)
def test_printed_output(det: Det, name: str) -> None:
    result = det("preview-search", CONFIGS / f"{name}.yaml")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert result.stdout == (CONFIGS / f"golden/{name}.txt").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_same_as_json(det: Det, service: FakeService, name: str) -> None:
    result = det("preview-search", CONFIGS / f"{name}.yaml", "--json")
    document = json.loads(result.stdout)
    jsonschema.validate(document, SCHEMA)
    trials = document["trials"]
    assert sum(group["trials"] for group in document["breakdown"]) == trials
    assert sum(group["trials"] for group in document["training_times"]) == trials
    assert sum(bracket["trials"][0] for bracket in document["rungs"]) == trials
    assert document["total_units"] == sum(
        group["trials"] * group["lengths"][-1] for group in document["breakdown"]
    )
    assert service.calls == []


def test_trials_that_train_to_completion(det: Det, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("searcher: {name: random, metric: loss, max_trials: 3}\n")
    lines = det("preview-search", path).stdout.splitlines()
    assert lines[-2:] == ["Trials  Training Time", "3       train to completion"]
    assert not any("Breakdown" in line for line in lines)
    document = json.loads(det("preview-search", path, "--json").stdout)
    jsonschema.validate(document, SCHEMA)
    assert (document["total_units"], document["unit"]) == (None, None)


def test_the_seed_decides(det: Det, config: Path) -> None:
    def breakdown(seed: int) -> str:
        document = json.loads(det("preview-search", config, "--json", "--seed", seed).stdout)
        assert document["seed"] == seed
        return str(document["breakdown"])

    default = json.loads(det("preview-search", config, "--json").stdout)
    assert breakdown(0) == breakdown(0) == str(default["breakdown"])
    assert len({breakdown(seed) for seed in range(5)}) > 1
    # The experiment's own seed draws hyperparameters, not the metrics simulated here.
    config.write_text(config.read_text() + "reproducibility: {experiment_seed: 5}\n")
    assert breakdown(0) == str(default["breakdown"])


def test_one_field_is_changed(det: Det, config: Path) -> None:
    override = ("--config", "searcher.max_trials=5")
    document = json.loads(det("preview-search", config, "--json", *override).stdout)
    assert (document["trials"], document["searcher"]["max_trials"]) == (5, 5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: x\n", "Experiment configuration must have 'searcher' section"),
        ("searcher: {name: randm, metric: x}\n", ":1: searcher.name: found 'randm'"),
        ("searcher: {name: random, metric: x}\n", "searcher.max_trials: required"),
        ("searcher: {name: custom, metric: x}\n", "a custom searcher cannot be previewed"),
        (
            "searcher: {name: random, metric: x, max_trials: 1000000}\n",
            "searcher.max_trials: 1000000 trials are too many to preview",
        ),
    ],
)
def test_impossible_previews(det: Det, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    result = det("preview-search", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr
    assert str(path) in result.stderr


def test_no_such_file(det: Det, tmp_path: Path) -> None:
    result = det("preview-search", tmp_path / "none.yaml")
    assert result.exit_code == 1
    assert "none.yaml" in result.stderr


def test_a_client_without_the_searchers_asks_the_service(
    det: Det, service: FakeService, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = json.loads(det("preview-search", config, "--json", "--seed", 3).stdout)
    answer = {k: v for k, v in here.items() if k not in ("searcher", "seed")}
    service.routes.append(
        ("POST", "/api/v1/preview-hp-search", lambda request: {"preview": answer})
    )
    monkeypatch.setattr(preview, "_installed", lambda: None)
    service.away = False
    config.write_text(
        config.read_text() + "checkpoint_storage: {type: s3, bucket: b, secret_key: hush}\n"
    )
    assert json.loads(det("preview-search", config, "--json", "--seed", 3).stdout) == here
    sent = service.bodies[-1]
    assert (sent["seed"], sent["config"]["searcher"]["max_trials"]) == (3, 16)
    assert "hush" not in json.dumps(sent)


def test_and_says_so_when_none_answers(
    det: Det, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview, "_installed", lambda: None)
    result = det("preview-search", config)
    assert result.exit_code == 1
    assert "no answer from the service at http://fake:8080" in result.stderr


def test_a_refusal_by_the_service_is_passed_on(
    det: Det, service: FakeService, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        return httpx.Response(400, json={"error": {"error": "searcher.name: not here"}})

    service.routes.append(("POST", "/api/v1/preview-hp-search", refuse))
    monkeypatch.setattr(preview, "_installed", lambda: None)
    service.away = False
    result = det("preview-search", config)
    assert (result.exit_code, result.stderr) == (1, "error: searcher.name: not here\n")


def test_a_fault_of_ours_is_not_taken_for_the_users(
    det: Det, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(config: object, seed: int) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(preview, "_installed", lambda: broken)
    result = det("preview-search", config)
    assert isinstance(result.exception, ZeroDivisionError)


def test_the_entry_point_is_the_declared_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"][preview.ENTRY_POINTS].items()
    (installed, *_) = metadata.entry_points(group=preview.ENTRY_POINTS)
    assert (installed.name, installed.value) == (name, value)

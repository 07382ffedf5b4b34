"""`det e validate` and `det e schema`: no cluster, every mistake with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Det
from tests.unit.sdk.fake_service import FakeService

GOOD = """\
name: digits
entrypoint: python3 -m train
hyperparameters:
  lr: {type: log, base: 10, minval: -3, maxval: -1}
searcher:
  name: random
  metric: loss
  max_trials: 4
  max_length: {batches: 100}
"""

BROKEN = {
    "a misspelt field": (
        ("  max_trials: 4", "  max_trails: 4"),
        ":8: searcher.max_trails",
        "max_trials",
    ),
    "a misspelt searcher": (("name: random", "name: randm"), ":6: searcher.name", "random"),
    "a missing field": (("  metric: loss\n", ""), "searcher.metric", "required"),
    "a wrong type": (("max_trials: 4", "max_trials: four"), ":8: searcher.max_trials", "four"),
    "out of range": (("max_trials: 4", "max_trials: 0"), ":8: searcher.max_trials", "0"),
    "bounds the wrong way": (("minval: -3", "minval: 0"), ":4: hyperparameters.lr", "maxval"),
    "a key twice": (("name: digits", "name: digits\nname: again"), ":2: name", "duplicate"),
    "a tab": (("  metric", "\tmetric"), ":7:", "tab"),
    "no YAML": (("{batches: 100}", "{batches: 100"), ":", "not YAML"),
    "an unknown section": (("name: digits", "sercher: {}"), ":1: sercher", "searcher"),
}


def broken(tmp_path: Path, name: str) -> Path:
    (old, new), _, _ = BROKEN[name]
    assert old in GOOD
    path = tmp_path / "config.yaml"
    path.write_text(GOOD.replace(old, new, 1))
    return path


def test_a_good_file(det: Det, service: FakeService, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD)
    result = det("e", "validate", path)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{path}: valid\n", "")
    assert service.calls == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file(det: Det, service: FakeService, tmp_path: Path, name: str) -> None:
    _, where, word = BROKEN[name]
    path = broken(tmp_path, name)
    result = det("experiment", "validate", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert str(path) in result.stderr
    assert where in result.stderr
    assert word in result.stderr
    assert "Traceback" not in result.stderr
    assert service.calls == []


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("command", [["e", "create"], ["flow", "run"]])
def test_nothing_broken_is_submitted(
    det: Det, service: FakeService, tmp_path: Path, name: str, command: list[str]
) -> None:
    result = det(*command, broken(tmp_path, name))
    assert (result.exit_code, result.stdout) == (1, "")
    assert BROKEN[name][2] in result.stderr
    assert "Traceback" not in result.stderr
    assert service.calls == []


def test_all_mistakes_at_once_in_all_files(det: Det, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(GOOD)
    bad.write_text(
        GOOD.replace("max_trials: 4", "max_trials: 0").replace("name: digits", "nmae: x")
    )
    result = det("e", "validate", good, bad, tmp_path / "missing.yaml")
    assert result.exit_code == 1
    assert result.stdout == f"{good}: valid\n"
    assert len(result.stderr.splitlines()) == 3
    assert "missing.yaml" in result.stderr


def test_problems_as_json(det: Det, tmp_path: Path) -> None:
    path = broken(tmp_path, "a misspelt field")
    result = det("e", "validate", "--json", path)
    assert result.exit_code == 1
    (report,) = json.loads(result.stdout)
    assert report["file"] == str(path)
    assert {"path": "searcher.max_trails", "line": 8, "suggestion": "max_trials"}.items() <= (
        report["problems"][0].items()
    )


def test_overrides(det: Det, tmp_path: Path) -> None:
    path = broken(tmp_path, "out of range")
    assert det("e", "validate", path, "--config", "searcher.max_trials=3").exit_code == 0
    result = det("e", "validate", path, "--config", "nonsense")
    assert result.exit_code == 1
    assert "a.b.c=value" in result.stderr


def test_the_schema_is_json(det: Det) -> None:
    result = det("e", "schema")
    assert result.exit_code == 0
    schema = json.loads(result.stdout)
    assert "searcher" in schema["properties"]


def test_ignored_fields_and_probable_mistakes(
    det: Det, service: FakeService, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    text = GOOD.replace("minval: -3, maxval: -1", "minval: 0.001, maxval: 0.1")
    path.write_text(text + "retention_policy: {log_retention_days: 3}\n")
    result = det("e", "validate", path)
    assert (result.exit_code, result.stdout) == (0, f"{path}: valid\n")
    where, exponents = result.stderr.splitlines()
    assert where.startswith(f"{path}: warning: retention_policy is stored but ignored: ")
    assert exponents.endswith("for values from 0.001 to 0.1 write minval: -3, maxval: -1")
    (report,) = json.loads(det("e", "validate", path, "--json").stdout)
    assert [len(report[key]) for key in ("problems", "remarks")] == [0, 2]
    assert service.calls == []

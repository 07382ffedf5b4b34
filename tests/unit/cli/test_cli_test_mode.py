"""`--test-mode` and `--paused`"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from determined.cli.errors import CliError
from determined.cli.submission import test_mode
from determined.experimental._submission import read_config
from tests.unit.cli.conftest import Det
from tests.unit.cli.test_cli_validate import GOOD
from tests.unit.sdk.fake_service import CONFIG, FakeService, experiment, log_line, trial


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_mode, "_INTERVAL_S", 0.0)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def submitted(service: FakeService) -> list[dict[str, Any]]:
    """The configurations that were submitted; each makes the next experiment, which is ACTIVE."""
    numbers = itertools.count(1)
    configs: list[dict[str, Any]] = []

    def create(request: httpx.Request) -> Any:
        import yaml

        number = next(numbers)
        configs.append(yaml.safe_load(json.loads(request.content)["config"]))
        made = service.experiments.get(number, experiment(number, "ACTIVE"))
        made = made[0] if isinstance(made, list) else made
        return {"experiment": made, "config": CONFIG}

    service.routes.insert(0, ("POST", r"/api/v1/experiments", create))
    return configs


def actions(service: FakeService) -> list[str]:
    return [path.removeprefix("/api/v1/experiments/") for method, path in service.calls
            if method == "POST" and path.startswith("/api/v1/experiments/")]  # fmt: skip


@pytest.mark.parametrize("command", [["e", "create"], ["flow", "run", "-d"]])
def test_the_tiny_one_first(
    det: Det,
    service: FakeService,
    config: Path,
    submitted: list[dict[str, Any]],
    command: list[str],
) -> None:
    service.experiments[1] = [experiment(1, "ACTIVE"), experiment(1, "COMPLETED")]
    service.trials[1] = [trial(3, "COMPLETED", 0.5)]
    result = det(*command, config, "--test-mode")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.split()[-1] == "2"
    assert "test: passed" in result.stderr
    first, second = submitted
    assert (first["searcher"]["name"], first["max_restarts"]) == ("single", 0)
    assert first["searcher"]["metric"] == second["searcher"]["metric"]
    assert first["name"].startswith("test of ")
    assert second["searcher"]["name"] != "single"
    assert actions(service) == ["1/archive"]


def test_it_fails(
    det: Det, service: FakeService, config: Path, submitted: list[dict[str, Any]]
) -> None:
    service.experiments[1] = experiment(1, "ERROR", reason="all trials failed")
    service.trials[1] = [trial(3, "ERROR", reason="process exited with code 3")]
    service.logs[3] = [log_line(1, "no luck")]
    result = det("e", "create", config, "-t")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing else was submitted: process exited with code 3" in result.stderr
    assert "[1] no luck" in result.stderr
    assert len(submitted) == 1
    assert actions(service) == ["1/archive"]


def test_a_cancelled_test(
    det: Det, service: FakeService, config: Path, submitted: list[dict[str, Any]]
) -> None:
    service.experiments[1] = experiment(1, "CANCELED", reason="canceled by the user")
    result = det("e", "create", config, "--test")
    assert result.exit_code == 1
    assert "canceled by the user" in result.stderr
    assert len(submitted) == 1


def test_a_length_in_the_code_ends_with_the_first_validation(
    det: Det, service: FakeService, tmp_path: Path, submitted: list[dict[str, Any]]
) -> None:
    path = tmp_path / "reports.yaml"
    path.write_text(
        "name: r\nentrypoint: x\nhyperparameters: {}\nsearcher: {name: single, metric: m}\n"
    )
    active, ended = experiment(1, "ACTIVE"), experiment(1, "CANCELED", reason="canceled")
    service.experiments[1] = [active, active, active, ended]
    validated = trial(3, "RUNNING", latestValidation={"totalBatches": 1})
    service.trials[1] = [[trial(3)], [validated], [trial(3, "CANCELED")]]
    result = det("e", "create", path, "-t")
    assert result.exit_code == 0, result.stderr
    assert actions(service) == ["1/cancel", "1/archive"]
    assert "max_length" not in submitted[0]["searcher"]


def test_the_tiny_configuration() -> None:
    config = read_config(
        {
            **CONFIG,
            "max_restarts": 5,
            "checkpoint_storage": {"type": "shared_fs", "host_path": "/x"},
        }
    )
    found = test_mode.tiny(config).document.data
    assert found["searcher"] == {
        "name": "single",
        "metric": "accuracy",
        "smaller_is_better": False,
        "max_length": {"batches": 1},
    }
    assert found["checkpoint_storage"]["save_trial_latest"] == 0
    assert found["hyperparameters"] == CONFIG["hyperparameters"]
    # The input is not changed.
    assert config.document.data["max_restarts"] == 5
    with pytest.raises(CliError, match="searcher"):
        test_mode.tiny(read_config({"name": "x"}))


@pytest.mark.parametrize(
    ("time_metric", "length"),
    [("epochs", {"batches": 1}), ("batches", {"batches": 1}), ("hours", 1)],
)
def test_a_search_by_reports_becomes_one_with_a_length(time_metric: str, length: Any) -> None:
    searcher = {"name": "adaptive_asha", "metric": "m", "max_trials": 4}
    searcher |= {"time_metric": time_metric, "max_time": 9}
    found = test_mode.tiny(read_config({**CONFIG, "searcher": searcher})).document.data
    assert found["searcher"] == {"name": "single", "metric": "m", "max_length": length}


def test_paused(
    det: Det, service: FakeService, config: Path, submitted: list[dict[str, Any]]
) -> None:
    result = det("flow", "run", config, "--paused")
    assert (result.exit_code, result.stdout) == (0, "1\n")
    assert "det e activate 1" in result.stderr
    assert service.bodies[-1]["activate"] is False


@pytest.mark.parametrize(
    "args", [["--paused", "-t"], ["-f", "-t"], ["--paused", "-f"], ["-f", "-t", "--paused"]]
)
def test_they_exclude_each_other(
    det: Det, service: FakeService, config: Path, args: list[str]
) -> None:
    assert det("e", "create", config, *args).exit_code == 2
    assert service.calls == []


@pytest.mark.parametrize(
    ("entrypoint", "heeds"),
    [("python3 train.py", False), ("model_def:Trial", True), (None, True)],
)
def test_periods_are_for_trial_classes(entrypoint: str | None, heeds: bool) -> None:
    """Otherwise the user would get warnings about fields that the file does not have."""
    config: dict[str, Any] = {"name": "x", "searcher": {"name": "single", "metric": "loss"}}
    if entrypoint is not None:
        config["entrypoint"] = entrypoint
    data = test_mode.tiny(read_config(config)).document.data
    fields = ("scheduling_unit", "min_validation_period", "min_checkpoint_period")
    assert [name in data for name in fields] == 3 * [heeds]

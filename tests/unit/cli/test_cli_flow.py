"""`det flow run`: submit, follow, come back."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from determined.cli.following import follow, live
from determined.cli.following.live import Panel, age, remaining
from determined.cli.following.tracker import Tracker
from determined.cli.submission import bring_up
from tests.unit.cli.conftest import Det
from tests.unit.cli.test_cli_validate import GOOD
from tests.unit.sdk.fake_service import URL, FakeService, checkpoint, experiment, log_line, trial


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_INTERVAL_S", 0.0)
    monkeypatch.setattr(follow, "_PAUSES", 0.0)


def search(service: FakeService, end: str = "COMPLETED", **more: Any) -> None:
    """A search of two trials, as it looks from one question to the next."""
    best = {"bestCheckpoint": {"uuid": "u-2", "totalBatches": 8}, "wallClockTime": 1.5}
    service.experiments[1] = [
        experiment(state="ACTIVE"),  # the submission's answer
        experiment(state="QUEUED"),
        experiment(state="RUNNING", progress=0.5),
        experiment(state="RUNNING", progress=0.9),
        experiment(state=end, progress=1.0, bestTrialId=2, **more),
    ]
    service.trials[1] = [
        [],
        [trial(1), trial(2, "QUEUED")],
        [trial(1, "COMPLETED", 0.5), trial(2, "RUNNING", 0.4)],
        [trial(2, "COMPLETED", 0.75, **best)],
    ]


def test_a_search_is_followed_to_its_end(
    det: Det, service: FakeService, config: Path, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("")
    search(service)
    service.trials[1][3] = [trial(1, "COMPLETED", 0.5), *service.trials[1][3]]
    result = det("flow", "run", config, code)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1:] == [
        "best trial: 2",
        "accuracy: 0.75",
        "hyperparameters: lr=0.2",
        "checkpoint: u-2",
    ]
    assert "experiment 1 COMPLETED after" in result.stdout
    # Not a terminal: no line for each trial and each validation.
    assert result.stderr.splitlines() == [
        "submitted experiment 1 (digits)",
        "get the best checkpoint: det checkpoint download u-2",
        "look at it: det open 1, or http://fake:8080/det/experiments/1",
    ]


def test_off_a_terminal_failures_come_at_once_and_the_rest_in_a_line_a_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now, tracker = [0.0], Tracker()
    with live.Lines(lambda: now[0]) as lines:
        for passed, trials in [
            (1.0, [trial(1, metric=0.5)]),
            (59.0, [trial(1, metric=0.75)]),
            (61.0, [trial(1, metric=0.875)]),
            (62.0, [trial(1, "COMPLETED", 0.875), trial(2, "ERROR", reason="no luck")]),
            (100.0, [trial(2, "ERROR"), trial(3)]),
            (121.5, [trial(3)]),
        ]:
            now[0] = passed
            lines.show(tracker, tracker.update(experiment(progress=0.5), trials))
    assert capsys.readouterr().err.splitlines() == [
        "[   61.0s] 50% done; 1 running; best accuracy 0.875, trial 1  (lr=0.1)",
        "[   62.0s] trial 2 failed after 0.0s: no luck",
        "[  121.5s] 50% done; 1 completed, 1 error, 1 running; best accuracy 0.875, trial 1  (lr=0.1)",
    ]


def test_the_result_as_json(det: Det, service: FakeService, config: Path) -> None:
    search(service)
    validation = {"bestValidation": {"totalBatches": 7}}
    service.trials[1] = [[trial(2, "COMPLETED", 0.75, latestCheckpoint="u-9", **validation)]]
    result = det("f", "run", config, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["experiment"]["state"] == "COMPLETED"
    assert document["best"] == {
        "trial": 2,
        "metric": "accuracy",
        "value": 0.75,
        "steps": 7,
        "hparams": {"lr": 0.2},
        "checkpoint": "u-9",
        "checkpoint_steps": None,
    }
    assert document["best_checkpoint"] is None


@pytest.mark.parametrize(
    ("value", "why"), [(0.7, "the best step that has one"), (0.75, "as good, and there first")]
)
def test_the_best_checkpoint_may_be_of_another_trial(
    det: Det, service: FakeService, config: Path, value: float, why: str
) -> None:
    """The best trial by its best validation, the best checkpoint by the step that it is of."""
    search(service)
    steps = {
        "bestValidation": {"totalBatches": 7},
        "bestCheckpoint": {"uuid": "u-2", "totalBatches": 7},
    }
    service.trials[1] = [[trial(1, "COMPLETED", value), trial(2, "COMPLETED", 0.75, **steps)]]
    service.checkpoints = [checkpoint("u-2", 2, 0.6), checkpoint("u-1", 1, value)]
    result = det("flow", "run", config)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1:] == [
        "best trial: 2",
        "accuracy: 0.75",
        "hyperparameters: lr=0.2",
        "checkpoint: u-2",
        f"best checkpoint: u-1 (trial 1, accuracy {value} after 10 steps: {why})",
    ]
    assert "get the best checkpoint: det checkpoint download u-1" in result.stderr
    search(service)
    document = json.loads(det("flow", "run", config, "--json").stdout)
    assert document["best_checkpoint"] == {"uuid": "u-1", "trial": 1, "steps": 10, "value": value}


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"bestCheckpoint": {"uuid": "u-9", "totalBatches": 7}}, "u-9"),
        (
            {"bestCheckpoint": {"uuid": "u-9", "totalBatches": 8}},
            "u-9 (after 8 steps; the step of the best validation, 7, has no checkpoint)",
        ),
        ({"latestCheckpoint": "u-9"}, "u-9 (the latest; no validated step has a checkpoint)"),
        ({}, "none"),
    ],
)
def test_the_checkpoint_may_be_of_another_step(
    det: Det, service: FakeService, config: Path, more: dict[str, Any], line: str
) -> None:
    search(service)
    best = {"bestValidation": {"totalBatches": 7}, **more}
    service.trials[1] = [[trial(2, "COMPLETED", 0.75, **best)]]
    result = det("flow", "run", config)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"checkpoint: {line}"


def test_a_failure_shows_the_trials_last_words(
    det: Det, service: FakeService, config: Path
) -> None:
    search(service, "ERROR", reason="trial 1 failed")
    why = "process exited with code 3"
    service.trials[1] = [[trial(1, "ERROR", restarts=0, reason=why)]]
    service.logs[1] = [log_line(i, f"line {i}") for i in range(1, 31)]
    result = det("flow", "run", config)
    assert result.exit_code == 1
    assert f"trial 1 failed: {why}" in result.stderr
    assert "  [30] line 30" in result.stderr
    assert "[10] line 10" not in result.stderr
    assert "det t logs 1" in result.stderr
    assert "reason: trial 1 failed" in result.stdout


def test_a_search_without_its_metric_says_so(det: Det, service: FakeService, config: Path) -> None:
    reason = "the search is complete; but no trial ever reported 'accuracy'; they reported acc"
    search(service, reason=reason)
    why = "the training code ended before the searcher's target"
    service.trials[1] = [[trial(1, "COMPLETED", reason=why, hparams={})]]
    result = det("flow", "run", config)
    assert result.exit_code == 0, result.output
    assert "best trial: none; no trial reported a number as validation metric 'accuracy'" in (
        result.stdout
    )
    assert f"reason: {reason}\n" in result.stdout


def test_canceled_is_not_completed(det: Det, service: FakeService, config: Path) -> None:
    search(service, "CANCELED")
    service.trials[1] = [[trial(1, "CANCELED")]]
    result = det("flow", "run", config)
    assert result.exit_code == 1
    assert "CANCELED" in result.stdout


def test_detach(det: Det, service: FakeService, config: Path) -> None:
    result = det("flow", "run", config, "-d", "--name", "1e3")
    assert (result.exit_code, result.stdout) == (0, "1\n")
    assert "det e wait 1" in result.stderr
    assert json.loads(service.bodies[-1]["config"])["name"] == "1e3"


def test_ctrl_c_detaches_and_says_how_to_come_back(
    det: Det, service: FakeService, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search(service)

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(live.Lines, "show", interrupted)
    result = det("flow", "run", config)
    assert result.exit_code == 130
    for hint in ("det e wait 1", "det e logs -f 1", "det e kill 1"):
        assert hint in result.stderr
    assert service.called("POST", "/api/v1/experiments/1/kill") == 0


def test_a_dry_run_shows_and_sends_nothing(
    det: Det, service: FakeService, config: Path, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("12345")
    config.write_text(GOOD.replace("name: digits\n", ""))
    result = det("flow", "run", config, code, "--dry-run", "--config", "max_restarts=2")
    assert result.exit_code == 0, result.output
    shown = yaml.safe_load(result.stdout)
    assert (shown["max_restarts"], shown["searcher"]["max_concurrent_trials"]) == (2, 16)
    assert "name" not in shown
    assert "checkpoint_storage" not in shown
    assert "train.py  5 B" in result.stderr
    assert "name, reproducibility.experiment_seed, checkpoint_storage" in result.stderr
    assert [body["validateOnly"] for body in service.bodies if body and "config" in body] == [True]
    document = json.loads(det("flow", "run", config, code, "--dry-run", "--json").stdout)
    assert document["files"] == [{"path": "train.py", "size": 5}]


def test_secrets_are_not_shown(det: Det, config: Path) -> None:
    config.write_text(
        GOOD + "checkpoint_storage: {type: s3, bucket: b, access_key: AKIA, secret_key: hush}\n"
    )
    result = det("flow", "run", config, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "hush" not in result.output
    assert yaml.safe_load(result.stdout)["checkpoint_storage"]["secret_key"] == "********"


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch, service: FakeService) -> list[str]:
    """Starting a local cluster makes the fake service answer."""
    started: list[str] = []

    def start() -> int:
        started.append("up")
        service.away = False
        return 0

    monkeypatch.setattr(bring_up, "start_local_cluster", start)
    return started


def test_a_cluster_is_started_when_none_answers(
    det: Det,
    service: FakeService,
    config: Path,
    starts: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DET_MASTER")
    service.away = True
    result = det("flow", "run", config, "-d")
    assert (result.exit_code, starts) == (0, ["up"]), result.output
    assert det("flow", "run", config, "-d").exit_code == 0
    assert starts == ["up"]


def test_a_cluster_starts_although_another_users_has_its_port(
    det: Det,
    service: FakeService,
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DET_MASTER")
    record = {
        "cluster_id": "mine",
        "cluster_name": "determined",
        "master_url": URL,
        "prefect_url": "http://p",
        "passwords": {"determined": "secret"},
        "prefect_auth": None,
    }
    (tmp_path / "data").mkdir()
    (tmp_path / "data/cluster.json").write_text(json.dumps(record))
    started: list[str] = []

    def start() -> int:
        started.append("up")
        service.cluster_id = "mine"
        return 0

    monkeypatch.setattr(bring_up, "start_local_cluster", start)
    assert det("flow", "run", config, "-d").exit_code == 0
    assert det("flow", "run", config, "-d").exit_code == 0
    assert started == ["up"]


def test_a_cluster_starts_beside_one_that_does_not_know_the_user(
    det: Det, config: Path, starts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DET_MASTER")
    assert det("flow", "run", config, "-d").exit_code == 0
    assert starts == []
    monkeypatch.delenv("DET_PASS")
    monkeypatch.setenv("DET_USER", "ann")
    result = det("flow", "run", config, "-d")
    assert starts == ["up"]
    assert "not logged in to the cluster at http://localhost:8080" in result.stderr


def test_no_cluster_is_started_beside_the_one_that_was_named(
    det: Det, service: FakeService, config: Path, starts: list[str]
) -> None:
    service.away = True
    result = det("flow", "run", config, "-d")
    assert (result.exit_code, starts) == (1, [])
    assert "no answer from the service at http://fake:8080" in result.stderr


def test_a_cluster_that_does_not_start(
    det: Det,
    service: FakeService,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DET_MASTER")
    monkeypatch.setattr(bring_up, "start_local_cluster", lambda: 7)
    service.away = True
    result = det("flow", "run", config)
    assert result.exit_code == 1
    assert "did not start (exit code 7)" in result.stderr
    assert "det deploy local logs" in result.stderr


def test_trials_that_have_ended_are_not_asked_for_again() -> None:
    tracker = Tracker()
    tracker.update(experiment(), [trial(1, "COMPLETED"), trial(2), trial(3, "COMPLETED")])
    assert tracker.offset == 1
    tracker.update(experiment(), [trial(2, "ERROR"), trial(3, "COMPLETED"), trial(4)])
    assert tracker.offset == 3
    assert tracker.counts() == {"COMPLETED": 2, "ERROR": 1, "RUNNING": 1}


def test_changes_that_get_a_line() -> None:
    tracker = Tracker()
    assert tracker.update(experiment(state="QUEUED"), []) == []
    assert tracker.update(experiment(), [trial(1, "QUEUED")]) == []
    assert tracker.update(experiment(), [trial(1)]) == ["trial 1 started: lr=0.1"]
    assert tracker.update(experiment(state="PAUSED"), [trial(1, "PAUSED")]) == [
        "experiment 1 paused",
        "trial 1 paused",
    ]
    failed = trial(1, restarts=1, reason="killed by signal 9")
    assert tracker.update(experiment(), [failed]) == [
        "experiment 1 running",
        "trial 1 failed and is started again (restart 1): killed by signal 9",
    ]
    assert tracker.update(experiment(), [failed]) == []
    assert tracker.update(experiment(), [trial(1, "QUEUED", restarts=1, runCount=2)]) == []
    assert tracker.update(experiment(), [trial(1, restarts=1, runCount=3)]) == [
        "trial 1 continues (run 3)"
    ]
    (ended,) = tracker.update(
        experiment(), [trial(1, "ERROR", restarts=2, reason="no luck", wallClockTime=2.5)]
    )
    assert ended == "trial 1 failed after 2.5s: no luck"


def test_smaller_may_be_better() -> None:
    tracker = Tracker()
    shown = experiment()
    shown["config"]["searcher"]["smaller_is_better"] = True
    tracker.update(shown, [trial(1, metric=0.5), trial(2, metric=0.7), trial(3, metric=0.2)])
    assert tracker.best is not None
    assert tracker.best["id"] == 3


def test_time_left() -> None:
    assert remaining(0.25, 30.0) == 90.0
    assert remaining(None, 30.0) is None
    assert remaining(0.01, 30.0) is None
    assert remaining(1.0, 30.0) == 0.0


def test_time_is_counted_from_the_experiments_start() -> None:
    start = datetime.now(UTC) - timedelta(seconds=90)
    assert 90 <= age(start.isoformat(), 1.0) < 100
    ahead = datetime.now(UTC) + timedelta(hours=1)
    assert age(ahead.isoformat(), 1.0) == 1.0
    assert age(None, 2.0) == 2.0


def test_the_panel_draws_everything() -> None:
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    tracker = Tracker()
    events = tracker.update(
        experiment(progress=0.5), [trial(1, "COMPLETED", 0.75), trial(2, "QUEUED")]
    )
    with Panel(console) as panel:
        panel.show(tracker, events)
    shown = out.getvalue()
    for text in (
        "experiment 1 digits  RUNNING",
        "50%",
        "1 completed, 1 queued",
        "accuracy 0.75, trial 1  (lr=0.1)",
        "trial 1: accuracy 0.75, the best so far",
        "Ctrl-C detaches",
    ):
        assert text in shown, text

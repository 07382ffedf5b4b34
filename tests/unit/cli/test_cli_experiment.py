"""`det experiment …` against a service in memory."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from determined.cli.following import first_trial
from tests.unit.cli.conftest import Det
from tests.unit.cli.test_cli_validate import GOOD
from tests.unit.sdk.fake_service import (
    CONFIG,
    FakeService,
    Refused,
    checkpoint,
    experiment,
    log_line,
    trial,
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD)
    return path


def test_create(det: Det, service: FakeService, config: Path, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print()")
    (tmp_path / "extra.txt").write_text("x")
    service.warnings = ["LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"]
    service.remarks = ["resources.priority (7) is stored but ignored"]
    args = [config, code, "-i", tmp_path / "extra.txt", "--paused", "--project_id", 2]
    result = det("e", "create", *args)
    assert (result.exit_code, result.stdout) == (0, "Created experiment 1\n")
    # A sentence replaces the name of the warning.
    assert "slots exceeded" not in result.stderr
    assert "warning: resources.priority (7) is stored but ignored\n" in result.stderr
    body = service.bodies[-1]
    assert body["config"] == GOOD
    assert [f["path"] for f in body["modelDefinition"]] == ["extra.txt", "train.py"]
    assert (body["activate"], body["projectId"]) == (False, 2)


def test_create_with_overrides(det: Det, service: FakeService, config: Path) -> None:
    result = det("e", "create", config, "--config", "searcher.max_trials=9", "--config", "name=x")
    assert result.exit_code == 0, result.stderr
    sent = json.loads(service.bodies[-1]["config"])
    assert (sent["searcher"]["max_trials"], sent["name"]) == (9, "x")


def single(state: str, **more: Any) -> Any:
    made = experiment(state=state, **more)
    made["config"]["searcher"]["name"] = "single"
    return made


@pytest.mark.parametrize(
    ("experiments", "trial_state", "code", "said"),
    [
        # The only trial has ended, its experiment not yet.
        ([single("ACTIVE"), single("ACTIVE"), single("COMPLETED")], "COMPLETED", 0, ""),
        (
            [single("ACTIVE"), single("ERROR", reason="trial 3 failed")],
            "ERROR",
            1,
            "experiment 1 ended ERROR: trial 3 failed",
        ),
        ([single("CANCELED")], "CANCELED", 1, "experiment 1 ended CANCELED"),
        (
            [experiment(state="ACTIVE")],
            "COMPLETED",
            0,
            "trial 3 is COMPLETED; the search goes on: det e wait 1",
        ),
        ([experiment(state="ACTIVE")], "ERROR", 1, "trial 3 ended ERROR"),
        ([experiment(state="COMPLETED")], "COMPLETED", 0, ""),
    ],
)
@pytest.mark.parametrize("command", ["create", "continue"])
def test_follow_the_first_trial(
    det: Det,
    service: FakeService,
    config: Path,
    command: str,
    experiments: list[Any],
    trial_state: str,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_trial, "_INTERVAL_S", 0)
    service.experiments[1] = list(experiments)
    service.trials[1] = [trial(3, trial_state)]
    service.logs[3] = [log_line(1, "hello")]
    result = det("e", command, *([config] if command == "create" else [1]), "-f")
    assert result.stdout.endswith("experiment 1\n[1] hello\n")
    assert result.exit_code == code, result.stderr
    assert said in result.stderr


def test_follow_an_experiment_without_a_trial(det: Det, service: FakeService, config: Path) -> None:
    service.experiments[1] = single("ERROR")
    result = det("e", "create", config, "-f")
    assert (result.exit_code, result.exception.__class__) == (1, SystemExit)
    assert "error: experiment 1 ended ERROR without a trial" in result.stderr


def test_a_missing_model_directory_is_one_line(det: Det, config: Path) -> None:
    result = det("e", "create", config, "nowhere")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: nowhere: no such file or directory\n"


@pytest.mark.parametrize(
    "command",
    [
        ("e", "create", "{config}", "{model}"),
        ("flow", "run", "{config}", "{model}"),
        ("cmd", "run", "--context", "{model}", "ls"),
        ("run", "--here", "--", "ls"),
    ],
)
def test_a_name_that_is_not_utf_8_is_one_line(
    det: Det,
    config: Path,
    tmp_path: Path,
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    monkeypatch.chdir(model)
    (model / os.fsdecode(b"gr\xfc.txt")).touch()
    words = [word.format(config=config, model=model) for word in command]
    named = (
        f"error: {model}/gr\\xfc.txt: its name is not UTF-8; rename it or put it into .detignore"
    )
    assert det(*words).stderr.startswith(named)
    (model / ".detignore").write_bytes(b"caf\xe9/\n")
    assert det(*words).stderr.startswith(f"error: {model}/.detignore: line 1 is not UTF-8;")


def test_a_refusal_is_one_line(det: Det, service: FakeService, config: Path) -> None:
    service.refusal = Refused(400, "there is no resource pool 'x'")
    result = det("e", "create", config)
    assert (result.exit_code, result.stderr) == (1, "error: there is no resource pool 'x'\n")


@pytest.mark.parametrize("how", ["option", "variable"])
def test_verbose_shows_where_it_comes_from(
    det: Det, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "variable":
        monkeypatch.setenv("DET_DEBUG", "1")
    result = det(*(["-v"] if how == "option" else []), "e", "describe", 9)
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("error: experiment 9 does not exist\n")


def test_a_fault_of_ours_keeps_its_traceback(det: Det, service: FakeService) -> None:
    service.experiments[1] = {"id": 1}
    result = det("e", "config", 1)
    assert isinstance(result.exception, KeyError)


def test_nothing_answers(det: Det, service: FakeService) -> None:
    service.away = True
    result = det("-m", "fake:1", "master", "info")
    assert result.exit_code == 1
    assert "no answer from the service at http://fake:1" in result.stderr
    assert "det deploy local cluster-up" in result.stderr


def test_list(det: Det, service: FakeService) -> None:
    service.experiments = {i: experiment(i) for i in (1, 2)}
    table = det("e", "list")
    assert table.exit_code == 0
    header, first, _ = table.stdout.splitlines()
    assert header.split()[:3] == ["ID", "Owner", "Name"]
    assert first.split()[:5] == ["1", "determined", "digits", "RUNNING", "50.00%"]
    assert "2026-01-02 03:04:05+0000" in first
    asked = service.params[-1]
    assert (asked["archived"], asked["users"]) == ("false", "determined")

    rows = list(csv.DictReader(io.StringIO(det("e", "list", "--csv", "--all").stdout)))
    assert [(row["ID"], row["State"], row["Archived"]) for row in rows] == [
        ("1", "RUNNING", "False"),
        ("2", "RUNNING", "False"),
    ]
    assert "users" not in service.params[-1]
    assert json.loads(det("e", "list", "--json").stdout) == list(service.experiments.values())
    assert det("e", "list", "--json", "--csv").exit_code == 2


def test_pages(det: Det, service: FakeService) -> None:
    service.experiments = {i: experiment(i) for i in range(1, 8)}
    everything = json.loads(det("e", "ls", "--limit", 3, "--offset", 1, "--json").stdout)
    assert [e["id"] for e in everything] == [2, 3, 4, 5, 6, 7]
    one = json.loads(det("e", "ls", "--limit", 3, "--pages", "1", "--json").stdout)
    assert [e["id"] for e in one] == [1, 2, 3]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--limit 3", "7 experiments"),
        ("--limit 3 --pages 1", "3 of 7 experiments (--pages and --offset choose which)"),
        ("--offset 5", "2 of 7 experiments (--pages and --offset choose which)"),
        ("--json", ""),
        ("--csv", ""),
    ],
)
def test_a_list_ends_with_how_many_there_are(
    det: Det, service: FakeService, options: str, said: str
) -> None:
    service.experiments = {i: experiment(i) for i in range(1, 8)}
    assert det("e", "ls", *options.split()).stderr == (f"{said}\n" if said else "")


def test_one_of_a_kind_is_counted_too(det: Det, service: FakeService) -> None:
    service.trials[1] = [trial(1)]
    assert det("e", "list-trials", 1).stderr == "1 trial\n"


def test_the_help_says_that_a_limit_is_a_pages_size(det: Det) -> None:
    shown = " ".join(det("e", "list", "--help").stdout.split())
    assert "items per page, as in Determined: all pages are fetched, unless --pages 1" in shown


def test_describe(det: Det, service: FakeService, tmp_path: Path) -> None:
    service.experiments = {i: experiment(i, reason="because") for i in (1, 2)}
    service.trials[1] = [trial(3, "COMPLETED", 0.9)]
    service.workloads[3] = [
        {"validation": {"totalBatches": 5, "metrics": {"avgMetrics": {"accuracy": 0.9}}}},
        {"checkpoint": {"totalBatches": 5, "uuid": "u-1", "state": "STATE_COMPLETED"}},
    ]
    table = det("e", "describe", "1,2")
    assert table.exit_code == 0, table.stderr
    assert table.stdout.startswith("Experiments\n")
    assert "because" in table.stdout
    documents = json.loads(det("e", "describe", "1,2", "--json", "--metrics").stdout)
    assert [d["id"] for d in documents] == [1, 2]
    assert [w["kind"] for w in documents[0]["trials"][0]["workloads"]] == [
        "validation",
        "checkpoint",
    ]
    out = tmp_path / "out"
    det("e", "describe", "1", "--metrics", "--outdir", out)
    assert sorted(p.name for p in out.iterdir()) == [
        "experiments.csv",
        "trials.csv",
        "workloads.csv",
    ]
    rows = list(csv.DictReader((out / "workloads.csv").open()))
    assert [(r["Trial ID"], r["Kind"]) for r in rows] == [("3", "validation"), ("3", "checkpoint")]
    assert det("e", "describe", "one").exit_code == 2


def test_config_is_yaml(det: Det, service: FakeService) -> None:
    service.experiments[1] = experiment()
    assert yaml.safe_load(det("e", "config", 1).stdout) == CONFIG


def test_trials_and_checkpoints(det: Det, service: FakeService) -> None:
    service.experiments[1] = experiment()
    service.trials[1] = [trial(3, "COMPLETED", 0.91234567)]
    service.checkpoints = [
        checkpoint("low", 3, 0.1),
        checkpoint("high", 3, 0.9),
        checkpoint("none", 3, None),
    ]
    (row,) = csv.DictReader(io.StringIO(det("e", "lt", 1, "--csv").stdout))
    assert (row["Trial ID"], row["State"], row["Metric"]) == ("3", "COMPLETED", "0.91234567")
    assert row["H-Params"] == '{"lr":0.3}'
    listed = json.loads(det("e", "list-checkpoints", 1, "--json").stdout)
    assert [c["uuid"] for c in listed] == ["high", "low", "none"]
    assert service.params[-1]["orderBy"] == "ORDER_BY_DESC"
    best = json.loads(det("e", "lc", 1, "--best", 3, "--json").stdout)
    assert [c["uuid"] for c in best] == ["high", "low"]
    files = {"resources": {"state.pt": "2048"}}
    service.checkpoints = [
        {**checkpoint("kept", 3, 0.9), **files},
        {**checkpoint("gone", 3, 0.1), **files, "state": "STATE_DELETED"},
    ]
    sizes = {
        row["UUID"]: row["Size"]
        for row in csv.DictReader(io.StringIO(det("e", "lc", 1, "--csv").stdout))
    }
    assert sizes == {"kept": "2.0 KiB", "gone": "0 B"}


def test_logs(det: Det, service: FakeService) -> None:
    service.experiments[1] = experiment()
    service.trials[1] = [trial(3), trial(4)]
    service.logs[3] = [log_line(i, f"line {i}") for i in (1, 2, 3)]
    result = det("e", "logs", 1)
    assert result.stdout == "[1] line 1\n[2] line 2\n[3] line 3\n"
    assert "logs of trial 3" in result.stderr
    assert det("e", "logs", 1, "--tail", 1).stdout == "[3] line 3\n"
    entries = [json.loads(line) for line in det("e", "logs", 1, "--json").stdout.splitlines()]
    assert entries == service.logs[3]
    det(
        "e",
        "logs",
        1,
        "--level",
        "error",
        "--rank-id",
        1,
        "--source",
        "task",
        "--stdtype",
        "stderr",
    )
    asked = service.params[-1]
    assert asked.get_list("levels") == ["LOG_LEVEL_ERROR", "LOG_LEVEL_CRITICAL"]
    assert (asked["rankIds"], asked["sources"], asked["stdtypes"]) == ("1", "task", "stderr")
    assert det("e", "logs", 1, "--head", 1, "--tail", 1).exit_code == 2
    assert det("e", "logs", 1, "--level", "LOUD").exit_code == 2


def test_logs_without_a_trial(det: Det, service: FakeService) -> None:
    service.experiments[1] = experiment(1, "ERROR")
    assert "has no trial yet" in det("e", "logs", 1).stderr
    followed = det("e", "logs", "-f", 1)
    assert followed.exit_code == 1
    assert "ended ERROR without a trial" in followed.stderr


@pytest.mark.parametrize(("state", "code"), [("COMPLETED", 0), ("CANCELED", 1), ("ERROR", 1)])
def test_wait(det: Det, service: FakeService, state: str, code: int) -> None:
    service.experiments[1] = [experiment(), experiment(1, state)]
    result = det("e", "wait", 1, "--polling-interval", 0.1)
    assert (result.exit_code, result.stdout) == (code, "")
    assert state in result.stderr


@pytest.mark.parametrize("quiet", [False, True])
def test_wait_off_a_terminal_says_failures_and_the_end(
    det: Det, service: FakeService, quiet: bool
) -> None:
    service.experiments[1] = [experiment(1, "RUNNING"), experiment(1, "COMPLETED")]
    ends = [trial(1, "COMPLETED", 0.5), trial(2, "ERROR", reason="no luck", wallClockTime=1.0)]
    service.trials[1] = [[trial(1), trial(2)], ends]
    result = det("e", "wait", 1, "--polling-interval", 0.1, *(["--quiet"] if quiet else []))
    assert (result.exit_code, result.stdout) == (0, "")
    lines = [line.partition("] ")[2] or line for line in result.stderr.splitlines()]
    failure = [] if quiet else ["trial 2 failed after 1.0s: no luck"]
    assert lines == [*failure, "experiment 1: COMPLETED"]


@pytest.mark.parametrize("command", ["kill", "cancel"])
def test_ended_runs_are_not_ended_again(det: Det, service: FakeService, command: str) -> None:
    service.experiments = {1: experiment(1, "COMPLETED"), 2: experiment(2)}
    result = det("e", command, 1, 2)
    assert (result.exit_code, result.stdout) == (0, "")
    first, second = result.stderr.splitlines()
    assert first == "experiment 1 had ended already (COMPLETED); nothing was done"
    assert "experiment 2" in second
    assert "already" not in second
    assert service.called("POST", f"/api/v1/experiments/{command}") == 1
    assert service.bodies[-1] == {"experimentIds": [2]}


@pytest.mark.parametrize(
    ("command", "action"),
    [
        ("kill", "kill"),
        ("cancel", "cancel"),
        ("pause", "pause"),
        ("activate", "activate"),
        ("unpause", "activate"),
        ("archive", "archive"),
        ("unarchive", "unarchive"),
    ],
)
def test_actions(det: Det, service: FakeService, command: str, action: str) -> None:
    service.experiments[1] = experiment()
    result = det("e", command, 1)
    assert (result.exit_code, result.stdout) == (0, "")
    assert service.calls[-1] == ("POST", f"/api/v1/experiments/{action}")
    assert service.bodies[-1] == {"experimentIds": [1]}


def test_labels_name_and_description(det: Det, service: FakeService) -> None:
    service.experiments[1] = experiment()
    for args in (["label", "add", 1, "b"], ["label", "remove", 1, "a"], ["set", "name", 1, "new"]):
        assert det("e", *args).exit_code == 0
    assert det("e", "set", "description", 1, "words").exit_code == 0
    found = service.experiments[1]
    assert (found["labels"], found["name"], found["description"]) == (["b"], "new", "words")


def test_download_the_code(det: Det, service: FakeService, tmp_path: Path) -> None:
    service.model_def = b"archive"
    result = det("e", "download-model-def", 1, "--output-dir", tmp_path / "out")
    path = tmp_path / "out" / "experiment_1_model_def.tgz"
    assert (result.exit_code, result.stdout) == (0, f"{path}\n")
    assert path.read_bytes() == b"archive"


@pytest.mark.parametrize("more", [["--dry-run"], ["--detach"]])
def test_ignored_fields_of_a_pipeline(
    det: Det, service: FakeService, tmp_path: Path, more: list[str]
) -> None:
    step = {
        "name": "first",
        "experiment": {
            "entrypoint": "true",
            "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
        },
    }
    file = tmp_path / "pipeline.yaml"
    file.write_text(json.dumps({"name": "p", "steps": [step]}))
    service.remarks = ["step first: bind_mounts is stored but ignored: x"]
    result = det("pipeline", "run", file, *more)
    assert result.exit_code == 0, result.output
    assert f"warning: {service.remarks[0]}" in result.stderr.splitlines()

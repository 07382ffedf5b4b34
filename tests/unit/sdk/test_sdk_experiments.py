"""Experiments and trials through the SDK."""

from __future__ import annotations

import base64
import math
from pathlib import Path

import pytest

from determined import errors
from determined.common.api import patience
from determined.common.api.errors import (
    BadRequestException,
    MasterNotFoundException,
    NotFoundException,
)
from determined.expconf import ConfigError
from determined.experimental import Determined
from determined.experimental.client import (
    ExperimentSortBy,
    ExperimentState,
    LogLevel,
    OrderBy,
    TrialState,
    ValidationMetrics,
)
from tests.unit.sdk.fake_service import (
    CONFIG,
    FakeService,
    Refused,
    checkpoint,
    experiment,
    log_line,
    trial,
)

YAML = """\
# the comment stays
name: digits
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: {batches: 1}}
"""


def test_a_file_is_sent_as_it_is_written(
    client: Determined, service: FakeService, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(YAML)
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("print()")
    found = client.create_experiment(
        tmp_path / "config.yaml", tmp_path / "code", project_id=3, parent_id=4
    )
    body = service.bodies[-1]
    assert body["config"] == YAML
    assert [(f["path"], base64.b64decode(f["content"])) for f in body["modelDefinition"]] == [
        ("train.py", b"print()")
    ]
    assert (body["projectId"], body["parentId"], body["activate"]) == (3, 4, True)
    assert (found.id, found.state) == (1, ExperimentState.ACTIVE)
    assert found.config == CONFIG
    client.create_experiment(YAML, paused=True)
    assert service.bodies[-1]["activate"] is False


def test_ignored_fields_are_in_the_log(
    client: Determined, service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    service.remarks = ["bind_mounts is stored but ignored: x"]
    client.create_experiment(YAML)
    assert caplog.messages == ["experiment 1: bind_mounts is stored but ignored: x"]


@pytest.mark.parametrize("tricky", ["1e-3", "yes", "0o7", "null", "2026-01-01"])
def test_a_mapping_reads_back_as_it_was(
    client: Determined, service: FakeService, tricky: str
) -> None:
    from determined import expconf

    config = {**CONFIG, "hyperparameters": {"word": tricky, "number": 1e-5}}
    client.create_experiment(config)
    sent = expconf.load_yaml(service.bodies[-1]["config"]).data
    assert sent == config


def test_text_is_yaml(client: Determined, service: FakeService) -> None:
    client.create_experiment(YAML)
    assert service.bodies[-1]["config"] == YAML


def test_nothing_is_sent_when_the_configuration_is_wrong(
    client: Determined, service: FakeService
) -> None:
    with pytest.raises(ConfigError, match="metric"):
        client.create_experiment({**CONFIG, "searcher": {"name": "single"}})
    assert service.called("POST", "/api/v1/experiments") == 0


def test_fields_that_a_template_may_bring_are_not_missed(
    client: Determined, service: FakeService
) -> None:
    client.create_experiment({"name": "x"}, template="base")
    assert service.bodies[-1]["template"] == "base"
    with pytest.raises(ConfigError, match="nmae"):
        client.create_experiment({"nmae": "x"}, template="base")


def test_a_refusal_keeps_the_services_words(client: Determined, service: FakeService) -> None:
    service.refusal = Refused(400, "there is no resource pool 'x'")
    with pytest.raises(BadRequestException, match="no resource pool 'x'"):
        client.create_experiment(CONFIG)


def test_a_submission_is_not_repeated(client: Determined, service: FakeService) -> None:
    # A lost answer must not make a second experiment.
    service.refusal = Refused(503, "restarting")
    with pytest.raises(Exception, match="restarting"):
        client.create_experiment(CONFIG)
    assert service.called("POST", "/api/v1/experiments") == 1


def test_an_experiment_has_the_attributes_of_its_answer(
    client: Determined, service: FakeService
) -> None:
    service.experiments[7] = experiment(7, "PAUSED", description="d", notes="n")
    found = client.get_experiment(7)
    assert found.state is ExperimentState.PAUSED
    assert (found.name, found.description, found.notes) == ("digits", "d", "n")
    assert (found.labels, found.archived, found.progress) == ({"a"}, False, 0.5)
    assert found.get_config()["searcher"]["metric"] == "accuracy"
    with pytest.raises(NotFoundException, match="experiment 8 does not exist"):
        client.get_experiment(8)


def test_lists_are_read_to_their_end(client: Determined, service: FakeService) -> None:
    service.experiments = {i: experiment(i, "COMPLETED", labels=["a", "b"]) for i in range(1, 451)}
    found = client.list_experiments(
        sort_by=ExperimentSortBy.ID,
        order_by=OrderBy.DESC,
        labels=["a", "b"],
        users=["ann"],
        states=[ExperimentState.COMPLETED],
        name="dig",
    )
    assert [e.id for e in found] == list(range(1, 451))
    assert service.called("GET", "/api/v1/experiments") == 3
    asked = service.params[-1]
    assert asked.get_list("labels") == ["a", "b"]
    assert asked.get_list("states") == ["STATE_COMPLETED"]
    assert (asked["sortBy"], asked["orderBy"]) == ("SORT_BY_ID", "ORDER_BY_DESC")
    assert [e.id for e in client.list_experiments(experiment_ids=[3, 440])] == [3, 440]


def test_wait_returns_the_state_it_ended_in(client: Determined, service: FakeService) -> None:
    states = ["RUNNING", "RUNNING", "STOPPING_ERROR", "ERROR"]
    service.experiments[1] = [experiment(1, state) for state in ["ACTIVE", *states]]
    assert client.get_experiment(1).wait(interval=0) is ExperimentState.ERROR
    assert service.called("GET", "/api/v1/experiments/1") == 5


def test_the_first_trial_is_waited_for(client: Determined, service: FakeService) -> None:
    service.experiments[1] = experiment()
    service.trials[1] = [[], [], [trial(3), trial(4)]]
    assert client.get_experiment(1).await_first_trial(interval=0).id == 3


def test_no_first_trial_of_an_experiment_that_has_ended(
    client: Determined, service: FakeService
) -> None:
    service.experiments[1] = experiment(1, "ERROR")
    with pytest.raises(RuntimeError, match="ended ERROR without a trial"):
        client.get_experiment(1).await_first_trial()


@pytest.mark.parametrize("action", ["activate", "pause", "cancel", "kill", "archive", "unarchive"])
def test_actions(client: Determined, service: FakeService, action: str) -> None:
    service.experiments[1] = experiment()
    getattr(client.get_experiment(1), action)()
    assert service.calls[-1] == ("POST", f"/api/v1/experiments/1/{action}")


def test_remarks_on_an_experiment(client: Determined, service: FakeService) -> None:
    service.experiments[1] = experiment()
    found = client.get_experiment(1)
    found.set_name("other")
    found.set_description("d")
    found.set_notes("n")
    assert (found.name, found.description, found.notes) == ("other", "d", "n")
    found.add_label("a b?c")
    assert found.labels == {"a", "a b?c"}
    found.set_labels({"z", "y"})
    assert found.labels == {"y", "z"}
    found.remove_label("z")
    assert found.labels == {"y"}


def test_the_code_is_downloaded(client: Determined, service: FakeService, tmp_path: Path) -> None:
    service.experiments[1] = experiment()
    service.model_def = b"\x1f\x8b"
    path = client.get_experiment(1).download_code(str(tmp_path / "new" / "dir"))
    assert Path(path) == tmp_path / "new/dir/exp-1_model_def.tar.gz"
    assert Path(path).read_bytes() == b"\x1f\x8b"


def test_top_checkpoints_are_the_best_of_different_trials(
    client: Determined, service: FakeService
) -> None:
    service.experiments[1] = experiment()
    service.checkpoints = [
        checkpoint("a", 1, 0.9),
        checkpoint("b", 1, 0.8),
        checkpoint("c", 2, 0.85),
        checkpoint("d", 3, None),
        checkpoint("e", 4, "NaN"),
        checkpoint("f", 5, 0.99, state="STATE_DELETED"),
    ]
    found = client.get_experiment(1)
    assert [c.uuid for c in found.top_n_checkpoints(2)] == ["a", "c"]
    assert {c.uuid for c in found.top_n_checkpoints(9)} == {"a", "c", "d", "e"}
    assert found.top_checkpoint().uuid == "a"
    smallest = found.top_checkpoint(sort_by="accuracy", smaller_is_better=True)
    assert smallest.uuid == "b"
    with pytest.raises(ValueError, match="give both of sort_by and smaller_is_better"):
        found.top_checkpoint(sort_by="accuracy")


def test_no_checkpoint(client: Determined, service: FakeService) -> None:
    service.experiments[1] = experiment()
    service.trials[1] = [trial(3)]
    with pytest.raises(errors.CheckpointNotFound, match="experiment 1"):
        client.get_experiment(1).top_checkpoint()
    with pytest.raises(errors.CheckpointNotFound, match="trial 3"):
        client.get_trial(3).select_checkpoint(latest=True)


def test_a_trial(client: Determined, service: FakeService) -> None:
    service.experiments[1] = experiment()
    service.trials[1] = [trial(3, "COMPLETED")]
    found = client.get_trial(3)
    assert (found.id, found.experiment_id, found.state) == (3, 1, TrialState.COMPLETED)
    assert found.hparams == {"lr": 0.3}
    assert found.summary_metrics == {
        "validation_metrics": {"accuracy": {"count": 1, "max": math.inf}}
    }
    assert found.get_experiment().name == "digits"
    found.kill()
    assert service.calls[-1] == ("POST", "/api/v1/trials/3/kill")


def test_a_trials_checkpoints(client: Determined, service: FakeService) -> None:
    service.experiments[1] = experiment()
    service.trials[1] = [trial(3)]
    old = checkpoint("old", 3, 0.9, metadata={"steps_completed": 5})
    service.checkpoints = [old, checkpoint("new", 3, 0.8), checkpoint("other", 4, 1.0)]
    found = client.get_trial(3)
    assert found.top_checkpoint().uuid == "old"
    assert found.select_checkpoint(latest=True).uuid == "new"
    assert found.select_checkpoint(uuid="old").uuid == "old"
    assert [c.uuid for c in found.list_checkpoints(max_results=1)] == ["new"]
    for wrong in ({}, {"latest": True, "best": True}, {"latest": True, "sort_by": "loss"}):
        with pytest.raises(ValueError, match="best"):
            found.select_checkpoint(**wrong)


def test_metrics_keep_values_that_json_cannot_hold(
    client: Determined, service: FakeService
) -> None:
    service.trials[1] = [trial(3)]
    service.metrics = [
        {
            "trialId": 3,
            "trialRunId": 1,
            "totalBatches": step,
            "endTime": "2026-01-02T03:04:05Z",
            "group": group,
            "metrics": {
                "validation_metrics" if group == "validation" else "avg_metrics": {"loss": value}
            },
        }
        for step, group, value in [
            (1, "validation", 0.5),
            (2, "validation", "NaN"),
            (3, "validation", "-Infinity"),
            (3, "training", 1.0),
            (4, "custom", 2.0),
        ]
    ]
    found = list(client.get_trial(3).iter_metrics("validation"))
    assert [report.steps_completed for report in found] == [1, 2, 3]
    assert all(isinstance(report, ValidationMetrics) for report in found)
    values = [report.metrics["loss"] for report in found]
    assert values[0] == 0.5
    assert math.isnan(values[1])
    assert values[2] == -math.inf
    assert [r.metrics for r in client.iter_trials_metrics([3], "custom")] == [{"loss": 2.0}]


def lines(service: FakeService) -> list[str]:
    service.trials[1] = [trial(3)]
    service.logs[3] = [log_line(i, f"line {i}") for i in range(1, 6)]
    service.logs[3][3]["level"] = "LOG_LEVEL_ERROR"
    return [entry["message"] for entry in service.logs[3]]


def test_logs(client: Determined, service: FakeService) -> None:
    every = lines(service)
    found = client.get_trial(3)
    assert list(found.logs()) == every
    assert list(found.logs(head=2)) == every[:2]
    assert list(found.logs(tail=2)) == every[-2:]
    assert list(found.logs(min_level=LogLevel.WARNING)) == [every[3]]
    assert service.params[-1].get_list("levels") == [
        "LOG_LEVEL_WARNING",
        "LOG_LEVEL_ERROR",
        "LOG_LEVEL_CRITICAL",
    ]
    list(found.iter_logs(rank_ids=[0, 1], stdtypes=["stderr"], timestamp_after=1_700_000_000))
    asked = service.params[-1]
    assert asked.get_list("rankIds") == ["0", "1"]
    assert asked["timestampAfter"] == "2023-11-14T22:13:20+00:00"
    with pytest.raises(ValueError, match="head or tail"):
        list(found.logs(head=1, tail=1))


def test_tail_and_follow_show_no_line_twice(client: Determined, service: FakeService) -> None:
    every = lines(service)
    found = client.get_trial(3).logs(follow=True, tail=2)
    shown = [next(found), next(found)]
    service.logs[3].append(log_line(6, "line 6"))
    assert [*shown, *found] == [*every[-2:], "[6] line 6\n"]
    assert service.params[-1]["follow"] == "true"


def test_followed_logs_go_on_when_the_service_is_restarted(
    client: Determined, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "PAUSE_S", 0.0)
    every = lines(service)
    service.log_breaks = [2, 0, 3]
    assert list(client.get_trial(3).logs(follow=True)) == every
    service.log_breaks = [0]
    begin = "2026-01-02T03:04:03Z"
    assert list(client.get_trial(3).logs(follow=True, timestamp_after=begin)) == every[3:]
    monkeypatch.setattr(patience, "LIMIT_S", 0.0)
    service.log_breaks = [2]
    with pytest.raises(MasterNotFoundException, match="the service is stopping"):
        list(client.get_trial(3).logs(follow=True))


def test_the_first_trials_logs_are_the_experiments(
    client: Determined, service: FakeService
) -> None:
    every = lines(service)
    service.experiments[1] = experiment()
    assert list(client.get_experiment(1).logs(head=1)) == every[:1]


def test_a_state_of_a_newer_service_is_unspecified(
    client: Determined, service: FakeService
) -> None:
    service.experiments[1] = experiment(state="DREAMING")
    service.trials[1] = [trial(3, "DREAMING")]
    (found,) = client.list_experiments()
    assert (found.state, found.document["state"]) == (
        ExperimentState.UNSPECIFIED,
        "STATE_DREAMING",
    )
    assert client.get_trial(3).state is TrialState.UNSPECIFIED
    with pytest.raises(ValueError, match="COMPLETED"):
        ExperimentState("COMPLETED")

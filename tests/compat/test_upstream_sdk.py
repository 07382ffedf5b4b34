"""The published SDK against this service."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.conftest import Submitted
from tests.compat.upstream_client import UpstreamClient

pytestmark = pytest.mark.timeout(900)


def test_from_submission_to_the_best_checkpoint(
    upstream: UpstreamClient, submitted: Submitted, tmp_path: Path
) -> None:
    script = """
config, model, target = args
experiment = client.create_experiment(config, model)
first = experiment.await_first_trial()
state = experiment.wait(interval=0.2)
experiment.reload()
trials = experiment.list_trials()
top = experiment.top_checkpoint()
top_of_each = experiment.top_n_checkpoints(2)
by_regret = experiment.top_n_checkpoints(1, sort_by="regret", smaller_is_better=True)[0]
show({
    "user": client.whoami().username,
    "state": state.value,
    "progress": experiment.progress,
    "config": experiment.config["name"],
    "first": first.id,
    "trials": [trial.id for trial in trials],
    "get_trials": [trial.id for trial in experiment.get_trials()],
    "summary": trials[0].summary_metrics["validation_metrics"]["accuracy"]["max"],
    "hparams": [trial.hparams for trial in trials],
    "sorted": [trial.hparams["quality"] for trial in experiment.list_trials(
        sort_by=client.TrialSortBy.BEST_VALIDATION_METRIC, order_by=client.OrderBy.DESC)],
    "top": top.training.validation_metrics["avgMetrics"]["accuracy"],
    "top_resources": top.resources,
    "top_metadata": top.metadata,
    "top_state": top.state.value,
    "top_trial": top.training.trial_id,
    "top_n": [one.training.hparams["quality"] for one in top_of_each],
    "by_regret": by_regret.training.hparams["quality"],
    "all": [one.metadata["steps_completed"] for one in experiment.list_checkpoints(
        sort_by=client.CheckpointSortBy.BATCH_NUMBER, order_by=client.OrderBy.DESC)],
    "best_first": [
        one.training.validation_metrics["avgMetrics"]["accuracy"]
        for trial in trials for one in trial.list_checkpoints()],
    "trial_top": [trial.top_checkpoint().metadata["steps_completed"] for trial in trials],
    "path": top.download(path=target),
    "again": client.get_checkpoint(top.uuid).training.experiment_id,
    "experiment": experiment.id,
})
"""
    target = tmp_path / "best"
    found = upstream.sdk(script, submitted.config, submitted.model, target)
    assert found["user"] == "determined"
    assert found["state"] == "STATE_COMPLETED"
    assert found["progress"] == 1.0
    assert found["config"] == "from-the-published-client"
    assert found["first"] in found["trials"]
    assert found["get_trials"] == found["trials"]
    assert found["hparams"] == [{"quality": 0.02}, {"quality": 0.1}] or found["hparams"] == [
        {"quality": 0.1},
        {"quality": 0.02},
    ]
    first_quality = found["hparams"][0]["quality"]
    assert found["summary"] == pytest.approx(first_quality * 6)
    assert found["sorted"] == [0.1, 0.02]
    assert found["top"] == pytest.approx(0.6)
    assert set(found["top_resources"]) == {"state.txt", "metadata.json"}
    assert found["top_metadata"] == {"steps_completed": 6}
    assert found["top_state"] == "STATE_COMPLETED"
    assert found["top_n"] == [0.1, 0.02]
    assert found["by_regret"] == 0.1
    assert found["all"] == [6, 6, 3, 3]
    best = [quality["quality"] * step for quality in found["hparams"] for step in (6, 3)]
    assert found["best_first"] == pytest.approx(best)
    assert found["trial_top"] == [6, 6]
    assert found["path"] == str(target)
    assert (target / "state.txt").read_text() == "0.1 6"
    assert found["again"] == found["experiment"]


def test_logs_and_metrics(upstream: UpstreamClient, submitted: Submitted) -> None:
    script = """
experiment = client.get_experiment(int(args[0]))
trial = experiment.list_trials()[0]
training = list(trial.iter_metrics("training"))
validation = list(trial.iter_metrics("validation"))
from determined.common.api import bindings
curves = bindings.get_CompareTrials(
    trial._session, trialIds=[trial.id], metricIds=["validation.regret", "training.loss"],
    metricType=bindings.v1MetricType.UNSPECIFIED)
every = client.iter_trials_metrics([one.id for one in experiment.list_trials()], "validation")
show({
    "logs": [line for line in trial.logs()],
    "head": list(trial.iter_logs(head=1)),
    "tail": list(trial.iter_logs(tail=1)),
    "searched": list(trial.iter_logs(search_text="STEP 4")),
    "followed": list(trial.logs(follow=True, stdtypes=["stdout"])),
    "training": [(one.steps_completed, one.metrics["loss"], one.metrics["grad"])
                 for one in training],
    "validation": [(one.steps_completed, one.trial_id == trial.id, one.trial_run_id, one.group)
                   for one in validation],
    "curves": {one.group: sorted(one.data[0].values) for one in curves.trials[0].metrics},
    "every": len(list(every)),
})
"""
    found = upstream.sdk(script, submitted.id)
    steps = [line for line in found["logs"] if "step" in line]
    assert len(steps) == 6
    assert all(line.endswith("\n") for line in found["logs"])
    assert "step 1" in found["head"][0]
    assert len(found["tail"]) == 1
    assert [line.partition("|| ")[2] for line in found["searched"]] == ["step 4\n"]
    assert found["followed"] == steps
    assert [one[0] for one in found["training"]] == [1, 2, 3, 4, 5, 6]
    assert found["training"][1][1] == 0.5
    assert {one[2] for one in found["training"]} == {"Infinity"}
    assert found["validation"] == [[3, True, 1, "validation"], [6, True, 1, "validation"]]
    assert found["curves"] == {"validation": ["regret"], "training": ["loss"]}
    assert found["every"] == 4


def test_control_and_refusals(
    upstream: UpstreamClient, submitted: Submitted, tmp_path: Path
) -> None:
    script = """
from determined.common.api import errors

def refusal(act):
    try:
        act()
    except (errors.APIException, errors.BadRequestException) as error:
        return f"{type(error).__name__}: {error}"

config = {
    "name": "never-started", "entrypoint": "python3 train.py", "hyperparameters": {},
    "searcher": {"name": "single", "metric": "x"}}
finished = client.get_experiment(int(args[0]))
experiment = client.create_experiment(config, args[1])
experiment.set_name("renamed")
experiment.add_label("first")
experiment.pause()
experiment.kill()
show({
    "waited": experiment.wait(interval=0.2).value,
    "name": client.get_experiment(experiment.id).name,
    "labels": sorted(client.get_experiment(experiment.id).labels),
    "listed": [one.id for one in client.list_experiments(labels=["first"], name="renamed")],
    "activate": refusal(finished.activate),
    "missing": refusal(lambda: client.get_trial(999999)),
    "no checkpoint": refusal(lambda: client.get_checkpoint("nonsense")),
    "config": refusal(lambda: client.create_experiment({**config, "searcher": {}}, args[1])),
    "experiment": experiment.id,
    "users": sorted(user.username for user in client.list_users()),
})
"""
    found = upstream.sdk(script, submitted.id, submitted.model)
    assert found["waited"] == "STATE_CANCELED"
    assert found["name"] == "renamed"
    assert found["labels"] == ["first"]
    assert found["listed"] == [found["experiment"]]
    assert "cannot become ACTIVE" in found["activate"]
    assert found["missing"] == "NotFoundException: not found: trial 999999 does not exist"
    assert "'nonsense' does not exist" in found["no checkpoint"]
    assert "searcher.name: required field is missing" in found["config"]
    assert {"admin", "determined"} <= set(found["users"])

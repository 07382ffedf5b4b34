"""An experiment's results as DataFrames. To import pandas takes longer than a unit test may."""

from __future__ import annotations

import math
import sys

import pytest

from determined.experimental import Determined
from tests.unit.sdk.fake_service import URL, FakeService, checkpoint, experiment, trial

UUID = "11111111-2222-3333-4444-55555555555"


@pytest.fixture
def service() -> FakeService:
    service = FakeService()
    service.experiments[1] = experiment()
    return service


@pytest.fixture
def client(service: FakeService) -> Determined:
    return Determined(URL, "determined", "secret", transport=service.transport)


def test_trials_have_a_column_for_each_hyperparameter(
    client: Determined, service: FakeService
) -> None:
    service.trials[1] = [
        trial(3, "COMPLETED", 0.5),
        trial(4, "RUNNING", hparams={"lr": 0.1, "net": {"depth": 2}}),
    ]
    found = client.get_experiment(1).trials_dataframe()
    assert list(found.index) == [3, 4]
    assert list(found["state"]) == ["COMPLETED", "RUNNING"]
    assert found.loc[3, "searcher_metric"] == 0.5
    assert math.isnan(found.loc[4, "searcher_metric"])
    assert found.loc[4, "hparams.net.depth"] == 2
    assert found.loc[3, "start_time"].year == 2026


def test_metrics_have_a_row_for_each_report(client: Determined, service: FakeService) -> None:
    service.trials[1] = [trial(3), trial(4)]
    service.metrics = [
        {
            "trialId": trial_id,
            "trialRunId": 1,
            "totalBatches": steps,
            "endTime": "2026-01-02T03:04:05Z",
            "group": "validation",
            "metrics": {"validation_metrics": {"loss": loss}},
        }
        for trial_id, steps, loss in ((3, 10, 0.5), (3, 20, "Infinity"), (4, 10, 0.25))
    ]
    found = client.get_experiment(1).metrics_dataframe()
    assert service.params[-1].get_list("trialIds") == ["3", "4"]
    assert list(found["steps_completed"]) == [10, 20, 10]
    assert found.loc[3, "metrics.loss"].max() == math.inf
    assert found.groupby(level=0)["metrics.loss"].min().to_dict() == {3: 0.5, 4: 0.25}


def test_checkpoints_have_the_metrics_of_their_step(
    client: Determined, service: FakeService
) -> None:
    service.checkpoints = [checkpoint(f"{UUID}1", 3, 0.9), checkpoint(f"{UUID}2", 4, None)]
    found = client.get_experiment(1).checkpoints_dataframe()
    assert found.loc[f"{UUID}1", "metrics.accuracy"] == 0.9
    assert found.loc[f"{UUID}2", "trial_id"] == 4
    assert list(found["bytes"]) == [3, 3]


def test_without_a_row_the_columns_exist(client: Determined, service: FakeService) -> None:
    one = client.get_experiment(1)
    assert list(one.trials_dataframe()["state"]) == []
    before = len(service.calls)
    assert list(one.metrics_dataframe("training")["steps_completed"]) == []
    # The service refuses a request that names no trial.
    assert [path for _, path in service.calls[before:]] == ["/api/v1/experiments/1/trials"]
    assert list(one.checkpoints_dataframe()["trial_id"]) == []


def test_without_pandas_the_error_names_the_package(
    client: Determined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        client.get_experiment(1).trials_dataframe()

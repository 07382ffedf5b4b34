"""MLflow's pages in a real browser: each shows its data, and no request of theirs is refused."""

from __future__ import annotations

import httpx
import mlflow
import numpy as np
import pytest

from tests.integration.browser import open_browser
from tests.integration.mlflow.conftest import Cluster
from tests.integration.mlflow.tour import Page, Tour


def test_every_page_shows_its_contents(
    tracking: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from sklearn.linear_model import LogisticRegression

    with open_browser(tmp_path_factory.mktemp("chromium"), network=True) as driver:
        found = mlflow.set_experiment("seen")
        runs = []
        for rate in (0.1, 0.2):
            with mlflow.start_run(run_name=f"rate {rate}") as run:
                mlflow.log_param("rate", rate)
                for step in range(3):
                    mlflow.log_metric("val_accuracy", rate * step, step=step)
                mlflow.log_text("a text that is seen", "notes/said.txt")
            runs.append(run.info.run_id)
        with mlflow.start_run(run_id=runs[0]):
            fitted = LogisticRegression().fit(np.array([[0.0], [1.0]]), np.array([0, 1]))
            mlflow.sklearn.log_model(
                fitted,
                name="fitted",
                registered_model_name="Seen",
                pip_requirements=["scikit-learn"],  # else MLflow looks for them, for long
            )
        experiment = f"/experiments/{found.experiment_id}"
        both = f'runs=["{runs[0]}","{runs[1]}"]&experiments=["{found.experiment_id}"]'
        tour = Tour(driver, tracking.url, "determined", "")
        for page in (
            Page(
                "charts", f"{experiment}/runs?compareRunsMode=CHART", ("val_accuracy", "rate 0.2")
            ),
            Page("run", f"{experiment}/runs/{runs[0]}", ("val_accuracy", "rate", "Seen")),
            Page("artifact", f"{experiment}/runs/{runs[1]}/artifacts/notes/said.txt", ("is seen",)),
            Page("compare", f"/compare-runs?{both}", ("Parallel Coordinates Plot", "rate 0.2")),
            Page("version", "/models/Seen/versions/1", ("Version 1", "rate 0.1")),
        ):
            tour.visit(page)
            assert tour.refused() == [], page.name
            assert tour.said == [], page.name
            assert "Assistant" not in tour.text(), page.name
        own = httpx.URL(tracking.url).port
        for page in (
            Page("home", "/", ("Recent Experiments", "seen")),
            Page("traces", f"{experiment}/traces", ("Traces",)),
            Page("settings", "/settings/general", ("Theme preference",)),
        ):
            tour.visit(page)
            assert tour.refused() == [], page.name
            assert tour.said == [], page.name
            assert {httpx.URL(one.url).port for one in tour.answered} == {own}, page.name
            for words in (
                "AI Gateway",
                "Start Demo",
                "usage data",
                "telemetry data",
                "Clear all demo data",
                "LLM Connections",
            ):
                assert words not in tour.text(), (page.name, words)

"""The line that leads from an experiment to its page in MLflow."""

from __future__ import annotations

from typing import Any

import pytest

from determined.cli.following import pages
from determined.common.api import errors
from determined.experimental import Experiment
from tests.unit.sdk.fake_service import trial

SEARCH = {"searcher": {"name": "random", "metric": "val loss", "smaller_is_better": True}}
SINGLE = {"searcher": {"name": "single", "metric": "x"}}


class Service:
    """Answers the requests that make up the page."""

    master = "http://m:1"

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def get(self, path: str, **kwargs: Any) -> Any:
        found = self._answers["trials" if path.endswith("/trials") else "links"]
        if isinstance(found, Exception):
            raise found
        return {"trials" if path.endswith("/trials") else "links": found}


@pytest.mark.parametrize(
    ("service", "config", "page"),
    [
        (
            Service(links={"mlflow": "/mlflow/"}),
            SEARCH,
            "/mlflow/#/experiments/3/runs?orderByKey=metrics.%60best%20validation%2Fval%20loss%60&orderByAsc=true",
        ),
        (
            Service(links={"mlflow": "/mlflow/"}, trials=[trial(9)]),
            SINGLE,
            "/mlflow/#/experiments/3/runs/9",
        ),
        (Service(links={"api": "/docs"}), SEARCH, None),
        (Service(links=errors.MasterNotFoundException("away")), SEARCH, None),
    ],
)
def test_it_exists_where_mlflow_is_served(service: Any, config: Any, page: str | None) -> None:
    experiment = Experiment(3, service)
    experiment.config = config
    found = pages.in_mlflow(experiment)
    assert found == (page and service.master + page)

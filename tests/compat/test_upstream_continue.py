"""`continue` by the published client: each continuation is another task of the trial."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from tests.compat.upstream_client import UpstreamClient

pytestmark = pytest.mark.timeout(900)

CONFIG = """
name: continued
entrypoint: python3 train.py
max_restarts: 0
searcher: {name: single, metric: loss}
hyperparameters: {}
"""
SCRIPT = """
import determined as det

info = det.get_cluster_info()
print("under", info.task_id)
with det.core.init() as core_context:
    core_context.train.report_validation_metrics(steps_completed=1, metrics={"loss": 1.0})
"""


def test_each_continuation_is_a_new_task(upstream: UpstreamClient, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "train.py").write_text(SCRIPT)
    (tmp_path / "config.yaml").write_text(CONFIG)
    number = upstream.create(tmp_path / "config.yaml", str(model))
    upstream.wait(number)
    upstream.det("e", "continue", str(number))
    upstream.wait(number)
    listed = upstream.det("e", "list-trials", str(number), "--csv").stdout
    (row,) = csv.DictReader(io.StringIO(listed))
    trial = upstream.json("t", "describe", row["Trial ID"])
    trial = trial.get("trial", trial)
    first, second = trial["taskIds"]
    assert (second, trial["taskId"]) == (f"{first}-1", second)

    def under(*command: str) -> list[str]:
        lines = upstream.det(*command).stdout.splitlines()
        return [line.split()[-1] for line in lines if "|| under " in line]

    assert under("t", "logs", row["Trial ID"]) == [first, second]
    # `det task logs` of that release refuses the second one's name, for it wants a whole UUID at the end.
    assert under("task", "logs", first) == [first]


def test_a_search_goes_on(upstream: UpstreamClient, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    search = CONFIG.replace("{name: single,", "{name: random, max_trials: 2,")
    (tmp_path / "config.yaml").write_text(search)
    number = upstream.create(tmp_path / "config.yaml", str(tmp_path), "--paused")
    upstream.det("e", "kill", str(number))
    upstream.wait(number, code=1)
    upstream.det("e", "continue", str(number))
    upstream.wait(number)

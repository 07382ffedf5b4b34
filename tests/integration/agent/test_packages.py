"""Two experiments install different versions of one package on one agent, which is killed meanwhile."""

from __future__ import annotations

import csv
import datetime
import io
import signal
from pathlib import Path

from tests.integration.agent.test_recovery import process_of
from tests.local_cluster import LocalCluster
from tests.processes import is_alive
from tests.waiting import until
from tests.wheels import wheel

CONFIG = """
name: packages-{version}
labels: [packages-{version}]
entrypoint: python3 train.py {folder}
max_restarts: 0
hyperparameters: {{}}
searcher: {{name: random, metric: x, max_trials: 2, max_concurrent_trials: 1, max_length: 1}}
"""

SCRIPT = """
import os, subprocess, sys, time
import determined as det
import tiny
folder = sys.argv[1]
child = subprocess.check_output(["tiny"], text=True).strip()
print("uses", tiny.__version__, child, flush=True)
info = det.get_cluster_info()
open(f"{folder}/begun-{info.trial.experiment_id}-{info.trial.trial_id}", "w").close()
with det.core.init() as core_context:
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.05)
    for op in core_context.searcher.operations():
        core_context.train.report_validation_metrics(op.length, {"x": 1.0})
        op.report_completed(1.0)
"""


def test_each_experiment_has_its_own_packages(cluster: LocalCluster, tmp_path: Path) -> None:
    folder = tmp_path / "signals"
    folder.mkdir()
    experiments = {}
    for version in ("1.0", "2.0"):
        archive = folder / f"tiny-{version}-py3-none-any.whl"
        archive.write_bytes(wheel("tiny", version))
        # Whether all of the agent's packages go together, pip would look up for seconds.
        hook = f"python3 -m pip install --no-index --no-warn-conflicts {archive}\n"
        files = {"train_py": SCRIPT, "startup-hook_sh": hook}
        config = CONFIG.format(version=version, folder=folder)
        experiments[version] = cluster.submit(tmp_path / version, config, **files)
    until("a trial of each", lambda: len(list(folder.glob("begun-*"))), equals=2)
    kept = cluster.data_dir / "agent" / "experiments"
    assert {int(path.name.partition(".")[0]) for path in kept.iterdir()} >= {*experiments.values()}

    agent = process_of(cluster, "agent")
    agent.send_signal(signal.SIGKILL)
    until("the end of the agent", lambda: not is_alive(agent.pid))
    cluster.up()
    (folder / "go").touch()
    for version, experiment in experiments.items():
        assert cluster.wait(experiment) == "COMPLETED"
        first, second = (
            cluster.det("trial", "logs", str(trial["id"])).stdout
            for trial in sorted(cluster.trials(experiment), key=lambda trial: trial["id"])
        )
        for log in (first, second):
            assert f"uses {version} {version}" in log
        assert f"Successfully installed tiny-{version}" in first
        assert "tiny is already installed with the same version" in second

    def left() -> list[str]:
        names = [f"{number}." for number in experiments.values()]
        return [path.name for path in kept.iterdir() if path.name.startswith(tuple(names))]

    until("what they had installed is gone", left, equals=[])

    today = datetime.datetime.now(datetime.UTC).date()
    days = [str(today - datetime.timedelta(days=1)), str(today + datetime.timedelta(days=1))]
    rows = list(csv.DictReader(io.StringIO(cluster.det("resources", "raw", *days).stdout)))
    used = [row for row in rows if row["labels"] == "packages-2.0"]
    assert [row["experiment_id"] for row in used] == [str(experiments["2.0"])] * 2
    assert all(row["slots"] == "1" and float(row["seconds"]) > 0 for row in used)

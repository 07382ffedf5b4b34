"""What the user sees when the training script does not end well."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local_cluster import LocalCluster

CONFIG = """
name: failing
entrypoint: {entrypoint}
hyperparameters: {{}}
searcher: {{name: single, metric: x, max_length: 1}}
max_restarts: {max_restarts}
"""

CASES = {
    # entrypoint, script, what the reason says, what the logs say
    "raises": ("python3 script.py", "raise ValueError('no luck')", "code 1", "ValueError: no luck"),
    "exits-3": ("python3 script.py", "raise SystemExit(3)", "code 3", ""),
    "killed": (
        "python3 script.py",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "signal 9",
        "",
    ),
    "no-script": ("python3 absent.py", "", "absent.py", "absent.py"),
    "no-program": ("no-such-program --flag", "", "no-such-program", "no-such-program"),
    "no-module": ("python3 -m no_such_module", "", "", "no_such_module"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_failing_script_gives_its_reason(
    cluster: LocalCluster, tmp_path: Path, case: str
) -> None:
    entrypoint, script, reason, log = CASES[case]
    config = CONFIG.format(entrypoint=entrypoint, max_restarts=0)
    experiment = cluster.submit(tmp_path, config, script_py=script)
    assert cluster.wait(experiment) == "ERROR"
    (trial,) = cluster.trials(experiment)
    assert trial["state"] == "ERROR"
    assert reason in trial["reason"] or reason in cluster.logs(experiment)
    assert log in cluster.logs(experiment)


def test_a_failed_trial_is_restarted(cluster: LocalCluster, tmp_path: Path) -> None:
    config = CONFIG.format(entrypoint="python3 script.py", max_restarts=2)
    experiment = cluster.submit(tmp_path, config, script_py="raise SystemExit(5)")
    assert cluster.wait(experiment) == "ERROR"
    (trial,) = cluster.trials(experiment)
    assert trial["restarts"] == 3  # failures counted, the last one too, as Determined does
    described = cluster.json("trial", "describe", str(trial["id"]))
    assert [leg["runId"] for leg in described["legs"]] == [1, 2, 3]


def test_a_restart_goes_on_from_the_checkpoint(cluster: LocalCluster, tmp_path: Path) -> None:
    script = """
import os
import determined as det
info = det.get_cluster_info()
with det.core.init() as core_context:
    if info.latest_checkpoint is None:
        with core_context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
            (path / "note").write_text("first leg")
        os._exit(7)
    with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
        print("found:", (path / "note").read_text())
    for op in core_context.searcher.operations():
        core_context.train.report_validation_metrics(op.length, {"x": 1.0})
        op.report_completed(1.0)
"""
    config = CONFIG.format(entrypoint="python3 script.py", max_restarts=1)
    experiment = cluster.submit(tmp_path, config, script_py=script)
    assert cluster.wait(experiment) == "COMPLETED"
    assert "found: first leg" in cluster.logs(experiment)


def test_kill_ends_the_whole_process_group(cluster: LocalCluster, tmp_path: Path) -> None:
    marker = tmp_path / "pids"
    script = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(marker)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
time.sleep(600)
"""
    config = CONFIG.format(entrypoint="python3 script.py", max_restarts=0)
    experiment = cluster.submit(tmp_path, config, script_py=script)
    for _ in range(200):
        if marker.exists() and len(marker.read_text().split()) == 2:
            break
        import time

        time.sleep(0.1)
    pids = [int(pid) for pid in marker.read_text().split()]
    cluster.det("experiment", "kill", str(experiment))
    assert cluster.wait(experiment, timeout=30) == "CANCELED"
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)

"""A local cluster with a running search is backed up, destroyed and restored, by the blocks of the page."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import printed
from tests.local_cluster import LocalCluster
from tests.memory_folder import memory_folder
from tests.printed import ROOT
from tests.waiting import TIMEOUT_S, until

STEPS = 6
HOLD = 3
SEARCH = """\
name: backed-up
entrypoint: python3 train.py
hyperparameters: {lr: {type: double, minval: 0.1, maxval: 0.2}}
searcher: {name: random, metric: loss, max_trials: 4, max_length: {batches: 6}}
max_restarts: 0
"""
TRAIN = f"""\
import pathlib, time
import determined
from determined import core

go = pathlib.Path(__file__).parent / "go"
with core.init() as context:
    info = determined.get_cluster_info()
    first = 0
    if info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(info.latest_checkpoint) as path:
            first = int((path / "step").read_text())
    print("begins after step", first, flush=True)
    for operation in context.searcher.operations():
        for step in range(first + 1, {STEPS} + 1):
            if step > {HOLD}:
                while not pathlib.Path(GO).exists():
                    time.sleep(0.05)
            context.train.report_training_metrics(step, {{"loss": 1 / step}})
            with context.checkpoint.store_path({{"steps_completed": step}}) as (path, _):
                (path / "step").write_text(str(step))
        context.train.report_validation_metrics({STEPS}, {{"loss": 1 / {STEPS}}})
        operation.report_completed(1 / {STEPS})
"""


def page_blocks() -> list[str]:
    """The blocks of the page that this test runs: the backup and the restore."""
    blocks = printed.blocks(ROOT / "docs/operate/backup.md")
    return [block.text for block in blocks if Path(__file__).name in block.marks.get("not run", "")]


def shell(cluster: LocalCluster, text: str) -> None:
    programs = Path(sys.executable).parent
    env = {**cluster.env, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", text],
        env=env, text=True, capture_output=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.timeout(900)
def test_a_search_goes_on_after_backup_and_restore() -> None:
    backup, restore = page_blocks()
    with memory_folder("determined-backup-") as name:
        folder = Path(name)
        cluster = LocalCluster.in_directory(folder)
        go = folder / "go"
        train = TRAIN.replace("GO", repr(str(go)))
        try:
            cluster.up()
            running = cluster.submit(folder / "running", SEARCH, train_py=train)

            def both_hold() -> bool:
                trials = cluster.trials(running)
                return [cluster.reported(each["id"], "training") for each in trials[:2]] == [
                    list(range(1, HOLD + 1))
                ] * 2

            until("two trials hold", both_hold)
            before = [(each["id"], each["hparams"]) for each in cluster.trials(running)]
            shell(cluster, backup)
            lost = cluster.submit(folder / "lost", SEARCH, train_py=train)
            cluster.end()
            shutil.rmtree(cluster.data_dir)
            shell(cluster, restore)
            go.touch()
            assert cluster.wait(running) == "COMPLETED"
            after = cluster.trials(running)
            assert [(each["id"], each["hparams"]) for each in after][: len(before)] == before
            for trial in after:
                assert cluster.reported(trial["id"], "training") == list(range(1, STEPS + 1))
                assert trial["restarts"] == 0
            for trial in after[:2]:
                log = cluster.det("trial", "logs", str(trial["id"])).stdout
                assert f"begins after step {HOLD}" in log, log
            # Experiments after the backup are gone, and their numbers are reused.
            assert cluster.submit(folder / "again", SEARCH, train_py=train) == lost
            assert cluster.wait(lost) == "COMPLETED"
        finally:
            cluster.end()

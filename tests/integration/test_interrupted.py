"""The example of FSDP on a cluster: paused, killed and resumed, with the losses of an unbroken training.

DeepSpeed's is in test_deepspeed.py.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.integration.gangs.interrupted import check_interrupted, only_trial, reports
from tests.local_cluster import LocalCluster

EXAMPLES = Path(__file__).parents[2] / "examples"
ASKED = "            if core_context.preempt.should_preempt():\n"
STOPS = """\
            if epoch == 3 and latest_checkpoint is None:
                print("pausable", flush=True)
                while not core_context.preempt.should_preempt(auto_ack=False):
                    pass
            if epoch == 6 and not os.path.exists({go!r}):
                import time
                print("held", os.getpid(), flush=True)
                while not os.path.exists({go!r}):
                    time.sleep(0.05)
"""
"""Before the example of FSDP asks for its end after an epoch."""


def check_fsdp(cluster: LocalCluster, folder: Path, processes: int) -> None:
    """The slots may be GPUs, too: ``python -m benchmarks.gpu.fsdp``."""
    script = (EXAMPLES / "fsdp/train.py").read_text()
    assert script.count(ASKED) == 1
    configuration = yaml.safe_load((EXAMPLES / "fsdp/const.yaml").read_text())
    configuration["resources"]["slots_per_trial"] = processes
    go = folder / "go"
    unbroken, broken = (
        cluster.submit(
            folder / name,
            yaml.safe_dump(configuration),
            train_py=script.replace(ASKED, stops + ASKED),
        )
        for name, stops in (("unbroken", ""), ("broken", STOPS.format(go=str(go))))
    )
    check_interrupted(cluster, unbroken, broken, go, processes)
    assert list(reports(cluster, broken, "training")) == list(range(1, 11))
    assert reports(cluster, broken, "validation")[10][0]["accuracy"] > 0.9
    parts = {
        Path(name).name for name in only_trial(cluster, broken).list_checkpoints()[0].resources
    }
    assert {".metadata", *(f"__{rank}_0.distcp" for rank in range(processes))} <= parts


def test_fsdp_in_two_processes(cluster: LocalCluster, tmp_path: Path) -> None:
    check_fsdp(cluster, tmp_path, 2)

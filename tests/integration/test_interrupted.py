"""FSDP and torch.compile on a cluster: paused, killed and resumed, with the losses of an unbroken training.

DeepSpeed's is in test_deepspeed.py.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.gangs.interrupted import HELD, check_interrupted, only_trial, reports
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


def headers() -> str | None:
    """A folder with this Python's header files, which torch's compiler for CPUs needs."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    places = sysconfig.get_path("include"), f"/usr/include/{version}"
    return next((place for place in places if Path(place, "Python.h").exists()), None)


COMPILED = """
    def __init__(self, context):
        super().__init__(context)
        self.model = torch.compile(self.model)

    def evaluate_batch(self, batch, batch_idx):
        from torch._dynamo.utils import counters
        print("compiled graphs:", counters["stats"]["unique_graphs"], flush=True)
        return super().evaluate_batch(batch, batch_idx)
"""


@pytest.mark.skipif(headers() is None, reason="torch.compile needs Python.h, which is not here")
def test_a_compiled_trial(cluster: LocalCluster, tmp_path: Path) -> None:
    folder = EXAMPLES / "digits_pytorch_trial"
    configuration: dict[str, Any] = {
        **yaml.safe_load((folder / "const.yaml").read_text()),
        "entrypoint": "held:HeldTrial",
        "environment": {"environment_variables": [f"CPATH={headers()}"]},
        "min_checkpoint_period": {"batches": 45},
        "max_restarts": 1,
    }
    configuration["searcher"]["max_length"] = {"epochs": 5}
    go = tmp_path / "go"
    model = (folder / "model_def.py").read_text()
    unbroken, broken = (
        cluster.submit(
            tmp_path / name,
            yaml.safe_dump(configuration),
            model_def_py=model,
            held_py=HELD.format(go=str(go), holds=name == "broken") + COMPILED,
        )
        for name in ("unbroken", "broken")
    )
    check_interrupted(cluster, unbroken, broken, go, processes=1)
    graphs = re.findall(r"compiled graphs: (\d+)", cluster.logs(broken))
    assert graphs and "0" not in graphs
    assert reports(cluster, broken, "validation")[225][0]["accuracy"] > 0.9

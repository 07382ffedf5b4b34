"""Ray Tune's ASHA: actors that are `reused`, or a `fresh` process per trial."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import ray
import task
from ray import tune

WORKERS = 2


def train(config: dict[str, Any]) -> None:
    import task

    for _, accuracy in task.trial(config["index"]):
        tune.report({"accuracy": accuracy})


def main(reuse: bool) -> None:
    with tempfile.TemporaryDirectory() as store:
        ray.init(
            num_cpus=WORKERS,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=200 * 2**20,
        )
        indices = list(range(len(task.points())))
        tune.Tuner(
            tune.with_resources(train, {"cpu": 1}),
            param_space={"index": tune.grid_search(indices)},
            tune_config=tune.TuneConfig(
                metric="accuracy",
                mode="max",
                reuse_actors=reuse,
                max_concurrent_trials=WORKERS,
                scheduler=tune.schedulers.AsyncHyperBandScheduler(
                    max_t=task.EPOCHS, grace_period=1, reduction_factor=task.DIVISOR
                ),
            ),
            run_config=tune.RunConfig(storage_path=store, verbose=0),
        ).fit()
        ray.shutdown()


if __name__ == "__main__":
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    main(sys.argv[1] == "reused")

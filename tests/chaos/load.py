"""The load during the faults: searches whose numbers are all known in advance."""

from __future__ import annotations

import textwrap
from pathlib import Path
from random import Random

SAVE_EVERY = 5

# Each step is reported once and logged once, with a number that only this leg and line has.
SCRIPT = f"""
import sys, time
import determined as det

info = det.get_cluster_info()
a = info.trial.hparams["a"]
leg = info.allocation_id.rpartition(".")[2]


def value(step):
    return a + 1 / step


with det.core.init() as core_context:
    step = lines = saved = 0
    if info.latest_checkpoint:
        with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
            step = saved = int((path / "step").read_text())

    def save():
        with core_context.checkpoint.store_path({{"steps_completed": step}}) as (path, uuid):
            (path / "step").write_text(str(step))
        return step

    for op in core_context.searcher.operations():
        while step < op.length:
            time.sleep(0.02)
            step += 1
            core_context.train.report_training_metrics(step, {{"loss": value(step)}})
            print(f"leg {{leg}} line {{lines}}")
            lines += 1
            if step % {SAVE_EVERY} == 0 or step == op.length:
                core_context.train.report_validation_metrics(step, {{"x": value(step)}})
                saved = save()
            if core_context.preempt.should_preempt():
                if saved < step:
                    save()
                sys.exit()
        op.report_completed(value(op.length))
"""

SEARCHES = {
    "random": "name: random, max_trials: 6, max_concurrent_trials: 3, max_length: {batches: 40}",
    "asha": "name: async_halving, num_rungs: 3, divisor: 3, max_trials: 9, max_concurrent_trials: 3,"
    " max_length: {batches: 45}",
    "single": "name: single, max_length: {batches: 120}",
}


def config(name: str, seed: int, storage: Path, pool: str = "default") -> str:
    """An experiment's YAML."""
    text = f"""
        name: chaos-{name}-{seed}
        entrypoint: python3 script.py
        hyperparameters:
          a: {{type: double, minval: 0, maxval: 1}}
        searcher: {{metric: x, {SEARCHES[name]}}}
        resources: {{resource_pool: {pool}}}
        reproducibility: {{experiment_seed: {seed}}}
        max_restarts: 100000
        checkpoint_storage: {{type: shared_fs, host_path: {storage}}}
    """
    return textwrap.dedent(text)


def choose(random: Random) -> tuple[str, int]:
    """The next search and its seed."""
    return random.choice(list(SEARCHES)), random.randrange(2**31)

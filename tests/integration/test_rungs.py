"""ASHA on the real cluster: a trial that waits between rungs holds no slots, and a stopped trial ends in
order.

One trial trains at a time, so that the order of events, and with it every decision, is that of the
simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from determined.common.api import Session
from determined_searchers import ExitReason, simulate
from tests.integration.prefect_server import Prefect
from tests.local_cluster import LocalCluster
from tests.outcomes import client
from tests.processes import is_alive
from tests.waiting import until

ROOT = Path(__file__).parents[2]
T = TypeVar("T")

# The checkpoint lists the steps that were trained: one that was trained twice would show.
PROMOTED = """
import os, pathlib, time
import determined as det
info = det.get_cluster_info()
print("process", os.getpid())
with det.core.init() as core_context:
    trained = []
    if info.latest_checkpoint is not None:
        with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
            trained = [int(line) for line in (path / "trained").read_text().split()]
        print("goes on after", len(trained))
    a = info.trial.hparams["a"]
    gate = pathlib.Path(os.environ["GATE"])
    for op in core_context.searcher.operations():
        while gate.exists() and a != float(os.environ["FIRST"]):
            time.sleep(0.05)
        while len(trained) < op.length:
            trained.append(len(trained) + 1)
            core_context.train.report_training_metrics(trained[-1], {"loss": a})
        core_context.train.report_validation_metrics(op.length, {"x": a})
        with core_context.checkpoint.store_path({"steps_completed": op.length}) as (path, uuid):
            (path / "trained").write_text(" ".join(map(str, trained)))
        op.report_completed(a)
    print("trained", *trained)
"""

ASHA = """
name: rungs
entrypoint: python3 script.py
hyperparameters:
  a: {type: double, minval: 0, maxval: 1}
searcher:
  name: async_halving
  metric: x
  num_rungs: 2
  divisor: 3
  max_trials: 6
  max_concurrent_trials: 1
  max_length: {batches: 6}
reproducibility: {experiment_seed: %d}
max_restarts: 0
"""


def holders(session: Session) -> list[str]:
    """The allocations that hold a slot, by the service's list of agents."""
    agents = session.get("/api/v1/agents")["agents"]
    slots = [slot for agent in agents for slot in agent["slots"].values()]
    return sorted({slot["container"]["id"] for slot in slots if slot["container"]})


def lines(session: Session, trial_id: int, first_word: str) -> list[list[str]]:
    """The remaining words of the lines of the trial's log that begin with ``first_word``."""
    logs = [entry["log"].split() for entry in session.stream(f"/api/v1/trials/{trial_id}/logs")]
    return [words[1:] for words in logs if words and words[0] == first_word]


def seed_where(config: str, good: Callable[[Any], bool], **how: Any) -> int:
    """A seed whose simulated trials are ``good``."""
    for seed in range(1000):
        if good(simulate(yaml.safe_load(config % seed), workers=1, **how).trials):
            return seed
    raise AssertionError("no such seed")


def sample(hparams: dict[str, Any], length: int, trial: int) -> float:
    return float(hparams["a"])


def test_a_trial_that_waits_for_its_promotion_holds_nothing(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    # The first trial waits while the second and third train, and is then promoted.
    seed = seed_where(
        ASHA,
        lambda trials: (
            trials[0].lengths == [2, 6] and trials[1].lengths == trials[2].lengths == [2]
        ),
        metric=sample,
    )
    expected = simulate(yaml.safe_load(ASHA % seed), metric=sample, workers=1).trials
    gate = tmp_path / "gate"
    gate.touch()
    config = ASHA % seed + (
        f"environment: {{environment_variables: ['GATE={gate}', "
        f"'FIRST={expected[0].hparams['a']!r}']}}\n"
    )
    experiment = cluster.submit(tmp_path, config, script_py=PROMOTED)
    session, prefect = client(cluster)._session, Prefect(cluster)

    # The second trial has a slot and holds still.
    until(
        "the second trial running",
        lambda: [row["state"] for row in cluster.trials(experiment)][1:],
        equals=["RUNNING"],
    )
    first, second = cluster.trials(experiment)
    waiting = until(
        "the first process", lambda: next(iter(lines(session, first["id"], "process")), None)
    )
    until("its end", lambda: not is_alive(int(waiting[0])))
    assert cluster.trials(experiment)[0]["state"] == "ACTIVE"  # neither queued nor running
    (holder,) = until(
        "the one holder of a slot",
        lambda: [one for one in holders(session) if one.startswith(f"{experiment}.")],
    )
    assert holder == f"{experiment}.{second['requestId']}.1"
    assert not list((cluster.data_dir / "agent").rglob(f"*{first['requestId']}*"))
    run = until(
        "the trial's run",
        lambda: session.get(f"/api/v1/trials/{first['id']}")["trial"]["flowRunId"],
    )
    shown = until(
        "the run paused",
        lambda: (now := prefect.call(f"/flow_runs/{run}"))["state_name"] == "Paused" and now,
    )
    assert shown["state"]["message"] == "waits for the searcher's next operation"

    gate.unlink()
    assert cluster.wait(experiment) == "COMPLETED"
    found = cluster.trials(experiment)
    assert [(t["requestId"], t["hparams"], t["seed"]) for t in found] == [
        (t.request_id, t.hparams, t.seed) for t in expected
    ]
    assert {(t["state"], t["restarts"]) for t in found} == {("COMPLETED", 0)}
    for trial, simulated in zip(found, expected, strict=True):
        described = cluster.json("trial", "describe", str(trial["id"]), "--metrics")
        steps = {
            kind: [row["totalBatches"] for row in described["workloads"] if row["kind"] == kind]
            for kind in ("training", "validation")
        }
        assert steps["validation"] == simulated.lengths
        assert steps["training"] == list(range(1, simulated.lengths[-1] + 1))
    # The promoted trial went on from its checkpoint, as the second leg of the same run.
    assert lines(session, first["id"], "goes") == [["on", "after", "2"]]
    assert lines(session, first["id"], "trained") == [["1", "2"], list("123456")]
    ended = prefect.wait(run)
    assert (ended["state_type"], ended["run_count"]) == ("COMPLETED", 2)


LIMITS = (0.25, 0.75)
FAILING = """
import sys
import determined as det
info = det.get_cluster_info()
a = info.trial.hparams["a"]
with det.core.init() as core_context:
    for op in core_context.searcher.operations():
        if a < 0.25:
            raise det.InvalidHP("too small")
        if a > 0.75:
            sys.exit(3)
        core_context.train.report_validation_metrics(op.length, {"x": a})
        with core_context.checkpoint.store_path({"steps_completed": op.length}) as (path, uuid):
            (path / "nothing").touch()
        op.report_completed(a)
"""


def exits(hparams: dict[str, Any], length: int, trial: int) -> float | ExitReason:
    low, high = LIMITS
    if hparams["a"] < low:
        return ExitReason.INVALID_HP
    return ExitReason.ERRORED if hparams["a"] > high else float(hparams["a"])


def test_invalid_samples_are_replaced_and_failed_ones_count_as_worst(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    seed = seed_where(
        ASHA,
        lambda trials: (
            [t.exited for t in trials].count("INVALID_HP") == 2
            and [t.exited for t in trials].count("ERRORED") == 2
            and sum(len(t.lengths) == 2 for t in trials) == 2
        ),
        metric=exits,
    )
    expected = simulate(yaml.safe_load(ASHA % seed), metric=exits, workers=1).trials
    assert len(expected) == 8  # six, and two for those that were invalid
    experiment = cluster.submit(tmp_path, ASHA % seed, script_py=FAILING)
    assert cluster.wait(experiment) == "COMPLETED"
    found = cluster.trials(experiment)
    assert [(t["hparams"], t["seed"]) for t in found] == [(t.hparams, t.seed) for t in expected]
    session = client(cluster)._session
    for trial, simulated in zip(found, expected, strict=True):
        reason = session.get(f"/api/v1/trials/{trial['id']}")["trial"]["reason"]
        if simulated.exited == "INVALID_HP":
            assert (trial["state"], "invalid" in reason) == ("COMPLETED", True)
        else:
            assert trial["state"] == ("ERROR" if simulated.exited else "COMPLETED")
            assert trial["totalBatchesProcessed"] == (simulated.lengths or [0])[-1]


REPORTS = """
name: rungs-by-time
entrypoint: python3 script.py
hyperparameters:
  a: {type: double, minval: 0, maxval: 1}
searcher:
  name: async_halving
  metric: x
  num_rungs: 2
  divisor: 3
  max_trials: 6
  max_concurrent_trials: 1
  time_metric: steps
  max_time: 6
reproducibility: {experiment_seed: %d}
max_restarts: 0
"""

STOPPED = """
import os, time
import determined as det
info = det.get_cluster_info()
a = info.trial.hparams["a"]
stopped = [float(word) for word in os.environ["STOPPED"].split()]
with det.core.init() as core_context:
    for op in core_context.searcher.operations():
        for step in range(1, op.length + 1):
            core_context.train.report_validation_metrics(step, {"x": a, "steps": step})
            deadline = time.monotonic() + 240
            while step == 2 and a in stopped and time.monotonic() < deadline:
                if core_context.preempt.should_preempt():
                    break
                time.sleep(0.02)
            if core_context.preempt.should_preempt():
                print("preempted after", step)
                break
        else:
            op.report_completed(a)
            continue
        break
"""


def test_a_stop_reaches_the_trial_as_a_preemption_and_completes_it(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    seed = seed_where(
        REPORTS,
        lambda trials: sorted(t.lengths[-1] for t in trials) == [2, 2, 2, 6, 6, 6],
        metric=sample,
    )
    expected = simulate(yaml.safe_load(REPORTS % seed), metric=sample, workers=1).trials
    stopped = [repr(t.hparams["a"]) for t in expected if t.lengths[-1] == 2]
    config = REPORTS % seed + (
        f"environment: {{environment_variables: ['STOPPED={' '.join(stopped)}']}}\n"
    )
    experiment = cluster.submit(tmp_path, config, script_py=STOPPED)
    assert cluster.wait(experiment) == "COMPLETED"
    found = cluster.trials(experiment)
    assert [(t["hparams"], t["seed"]) for t in found] == [(t.hparams, t.seed) for t in expected]
    assert {(t["state"], t["restarts"]) for t in found} == {("COMPLETED", 0)}
    session = client(cluster)._session
    for trial, simulated in zip(found, expected, strict=True):
        assert trial["totalBatchesProcessed"] == simulated.lengths[-1]
        preempted = lines(session, trial["id"], "preempted")
        if simulated.lengths[-1] == 2:
            assert preempted == [["after", "2"]]
            reason = session.get(f"/api/v1/trials/{trial['id']}")["trial"]["reason"]
            assert reason == "stopped early by the searcher"


def test_the_digits_example_in_both_forms(cluster: LocalCluster) -> None:
    folder = ROOT / "examples/digits"
    configs = [
        yaml.safe_load((folder / f"adaptive{form}.yaml").read_text()) for form in ("", "-time")
    ]
    assert configs[0]["hyperparameters"] == configs[1]["hyperparameters"]

    def run(form: str, *options: str) -> list[dict[str, Any]]:
        config = folder / f"adaptive{form}.yaml"
        cluster.det("flow", "run", str(config), str(folder), *options, timeout=280)
        experiment = max(row["id"] for row in cluster.json("experiment", "list"))
        return cluster.trials(experiment)

    operations = run("")
    # Longer than in the example: on a busy machine a trial may end before it hears that it is given up.
    longer = ("--config", "searcher.max_time=27")
    reports = run("-time", "--config", "searcher.max_trials=12", *longer)
    samples = []
    for found, accuracy, epochs in ((operations, 0.95, 9), (reports, 0.9, 27)):
        assert {trial["state"] for trial in found} == {"COMPLETED"}
        assert max(trial["totalBatchesProcessed"] for trial in found) == epochs
        assert max(trial["searcherMetricValue"] for trial in found) >= accuracy
        samples.append([(trial["hparams"], trial["seed"]) for trial in found])
    assert len(samples[0]) == 32
    assert samples[1] == samples[0][:12]
    # Many trials were given up early.
    assert sum(trial["totalBatchesProcessed"] for trial in operations) < 9 * 32 * 0.75
    assert sum(trial["totalBatchesProcessed"] for trial in reports) < 27 * 12

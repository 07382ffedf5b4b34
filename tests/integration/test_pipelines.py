"""A pipeline of three steps on the real cluster: the second is killed and resumed, and so is its flow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import yaml

from determined.experimental import pipeline
from tests.integration.prefect_server import Prefect
from tests.local_cluster import LocalCluster
from tests.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples/pipeline"
# Trains on once the file is there.
SCRIPT = """
import pathlib, sys, time
import determined as det
info = det.get_cluster_info()
with det.core.init() as core_context:
    hparams = info.trial.hparams
    while not pathlib.Path(hparams["wait"]).exists():
        time.sleep(0.05)
    for op in core_context.searcher.operations():
        print("begins with", info.latest_checkpoint, flush=True)
        core_context.train.report_validation_metrics(op.length, {"loss": hparams["loss"]})
        with core_context.checkpoint.store_path({"steps_completed": op.length}) as (path, _):
            (path / "state").write_text("x")
        op.report_completed(hparams["loss"])
"""


def step(name: str, wait: Path, **more: Any) -> pipeline.Step:
    config = {
        "name": name,
        "entrypoint": "python3 script.py",
        "hyperparameters": {"wait": str(wait), "loss": 0.5},
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
        "max_restarts": 0,
    }
    return pipeline.Step(name, config, wait.parent / "model", **more)


def kill_flow(cluster: LocalCluster, flow_run_id: str) -> None:
    """``kill -9`` of the flow's process, found in the agent's records."""

    def record() -> Path | None:
        found = (cluster.data_dir / "agent" / "flow_runs").glob("*.json")
        return next((path for path in found if flow_run_id in path.name), None)

    path = until("the flow", record)
    psutil.Process(json.loads(path.read_text())["pid"]).kill()


def test_the_second_step_is_killed_and_resumed_and_so_is_the_flow(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/script.py").write_text(SCRIPT)
    now, later = tmp_path / "now", tmp_path / "later"
    now.touch()
    first = step("first", now)
    second = step(
        "second",
        later,
        overrides={"searcher.source_checkpoint_uuid": first.best.checkpoint},
    )
    third = step(
        "third",
        now,
        for_each=[0.1, 0.2],
        overrides={
            "hyperparameters.loss": pipeline.item,
            "hyperparameters.before": second.best.metrics.loss,
        },
    )
    good = pipeline.Approval("good", "Good enough?", needs=[third])
    publish = pipeline.Promotion("publish", "of-pipeline", third.best.checkpoint, needs=[good])
    session = cluster.session()
    steps = [first, second, third, good, publish]
    run = pipeline.send(session, pipeline.plan(pipeline.Pipeline("three", steps)))

    def running() -> int | None:
        """The experiment of the second step."""
        listed = run.describe()["steps"][1]["experiments"]
        return next((int(one["id"]) for one in listed if one["state"] == "RUNNING"), None)

    killed = until("the second step", running, show=run.describe)
    assert killed is not None
    cluster.det("experiment", "kill", str(killed))
    assert cluster.det("pipeline", "wait", str(run.id), check=False).returncode == 1
    failed = run.describe()
    states = [one["state"] for one in failed["steps"]]
    assert states == ["COMPLETED", "FAILED", "SKIPPED", "SKIPPED", "SKIPPED"]
    assert failed["steps"][1]["reason"].endswith("was canceled: killed by the user")
    cluster.det("pipeline", "resume", str(run.id), "--detach")
    again = until("the second step again", running, show=run.describe)
    assert again not in (None, killed)
    # The flow is killed; nothing is lost, and its run goes on.
    kill_flow(cluster, failed["flowRunId"])
    later.touch()

    def asks() -> bool:
        return str(run.describe()["state"]) == "WAITING_FOR_APPROVAL"

    until("the question", asks, show=run.describe)
    # No process waits for the answer.
    prefect = Prefect(cluster)
    prefect.wait(failed["flowRunId"])
    cluster.det("pipeline", "approve", str(run.id))
    ended = run.wait()
    assert ended["state"] == "COMPLETED", ended
    described = cluster.json("model", "describe", "of-pipeline", "--version", "champion")
    promoted = described["modelVersion"]["checkpoint"]["uuid"]
    assert promoted == ended["steps"][2]["experiments"][0]["best"]["checkpoint"]
    assert ended["flowRunId"] == failed["flowRunId"]
    first_now, second_now, third_now, *_ = ended["steps"]
    assert first_now["experiments"] == failed["steps"][0]["experiments"]
    assert [one["id"] for one in second_now["earlierExperiments"]] == [killed]
    uuid = first_now["experiments"][0]["best"]["checkpoint"]
    assert f"begins with {uuid}" in cluster.logs(second_now["experiments"][0]["id"])
    best = [one["best"]["metric"] for one in third_now["experiments"]]
    assert best == [0.1, 0.2]
    assert third_now["experiments"][0]["best"]["hparams"]["before"] == 0.5
    # In Prefect it is one run, with every experiment as a subflow.
    prefect.wait(ended["flowRunId"])
    of = {"flow_runs": {"parent_flow_run_id": {"any_": [ended["flowRunId"]]}}}
    names = {one["name"] for one in prefect.call("/flow_runs/filter", of)}
    numbers = [one["id"] for step in ended["steps"] for one in step["experiments"]]
    assert {name.rpartition("#")[2] for name in names} == {str(n) for n in [*numbers, killed]}


def test_a_pipeline_runs_again_from_prefects_page(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/script.py").write_text(SCRIPT)
    now = tmp_path / "now"
    now.touch()
    session = cluster.session()
    only = step("only", now)
    better = step("better", now, when=f"{only.best.metrics.loss} < 0.1")
    run = pipeline.send(session, pipeline.plan(pipeline.Pipeline("again", [only, better])))
    ended = run.wait()
    assert (ended["state"], ended["reason"]) == ("COMPLETED", "1 of 2 steps completed, 1 skipped")
    prefect = Prefect(cluster)
    deployment = prefect.deployment("pipeline/pipeline")
    begun = prefect.call(
        f"/deployments/{deployment['id']}/create_flow_run", {"parameters": {"again": run.id}}
    )
    assert prefect.wait(begun["id"])["state_type"] == "COMPLETED"
    newest = pipeline.read_pipelines(session)[0]
    assert (newest["againOf"], newest["flowRunId"]) == (run.id, begun["id"])
    assert newest["state"] == "COMPLETED"


EVALUATE = """
def evaluate(checkpoint, hparams):
    assert (checkpoint / "state").read_text() == "x"
    return {"score": [1 - hparams["loss"]] * 20}
"""
PRESENT = "import pathlib, sys; sys.exit(not pathlib.Path('script.py').exists())"


def test_a_command_lets_it_go_on_and_only_a_better_model_is_promoted(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    model, now = tmp_path / "model", tmp_path / "now"
    model.mkdir()
    (model / "script.py").write_text(SCRIPT)
    (model / "scoring.py").write_text(EVALUATE)
    now.touch()
    session = cluster.session()
    check = pipeline.Command("check", ["python3", "-c", PRESENT], model)
    only = step("only", now, needs=[check])
    score = pipeline.Evaluation(
        "score",
        "scoring:evaluate",
        only.best.checkpoint,
        model,
        against="compared",
        rule={"metric": "score"},
    )
    publish = pipeline.Promotion("publish", comparison=score)
    steps = [check, only, score, publish]
    run = pipeline.send(session, pipeline.plan(pipeline.Pipeline("compared", steps)))
    first = run.wait()
    assert first["state"] == "COMPLETED", first
    assert first["steps"][3]["reason"] == "there is no champion yet: score 0.5"
    assert first["steps"][2]["experiments"][0]["best"]["metrics"]["better"] is True
    again = run.again().wait()
    assert again["state"] == "COMPLETED", again
    assert "not above the least gain 0" in again["steps"][3]["reason"]
    described = cluster.json("model", "describe", "compared", "--version", "champion")
    assert described["modelVersion"]["version"] == 1
    # A command that fails is the end of it.
    wrong = pipeline.Command("wrong", "exit 3")
    failed = pipeline.Pipeline("wrong", [wrong, step("then", now, needs=[wrong])])
    ended = pipeline.send(session, pipeline.plan(failed)).wait()
    assert [one["state"] for one in ended["steps"]] == ["FAILED", "SKIPPED"]
    (task,) = ended["steps"][0]["experiments"]
    assert ended["steps"][0]["reason"].startswith(f"task {task['taskId']} failed: ")


def test_the_example_is_without_mistakes() -> None:
    planned = pipeline.plan(EXAMPLE / "pipeline.yaml", {"epochs": 2})
    assert [(one.name, one.needs) for one in planned.plan.steps] == [
        ("search", ()),
        ("folds", ("search",)),
        ("final", ("search", "folds")),
    ]
    given = yaml.safe_load((EXAMPLE / "pipeline.yaml").read_text())
    assert given["params"] == {"epochs": 6}

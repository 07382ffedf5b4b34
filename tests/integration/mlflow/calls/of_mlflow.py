"""Each function of ``mlflow`` once. Functions that ask no server are called, too, except a few that would
read the keyboard or have no input."""

from __future__ import annotations

import io
import sys
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.entities import Feedback

from tests.integration.mlflow.calls.of_client import TEMPLATE
from tests.integration.mlflow.calls.side import MODEL, Call, Side, active

NOT_CALLED = {
    "login": "reads the keyboard, and knows Databricks alone",
    "import_checkpoints": "reads volumes of Databricks alone",
    "test": "is pytest's name for `mlflow.test`, a decorator of its plugin",
}


def _seen(s: Side, of: str = "run") -> Any:
    """The run of that name as the server has it."""
    found = s.client.get_run(s.kept[of])
    return found.data


def _files(s: Side, path: str | None = None) -> list[str]:
    return [one.path for one in s.client.list_artifacts(s.kept["run"], path)]


def _started(s: Side) -> Any:
    mlflow.set_experiment(experiment_id=s.experiment)
    with mlflow.start_run(
        experiment_id=s.experiment, run_name="outer", tags={"a": "b"}, description="said"
    ) as outer:
        s.kept["run"] = outer.info.run_id
        with mlflow.start_run(experiment_id=s.experiment, run_name="inner", nested=True) as inner:
            parent = inner.data.tags["mlflow.parentRunId"] == outer.info.run_id
    with mlflow.start_run(run_id=outer.info.run_id) as resumed:
        status = s.client.get_run(resumed.info.run_id).info.status
    return parent, status, s.client.get_run(outer.info.run_id)


def _ended(s: Side) -> Any:
    run = mlflow.start_run(experiment_id=s.experiment, run_name="ended")
    mlflow.end_run("FAILED")
    return s.client.get_run(run.info.run_id).info


def _in_run(log: Any, read: Any) -> Call:
    """Logs in the run of before, resumed, and reads it afterwards."""

    def call(s: Side) -> Any:
        with mlflow.start_run(run_id=s.kept["run"]):
            found = log(s)
        return found, read(s)

    return call


def _active_of(read: Any) -> Call:
    def call(s: Side) -> Any:
        with active(s):
            return read(s)

    return call


def _data() -> Any:
    return mlflow.data.from_numpy(np.arange(6.0).reshape(3, 2), name="six")


def _figure(s: Side) -> Any:
    from matplotlib.figure import Figure

    mlflow.log_figure(Figure(), "figures/empty.png")


def _table(s: Side) -> Any:
    mlflow.set_experiment(experiment_id=s.experiment)
    return mlflow.load_table("t.json", [s.kept["run"]])


def _model() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression().fit([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1])


def _autologged(s: Side) -> Any:
    mlflow.set_experiment(experiment_id=s.experiment)
    mlflow.autolog(silent=True, log_models=False, log_datasets=False)
    try:
        _model()
    finally:
        mlflow.autolog(disable=True, silent=True)
    run = mlflow.last_active_run()
    assert run is not None
    found = s.client.get_run(run.info.run_id)
    return sorted(found.data.metrics), found.data.params, found.info.status


def _evaluated(s: Side) -> Any:
    frame = pd.DataFrame({"x": [0.0, 1.0, 2.0, 3.0], "y": [0, 0, 1, 1], "said": [0, 0, 1, 1]})
    with active(s, "evaluated") as run:
        found = mlflow.evaluate(
            data=frame,
            targets="y",
            predictions="said",
            model_type="classifier",
            evaluator_config={"log_explainer": False},
        )
    kept = s.client.get_run(run.info.run_id).data.metrics
    return sorted(found.metrics), sorted(kept)


def _project(s: Side) -> Any:
    folder = s.folder / "project"
    folder.mkdir(exist_ok=True)
    (folder / "MLproject").write_text(
        f"name: tiny\nentry_points:\n  main:\n    command: {sys.executable} -c 'print(1)'\n"
    )
    done = mlflow.run(str(folder), experiment_id=s.experiment, env_manager="local", run_name="ran")
    found = s.client.get_run(done.run_id)
    return found.info.status, found.info.run_name, sorted(found.data.tags)


def _registered(s: Side) -> Any:
    made = mlflow.register_model(f"models:/{s.model}", MODEL, tags={"c": "d"})
    return made.name, made.version, made.tags


def _external(s: Side) -> Any:
    return mlflow.create_external_model(
        "external", s.run, {"a": "b"}, {"c": "d"}, "net", s.experiment
    )


def _initialized(s: Side) -> Any:
    made = mlflow.initialize_logged_model("begun", s.run, experiment_id=s.experiment)
    s.kept["begun"] = made.model_id
    return made


def _other(s: Side) -> str:
    if "fluent" not in s.kept:
        s.kept["fluent"] = mlflow.create_experiment("fluent", tags={"a": "b"})
    return str(s.kept["fluent"])


def _chosen(s: Side) -> Any:
    _other(s)
    return mlflow.set_experiment("fluent")


def _set_uri(s: Side) -> Any:
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri("http://127.0.0.1:9")
    mlflow.set_tracking_uri(before)


def _set_registry(s: Side) -> Any:
    mlflow.set_registry_uri(s.uri)
    return mlflow.get_registry_uri() == s.uri


EXPERIMENTS: dict[str, Call] = {
    "set_tracking_uri": _set_uri,
    "get_tracking_uri": lambda s: mlflow.get_tracking_uri() == s.uri,
    "is_tracking_uri_set": lambda s: mlflow.is_tracking_uri_set(),
    "set_registry_uri": _set_registry,
    "get_registry_uri": lambda s: mlflow.get_registry_uri() == s.uri,
    "create_experiment": lambda s: mlflow.get_experiment(_other(s)),
    "set_experiment": _chosen,
    "get_experiment": lambda s: mlflow.get_experiment(s.experiment).name,
    "get_experiment_by_name": lambda s: mlflow.get_experiment_by_name("fluent"),
    "search_experiments": lambda s: sorted(one.name for one in mlflow.search_experiments()),
    "set_experiment_tag": lambda s: (
        mlflow.set_experiment_tag("k", "v"),
        mlflow.get_experiment(_other(s)).tags,
    ),
    "set_experiment_tags": lambda s: (
        mlflow.set_experiment_tags({"l": "1", "m": "2"}),
        mlflow.get_experiment(_other(s)).tags,
    ),
    "delete_experiment_tag": lambda s: (
        mlflow.delete_experiment_tag("k"),
        mlflow.get_experiment(_other(s)).tags,
    ),
    "delete_experiment": lambda s: (
        mlflow.delete_experiment(_other(s)),
        mlflow.get_experiment(_other(s)).lifecycle_stage,
    ),
    "restore_experiment": lambda s: (
        mlflow.restore_experiment(_other(s)),
        mlflow.get_experiment(_other(s)).lifecycle_stage,
    ),
}

RUNS: dict[str, Call] = {
    "start_run": _started,
    "end_run": _ended,
    "active_run": _active_of(lambda s: mlflow.active_run().info.run_name),
    "last_active_run": lambda s: mlflow.last_active_run().info.run_name,
    "get_run": lambda s: mlflow.get_run(s.kept["run"]),
    "get_parent_run": lambda s: mlflow.get_parent_run(s.child).info.run_name,
    "search_runs": lambda s: mlflow.search_runs(
        [s.experiment], "attributes.run_name LIKE '%e%' AND tags.team = 'vision'"
    ),
    "log_metric": _in_run(lambda s: mlflow.log_metric("acc", 0.5, 3), _seen),
    "log_metrics": _in_run(lambda s: mlflow.log_metrics({"val_a": 1, "b": 2.5}, 4), _seen),
    "log_param": _in_run(lambda s: mlflow.log_param("lr", 0.1), _seen),
    "log_params": _in_run(lambda s: mlflow.log_params({"l": [1, 2], "m": None}), _seen),
    "set_tag": _in_run(lambda s: mlflow.set_tag("k", 1), _seen),
    "set_tags": _in_run(lambda s: mlflow.set_tags({"l": "1", "m": 2.5}), _seen),
    "delete_tag": _in_run(lambda s: mlflow.delete_tag("l"), _seen),
    "log_input": _in_run(
        lambda s: mlflow.log_input(_data(), "training", {"a": "b"}),
        lambda s: s.client.get_run(s.kept["run"]).inputs,
    ),
    "log_inputs": _in_run(
        lambda s: mlflow.log_inputs([_data(), _data()], ["training", "testing"], [None, None]),
        lambda s: s.client.get_run(s.kept["run"]).inputs,
    ),
    "log_artifact": _in_run(
        lambda s: mlflow.log_artifact(str(s.folder / "sent" / "a.txt"), "into"),
        lambda s: _files(s, "into"),
    ),
    "log_artifacts": _in_run(
        lambda s: mlflow.log_artifacts(str(s.folder / "sent"), "every"),
        lambda s: _files(s, "every"),
    ),
    "log_dict": _in_run(lambda s: mlflow.log_dict({"a": [1]}, "d.yaml"), _files),
    "log_text": _in_run(lambda s: mlflow.log_text("said", "t.txt"), _files),
    "log_stream": _in_run(lambda s: mlflow.log_stream(io.BytesIO(b"bytes"), "s.bin"), _files),
    "log_figure": _in_run(_figure, lambda s: _files(s, "figures")),
    "log_image": _in_run(
        lambda s: mlflow.log_image(np.zeros((2, 2), dtype=np.uint8), "black.png"), _files
    ),
    "log_table": _in_run(lambda s: mlflow.log_table({"x": [1], "y": ["a"]}, "t.json"), _files),
    "load_table": _table,
    "get_artifact_uri": _active_of(lambda s: mlflow.get_artifact_uri("x").endswith("/x")),
    "flush_async_logging": lambda s: mlflow.flush_async_logging(),
    "flush_artifact_async_logging": lambda s: mlflow.flush_artifact_async_logging(),
    "delete_run": lambda s: (
        mlflow.delete_run(s.child),
        mlflow.get_run(s.child).info.lifecycle_stage,
    ),
    "restore_run": lambda s: (
        mlflow.restore_run(s.child),
        mlflow.get_run(s.child).info.lifecycle_stage,
    ),
    "enable_system_metrics_logging": lambda s: mlflow.enable_system_metrics_logging(),
    "disable_system_metrics_logging": lambda s: mlflow.disable_system_metrics_logging(),
    "set_system_metrics_node_id": lambda s: mlflow.set_system_metrics_node_id("node"),
    "set_system_metrics_samples_before_logging": lambda s: (
        mlflow.set_system_metrics_samples_before_logging(1)
    ),
    "set_system_metrics_sampling_interval": lambda s: mlflow.set_system_metrics_sampling_interval(
        10
    ),
    "autolog": _autologged,
    "evaluate": _evaluated,
    "validate_evaluation_results": lambda s: mlflow.validate_evaluation_results(
        {}, mlflow.models.EvaluationResult({}, {})
    ),
    "run": _project,
    "doctor": lambda s: mlflow.doctor(),
    "maybe_hint_tracing_skill": lambda s: mlflow.maybe_hint_tracing_skill(),
    "set_telemetry_client": lambda s: mlflow.set_telemetry_client(),
}

MODELS: dict[str, Call] = {
    "initialize_logged_model": _initialized,
    "finalize_logged_model": lambda s: mlflow.finalize_logged_model(s.kept["begun"], "FAILED"),
    "create_external_model": _external,
    "get_logged_model": lambda s: mlflow.get_logged_model(s.model),
    "search_logged_models": lambda s: mlflow.search_logged_models(
        [s.experiment], "name = 'first'", output_format="list"
    ),
    "set_logged_model_tags": lambda s: (
        mlflow.set_logged_model_tags(s.model, {"k": "v"}),
        mlflow.get_logged_model(s.model).tags,
    ),
    "delete_logged_model_tag": lambda s: (
        mlflow.delete_logged_model_tag(s.model, "k"),
        mlflow.get_logged_model(s.model).tags,
    ),
    "log_model_params": lambda s: (
        mlflow.log_model_params({"r": "s"}, s.model),
        mlflow.get_logged_model(s.model).params,
    ),
    "log_outputs": _in_run(
        lambda s: mlflow.log_outputs([mlflow.entities.LoggedModelOutput(s.model, 1)]),
        lambda s: len(s.client.get_run(s.kept["run"]).outputs.model_outputs),
    ),
    "last_logged_model": lambda s: mlflow.last_logged_model(),
    "set_active_model": lambda s: mlflow.set_active_model(model_id=s.model).name,
    "get_active_model_id": lambda s: mlflow.get_active_model_id() == s.model,
    "clear_active_model": lambda s: mlflow.clear_active_model(),
    "register_model": _registered,
    "set_model_version_tag": lambda s: (
        mlflow.set_model_version_tag(MODEL, "1", "k", "v"),
        s.client.get_model_version(MODEL, "1").tags,
    ),
    "search_registered_models": lambda s: mlflow.search_registered_models(
        filter_string=f"name = '{MODEL}'"
    ),
    "search_model_versions": lambda s: mlflow.search_model_versions(
        filter_string=f"name = '{MODEL}'", order_by=["version_number ASC"]
    ),
}


def _log_trace(s: Side) -> Any:
    mlflow.set_experiment(experiment_id=s.experiment)
    s.kept["logged"] = mlflow.log_trace("logged", "in", "out")
    mlflow.flush_trace_async_logging()


def _decorated(s: Side) -> Any:
    @mlflow.trace
    def double(x: int) -> int:
        mlflow.update_current_trace(tags={"k": "v"})
        return 2 * x

    return double(2)


def _with_span(s: Side) -> Any:
    with mlflow.start_span("here") as span:
        return span.name, mlflow.get_current_active_span().name


def _without_context(s: Side) -> Any:
    span = mlflow.start_span_no_context("apart")
    span.end()
    return span.name


def _fed_back(s: Side) -> Any:
    made = mlflow.log_feedback(trace_id=s.kept["logged"], name="good", value=True)
    s.kept["feedback"] = made.assessment_id
    return made.name


def _in_context(s: Side) -> Any:
    with mlflow.context(tags={"a": "b"}):
        return _with_span(s)


def _said(s: Side) -> str:
    return str(s.kept.get("feedback", "a-0"))


TRACES: dict[str, Call] = {
    "log_trace": _log_trace,
    "trace": _decorated,
    "start_span": _with_span,
    "start_span_no_context": _without_context,
    "context": _in_context,
    "update_current_trace": _decorated,
    "get_current_active_span": lambda s: mlflow.get_current_active_span(),
    "get_active_trace_id": lambda s: mlflow.get_active_trace_id(),
    "get_last_active_trace_id": lambda s: bool(mlflow.get_last_active_trace_id()),
    "flush_trace_async_logging": lambda s: mlflow.flush_trace_async_logging(),
    "add_trace": lambda s: mlflow.add_trace(mlflow.get_trace(s.kept["logged"])),
    "get_trace": lambda s: mlflow.get_trace(s.kept["logged"]).info.state,
    "search_traces": lambda s: len(mlflow.search_traces(locations=[s.experiment])) > 0,
    "search_sessions": lambda s: mlflow.search_sessions(locations=[s.experiment]),
    "set_trace_tag": lambda s: mlflow.set_trace_tag(s.kept["logged"], "k", "v"),
    "delete_trace_tag": lambda s: mlflow.delete_trace_tag(s.kept["logged"], "k"),
    "log_feedback": _fed_back,
    "log_assessment": lambda s: (
        mlflow.log_assessment(s.kept["logged"], Feedback(name="fine", value=1)).name
    ),
    "log_expectation": lambda s: (
        mlflow.log_expectation(trace_id=s.kept["logged"], name="right", value="out").name
    ),
    "log_issue": lambda s: (
        mlflow.log_issue(trace_id=s.kept["logged"], issue_id="iss-1", issue_name="odd").name
    ),
    "get_assessment": lambda s: mlflow.get_assessment(s.kept["logged"], _said(s)).name,
    "update_assessment": lambda s: (
        mlflow.update_assessment(
            s.kept["logged"], _said(s), Feedback(name="good", value=False)
        ).name
    ),
    "override_feedback": lambda s: (
        mlflow.override_feedback(trace_id=s.kept["logged"], assessment_id=_said(s), value=True).name
    ),
    "delete_assessment": lambda s: mlflow.delete_assessment(s.kept["logged"], _said(s)),
}

OTHERS: dict[str, Call] = {
    "register_prompt": lambda s: mlflow.register_prompt("fluent", TEMPLATE).version,
    "load_prompt": lambda s: mlflow.load_prompt("fluent", 1).template,
    "search_prompts": lambda s: [one.name for one in mlflow.search_prompts()],
    "set_prompt_alias": lambda s: mlflow.set_prompt_alias("fluent", "best", 1),
    "delete_prompt_alias": lambda s: mlflow.delete_prompt_alias("fluent", "best"),
    "list_workspaces": lambda s: [one.name for one in mlflow.list_workspaces()],
    "get_workspace": lambda s: mlflow.get_workspace("default").name,
    "create_workspace": lambda s: mlflow.create_workspace("team").name,
    "update_workspace": lambda s: mlflow.update_workspace("team", "said").name,
    "delete_workspace": lambda s: mlflow.delete_workspace("team"),
    "set_workspace": lambda s: mlflow.set_workspace(None),
}

CALLS: dict[str, Call] = {**EXPERIMENTS, **RUNS, **MODELS, **OTHERS, **TRACES}

"""Each public method of ``mlflow.MlflowClient`` once. A call that changes something reads it afterwards."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from mlflow.entities import (
    Dataset,
    DatasetInput,
    LoggedModelOutput,
    Metric,
    Param,
    RunTag,
    ViewType,
)
from mlflow.entities.webhook import WebhookEvent

from tests.integration.mlflow.calls.side import EXPERIMENT, MODEL, THEN, Call, Side

matplotlib.use("Agg")

NOWHERE = "http://127.0.0.1:9/nowhere"
TEMPLATE = "What is {{ this }}?"


def _batch(s: Side) -> Any:
    run = s.new_run("batch")
    s.client.log_batch(
        run,
        [Metric("a/b", 1.5, THEN, 0), Metric("a/b", 2.5, THEN + 1, 1), Metric("val_x", 3, THEN, 1)],
        [Param("depth", "3"), Param("text", "as it is"), Param("small", "1e-05")],
        [RunTag("one", "two")],
    )
    return s.client.get_run(run), s.client.get_metric_history(run, "a/b")


def _inputs(s: Side) -> Any:
    data = Dataset("digits", "0123abcd", "local", "{}", "{}", "{}")
    run = s.new_run("inputs")
    s.client.log_inputs(run, [DatasetInput(data, [])])
    return s.client.get_run(run).inputs


def _outputs(s: Side) -> Any:
    run = s.new_run("outputs")
    made = s.client.create_logged_model(s.experiment, "output", run)
    s.client.log_outputs(run, [LoggedModelOutput(made.model_id, 3)])
    return s.client.get_run(run).outputs


def _figure(s: Side) -> Any:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    axes.plot([1, 2])
    s.client.log_figure(s.run, figure, "figures/line.png")
    pyplot.close(figure)
    return [one.path for one in s.client.list_artifacts(s.run, "figures")]


def _image(s: Side) -> Any:
    run = s.new_run("image")
    s.client.log_image(run, np.zeros((4, 4, 3), dtype=np.uint8), "black.png")
    s.client.log_image(
        run, np.zeros((4, 4), dtype=np.uint8), key="grey", step=1, timestamp=THEN, synchronous=True
    )
    return (
        [one.path for one in s.client.list_artifacts(run)],
        len(s.client.list_artifacts(run, "images")),
        s.client.get_run(run).data.tags,
    )


def _table(s: Side) -> Any:
    s.client.log_table(s.run, {"x": [1, 2], "y": ["a", "b"]}, "tables/t.json")
    s.client.log_table(s.run, pd.DataFrame({"x": [3], "y": ["c"]}), "tables/t.json")
    return s.client.load_table(s.experiment, "tables/t.json", [s.run])


def _deleted_run(s: Side) -> Any:
    run = s.kept["gone"] = s.new_run("gone")
    s.client.delete_run(run)
    shown = [
        [one.info.run_name for one in s.client.search_runs([s.experiment], "", view)]
        for view in (ViewType.ACTIVE_ONLY, ViewType.DELETED_ONLY)
    ]
    return s.client.get_run(run).info.lifecycle_stage, "gone" in shown[0], "gone" in shown[1]


def _restored_run(s: Side) -> Any:
    s.client.restore_run(s.kept["gone"])
    return s.client.get_run(s.kept["gone"]).info


def _experiment(s: Side) -> str:
    if "other" not in s.kept:
        s.kept["other"] = s.client.create_experiment("other", tags={"a": "b"})
    return str(s.kept["other"])


def _made_model(s: Side) -> Any:
    s.client.create_registered_model("Other", tags={"x": "y"}, description="another")
    return s.client.get_registered_model("Other")


def _copied(s: Side) -> Any:
    made = s.client.copy_model_version(f"models:/{MODEL}/1", "Copy")
    return made.name, made.version, s.client.get_registered_model("Copy").name


def _second(s: Side) -> Any:
    version = s.new_version()
    s.client.delete_model_version(MODEL, version)
    return version, [one.version for one in s.client.search_model_versions(f"name = '{MODEL}'")]


def _logged(s: Side) -> Any:
    made = s.client.create_logged_model(
        s.experiment, "made", s.owner, tags={"a": "b"}, params={"c": "d"}, model_type="net"
    )
    s.kept["model"] = made.model_id
    return made, len(s.client.get_run(s.owner).outputs.model_outputs)


def _open_model(s: Side) -> str:
    if "open" not in s.kept:
        s.kept["open"] = s.client.create_logged_model(s.experiment, "open", s.owner).model_id
    return str(s.kept["open"])


def _downloaded(s: Side) -> Any:
    target = s.folder / "got"
    target.mkdir(exist_ok=True)
    return Path(s.client.download_artifacts(s.run, "a.txt", str(target))).read_text()


def _names(s: Side, path: str | None = None) -> list[str]:
    return [one.path for one in s.client.list_artifacts(s.run, path)]


def _model_files(s: Side) -> Any:
    return [(one.path, one.file_size) for one in s.client.list_logged_model_artifacts(s.model)]


RUNS: dict[str, Call] = {
    "create_experiment": lambda s: s.client.get_experiment(_experiment(s)),
    "get_experiment": lambda s: s.client.get_experiment(s.experiment),
    "get_experiment_by_name": lambda s: s.client.get_experiment_by_name(EXPERIMENT),
    "search_experiments": lambda s: s.client.search_experiments(
        filter_string=f"name = '{EXPERIMENT}'"
    ),
    "set_experiment_tag": lambda s: (
        s.client.set_experiment_tag(s.experiment, "k", "v"),
        s.client.get_experiment(s.experiment).tags,
    ),
    "delete_experiment_tag": lambda s: (
        s.client.delete_experiment_tag(s.experiment, "k"),
        s.client.get_experiment(s.experiment).tags,
    ),
    "rename_experiment": lambda s: (
        s.client.rename_experiment(_experiment(s), "renamed"),
        s.client.get_experiment_by_name("renamed"),
    ),
    "delete_experiment": lambda s: (
        s.client.delete_experiment(_experiment(s)),
        s.client.get_experiment(_experiment(s)).lifecycle_stage,
    ),
    "restore_experiment": lambda s: (
        s.client.restore_experiment(_experiment(s)),
        s.client.get_experiment(_experiment(s)).lifecycle_stage,
    ),
    "create_run": lambda s: s.client.create_run(
        s.experiment, start_time=THEN, tags={"a": "b"}, run_name="early"
    ),
    "get_run": lambda s: s.client.get_run(s.run),
    "get_parent_run": lambda s: s.client.get_parent_run(s.child).info.run_name,
    "search_runs": lambda s: s.client.search_runs(
        [s.experiment], "metrics.loss < 1 and params.lr = '0.1'", order_by=["metrics.loss ASC"]
    ),
    "get_metric_history": lambda s: s.client.get_metric_history(s.run, "loss"),
    "log_metric": lambda s: (
        s.client.log_metric(s.run, "single", 2.5, THEN, 4),
        s.client.get_metric_history(s.run, "single"),
    ),
    "log_param": lambda s: (
        s.client.log_param(s.run, "layers", 3),
        s.client.get_run(s.run).data.params,
    ),
    "set_tag": lambda s: (s.client.set_tag(s.run, "k", "v"), s.tags()),
    "delete_tag": lambda s: (s.client.delete_tag(s.run, "k"), s.tags()),
    "log_batch": _batch,
    "log_inputs": _inputs,
    "update_run": lambda s: (
        s.client.update_run(s.run, "RUNNING", "renamed"),
        s.client.get_run(s.run).info,
    ),
    "set_terminated": lambda s: (
        s.client.set_terminated(s.run, "KILLED", THEN + 5),
        s.client.get_run(s.run).info,
    ),
    "delete_run": _deleted_run,
    "restore_run": _restored_run,
    "log_artifact": lambda s: (
        s.client.log_artifact(s.run, str(s.folder / "sent" / "a.txt"), "into"),
        _names(s, "into"),
    ),
    "log_artifacts": lambda s: (
        s.client.log_artifacts(s.run, str(s.folder / "sent"), "every"),
        _names(s, "every"),
        _names(s, "every/deep"),
    ),
    "log_dict": lambda s: (s.client.log_dict(s.run, {"a": 1}, "d.json"), _names(s)),
    "log_text": lambda s: (s.client.log_text(s.run, "said", "t.txt"), _names(s)),
    "log_stream": lambda s: (
        s.client.log_stream(s.run, io.BytesIO(b"bytes"), "s.bin"),
        [(one.path, one.file_size) for one in s.client.list_artifacts(s.run)],
    ),
    "log_figure": _figure,
    "log_image": _image,
    "log_table": _table,
    "load_table": lambda s: s.client.load_table(s.experiment, "tables/t.json", [s.run], ["run_id"]),
    "list_artifacts": lambda s: (
        s.client.list_artifacts(s.run),
        len(s.client.list_artifacts(s.owner)),
    ),
    "download_artifacts": _downloaded,
}

MODELS: dict[str, Call] = {
    "create_logged_model": _logged,
    "finalize_logged_model": lambda s: s.client.finalize_logged_model(s.kept["model"], "READY"),
    "get_logged_model": lambda s: s.client.get_logged_model(s.model),
    "search_logged_models": lambda s: s.client.search_logged_models(
        [s.experiment], "name = 'first'"
    ),
    "set_logged_model_tags": lambda s: (
        s.client.set_logged_model_tags(s.model, {"k": "v"}),
        s.client.get_logged_model(s.model).tags,
    ),
    "delete_logged_model_tag": lambda s: (
        s.client.delete_logged_model_tag(s.model, "k"),
        s.client.get_logged_model(s.model).tags,
    ),
    "log_model_params": lambda s: (
        s.client.log_model_params(s.model, {"p": "q"}),
        s.client.get_logged_model(s.model).params,
    ),
    "log_model_artifact": lambda s: (
        s.client.log_model_artifact(_open_model(s), str(s.folder / "sent" / "a.txt")),
        [one.path for one in s.client.list_logged_model_artifacts(_open_model(s))],
    ),
    "log_model_artifacts": lambda s: (
        s.client.log_model_artifacts(_open_model(s), str(s.folder / "sent")),
        [one.path for one in s.client.list_logged_model_artifacts(_open_model(s))],
    ),
    "list_logged_model_artifacts": _model_files,
    "log_outputs": _outputs,
    "delete_logged_model": lambda s: (
        s.client.delete_logged_model(s.kept["model"]),
        [one.name for one in s.client.search_logged_models([s.experiment], "name = 'made'")],
    ),
    "create_registered_model": _made_model,
    "get_registered_model": lambda s: s.client.get_registered_model(MODEL),
    "search_registered_models": lambda s: s.client.search_registered_models(f"name = '{MODEL}'"),
    "update_registered_model": lambda s: s.client.update_registered_model("Other", "said anew"),
    "rename_registered_model": lambda s: s.client.rename_registered_model("Other", "Another"),
    "set_registered_model_tag": lambda s: (
        s.client.set_registered_model_tag(MODEL, "k", "v"),
        s.client.get_registered_model(MODEL).tags,
    ),
    "delete_registered_model_tag": lambda s: (
        s.client.delete_registered_model_tag(MODEL, "k"),
        s.client.get_registered_model(MODEL).tags,
    ),
    "delete_registered_model": lambda s: (
        s.client.delete_registered_model("Another"),
        s.client.search_registered_models("name = 'Another'"),
    ),
    "create_model_version": lambda s: s.client.create_model_version(
        MODEL,
        f"models:/{s.model}",
        s.run,
        tags={"a": "b"},
        description="said",
        model_id=s.model,
    ),
    "get_model_version": lambda s: s.client.get_model_version(MODEL, "1"),
    "search_model_versions": lambda s: s.client.search_model_versions(f"name = '{MODEL}'"),
    "update_model_version": lambda s: s.client.update_model_version(MODEL, "1", "of version 1"),
    "set_model_version_tag": lambda s: (
        s.client.set_model_version_tag(MODEL, "1", "k", "v"),
        s.client.get_model_version(MODEL, "1").tags,
    ),
    "delete_model_version_tag": lambda s: (
        s.client.delete_model_version_tag(MODEL, "1", "k"),
        s.client.get_model_version(MODEL, "1").tags,
    ),
    "set_registered_model_alias": lambda s: (
        s.client.set_registered_model_alias(MODEL, "champion", "1"),
        s.client.get_registered_model(MODEL).aliases,
    ),
    "get_model_version_by_alias": lambda s: s.client.get_model_version_by_alias(MODEL, "champion"),
    "delete_registered_model_alias": lambda s: (
        s.client.delete_registered_model_alias(MODEL, "champion"),
        s.client.get_registered_model(MODEL).aliases,
    ),
    "get_latest_versions": lambda s: s.client.get_latest_versions(MODEL),
    "get_model_version_download_uri": lambda s: {
        "source": s.client.get_model_version_download_uri(MODEL, "1")
    },
    "get_model_version_stages": lambda s: s.client.get_model_version_stages(MODEL, "1"),
    "transition_model_version_stage": lambda s: s.client.transition_model_version_stage(
        MODEL, "1", "Staging"
    ),
    "copy_model_version": _copied,
    "delete_model_version": _second,
}

PROMPTS: dict[str, Call] = {
    "create_prompt": lambda s: s.client.create_prompt("asked"),
    "register_prompt": lambda s: s.client.register_prompt("question", TEMPLATE).version,
    "create_prompt_version": lambda s: s.client.create_prompt_version("asked", TEMPLATE).version,
    "get_prompt": lambda s: s.client.get_prompt("question"),
    "get_prompt_version": lambda s: s.client.get_prompt_version("question", "1"),
    "load_prompt": lambda s: s.client.load_prompt("question", 1).template,
    "parse_prompt_uri": lambda s: s.client.parse_prompt_uri("prompts:/question/1"),
    "search_prompts": lambda s: [one.name for one in s.client.search_prompts()],
    "search_prompt_versions": lambda s: [
        one.version for one in s.client.search_prompt_versions("question")
    ],
    "set_prompt_tag": lambda s: s.client.set_prompt_tag("question", "k", "v"),
    "delete_prompt_tag": lambda s: s.client.delete_prompt_tag("question", "k"),
    "set_prompt_version_tag": lambda s: s.client.set_prompt_version_tag("question", 1, "k", "v"),
    "delete_prompt_version_tag": lambda s: s.client.delete_prompt_version_tag("question", 1, "k"),
    "set_prompt_alias": lambda s: s.client.set_prompt_alias("question", "best", 1),
    "get_prompt_version_by_alias": lambda s: (
        s.client.get_prompt_version_by_alias("question", "best").version
    ),
    "delete_prompt_alias": lambda s: s.client.delete_prompt_alias("question", "best"),
    "link_prompt_version_to_run": lambda s: s.client.link_prompt_version_to_run(
        s.run, "prompts:/question/1"
    ),
    "link_prompt_version_to_model": lambda s: s.client.link_prompt_version_to_model(
        "question", "1", s.model
    ),
    "link_prompt_versions_to_trace": lambda s: s.client.link_prompt_versions_to_trace(
        [], s.kept.get("trace", "tr-0")
    ),
    "list_logged_prompts": lambda s: [one.name for one in s.client.list_logged_prompts(s.run)],
    "detach_prompt_from_run": lambda s: s.client.detach_prompt_from_run(
        s.run, "prompts:/question/1"
    ),
    "delete_prompt_version": lambda s: s.client.delete_prompt_version("question", "1"),
    "delete_prompt": lambda s: s.client.delete_prompt("asked"),
}


def _trace(s: Side) -> Any:
    span = s.client.start_trace("traced", experiment_id=s.experiment)
    s.kept["trace"], s.kept["root"] = span.trace_id, span.span_id
    return span.name


def _span(s: Side) -> Any:
    span = s.client.start_span("inner", s.kept["trace"], s.kept["root"])
    s.kept["span"] = span.span_id
    return span.name


def _got_trace(s: Side) -> Any:
    return s.client.get_trace(s.kept["trace"], display=False, flush=True).info.state


TRACES: dict[str, Call] = {
    "start_trace": _trace,
    "start_span": _span,
    "end_span": lambda s: s.client.end_span(s.kept["trace"], s.kept["span"]),
    "end_trace": lambda s: s.client.end_trace(s.kept["trace"]),
    "get_trace": _got_trace,
    "search_traces": lambda s: len(s.client.search_traces(locations=[s.experiment])),
    "set_trace_tag": lambda s: s.client.set_trace_tag(s.kept["trace"], "k", "v"),
    "delete_trace_tag": lambda s: s.client.delete_trace_tag(s.kept["trace"], "k"),
    "link_traces_to_run": lambda s: s.client.link_traces_to_run([s.kept["trace"]], s.run),
    "unlink_traces_from_run": lambda s: s.client.unlink_traces_from_run([s.kept["trace"]], s.run),
    "delete_traces": lambda s: s.client.delete_traces(s.experiment, trace_ids=[s.kept["trace"]]),
}


def _dataset(s: Side) -> Any:
    made = s.client.create_dataset("questions", [s.experiment], {"a": "b"})
    s.kept["dataset"] = made.dataset_id
    return made.name


def _data(s: Side) -> str:
    return str(s.kept.get("dataset", "d-0"))


def _webhook(s: Side) -> Any:
    made = s.client.create_webhook("hook", "https://192.0.2.1/", ["model_version.created"])
    s.kept["webhook"] = made.webhook_id
    return made.name


def _hook(s: Side) -> str:
    return str(s.kept.get("webhook", "w-0"))


OTHERS: dict[str, Call] = {
    "create_dataset": _dataset,
    "get_dataset": lambda s: s.client.get_dataset(_data(s)).name,
    "search_datasets": lambda s: [one.name for one in s.client.search_datasets([s.experiment])],
    "set_dataset_tags": lambda s: s.client.set_dataset_tags(_data(s), {"k": "v"}),
    "delete_dataset_tag": lambda s: s.client.delete_dataset_tag(_data(s), "k"),
    "add_dataset_to_experiments": lambda s: (
        s.client.add_dataset_to_experiments(_data(s), [_experiment(s)]).name
    ),
    "remove_dataset_from_experiments": lambda s: (
        s.client.remove_dataset_from_experiments(_data(s), [_experiment(s)]).name
    ),
    "delete_dataset": lambda s: s.client.delete_dataset(_data(s)),
    "create_webhook": _webhook,
    "get_webhook": lambda s: s.client.get_webhook(_hook(s)).name,
    "list_webhooks": lambda s: [one.name for one in s.client.list_webhooks()],
    "update_webhook": lambda s: s.client.update_webhook(_hook(s), name="renamed").name,
    "test_webhook": lambda s: (
        s.client.test_webhook(_hook(s), WebhookEvent.from_str("model_version.created")).success
    ),
    "delete_webhook": lambda s: s.client.delete_webhook(_hook(s)),
    "list_workspaces": lambda s: [one.name for one in s.client.list_workspaces()],
    "get_workspace": lambda s: s.client.get_workspace("default").name,
    "get_workspace_store_uri": lambda s: s.client.get_workspace_store_uri() == s.uri,
    "create_workspace": lambda s: s.client.create_workspace("team").name,
    "update_workspace": lambda s: s.client.update_workspace("team", "said").name,
    "delete_workspace": lambda s: s.client.delete_workspace("team"),
}

TOOLS = "io.example/tools"
MCP: dict[str, Call] = {
    "create_mcp_server": lambda s: s.client.create_mcp_server(TOOLS).name,
    "get_mcp_server": lambda s: s.client.get_mcp_server(TOOLS).name,
    "search_mcp_servers": lambda s: [one.name for one in s.client.search_mcp_servers()],
    "update_mcp_server": lambda s: s.client.update_mcp_server(TOOLS, description="said").name,
    "set_mcp_server_tag": lambda s: s.client.set_mcp_server_tag(TOOLS, "k", "v"),
    "delete_mcp_server_tag": lambda s: s.client.delete_mcp_server_tag(TOOLS, "k"),
    "create_mcp_server_version": lambda s: (
        s.client.create_mcp_server_version(
            {"name": TOOLS, "version": "1.0.0", "description": "tools"}
        ).version
    ),
    "get_mcp_server_version": lambda s: s.client.get_mcp_server_version(TOOLS, "1.0.0").version,
    "get_latest_mcp_server_version": lambda s: (
        s.client.get_latest_mcp_server_version(TOOLS).version
    ),
    "search_mcp_server_versions": lambda s: [
        one.version for one in s.client.search_mcp_server_versions(TOOLS)
    ],
    "update_mcp_server_version": lambda s: (
        s.client.update_mcp_server_version(TOOLS, "1.0.0", status="active").version
    ),
    "set_mcp_server_version_tag": lambda s: s.client.set_mcp_server_version_tag(
        TOOLS, "1.0.0", "k", "v"
    ),
    "delete_mcp_server_version_tag": lambda s: s.client.delete_mcp_server_version_tag(
        TOOLS, "1.0.0", "k"
    ),
    "set_mcp_server_alias": lambda s: s.client.set_mcp_server_alias(TOOLS, "best", "1.0.0"),
    "get_mcp_server_version_by_alias": lambda s: (
        s.client.get_mcp_server_version_by_alias(TOOLS, "best").version
    ),
    "create_mcp_access_endpoint": lambda s: _endpoint(s),
    "get_mcp_access_endpoint": lambda s: s.client.get_mcp_access_endpoint(TOOLS, _point(s)).url,
    "search_mcp_access_endpoints": lambda s: [
        one.url for one in s.client.search_mcp_access_endpoints(TOOLS)
    ],
    "update_mcp_access_endpoint": lambda s: (
        s.client.update_mcp_access_endpoint(TOOLS, _point(s), url=f"{NOWHERE}/2").url
    ),
    "refresh_mcp_server_version_tools": lambda s: s.client.refresh_mcp_server_version_tools(
        TOOLS, "1.0.0"
    ),
    "delete_mcp_access_endpoint": lambda s: s.client.delete_mcp_access_endpoint(TOOLS, _point(s)),
    "delete_mcp_server_alias": lambda s: s.client.delete_mcp_server_alias(TOOLS, "best"),
    "delete_mcp_server_version": lambda s: (
        s.client.update_mcp_server_version(TOOLS, "1.0.0", status="deprecated").version,
        s.client.delete_mcp_server_version(TOOLS, "1.0.0"),
    ),
    "delete_mcp_server": lambda s: s.client.delete_mcp_server(TOOLS),
}


def _endpoint(s: Side) -> Any:
    made = s.client.create_mcp_access_endpoint(TOOLS, NOWHERE, server_version="1.0.0")
    s.kept["endpoint"] = made.id
    return made.url


def _point(s: Side) -> str:
    return str(s.kept.get("endpoint", "e-0"))


CALLS: dict[str, Call] = {**RUNS, **MODELS, **PROMPTS, **OTHERS, **MCP, **TRACES}

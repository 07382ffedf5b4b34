"""Cases of MLflow's test suites that the other calls leave out: long values, histories, orders of values that
are not numbers, data sets, filters of the registry, GraphQL."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import requests
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag, ViewType
from mlflow.exceptions import MlflowException

from tests.integration.mlflow.calls.side import THEN, Call, Side, plain

API = "api/2.0/mlflow"
PAGES = "ajax-api/2.0/mlflow"


def _asked(s: Side, method: str, path: str, **more: Any) -> Any:
    headers = {"Authorization": f"Bearer {os.environ.get('MLFLOW_TRACKING_TOKEN', '')}"}
    return requests.request(method, f"{s.uri}/{path}", headers=headers, timeout=60, **more)


def _said(answer: Any) -> Any:
    """The status, and the code of a refusal."""
    try:
        found = answer.json()
    except ValueError:
        found = {}
    return [answer.status_code, found.get("error_code", "") if isinstance(found, dict) else ""]


def _refusal(refusal: MlflowException) -> Any:
    return {"refused": refusal.error_code}


def _tried(*calls: Callable[[], Any]) -> list[Any]:
    """The result of each, or the code with which it is refused."""
    found: list[Any] = []
    for call in calls:
        try:
            found.append(call())
        except MlflowException as refusal:
            found.append(_refusal(refusal))
    return found


def _each(values: Iterable[Any], call: Callable[[Any], Any]) -> list[Any]:
    """The call's result for each value, or the code with which it is refused."""
    return _tried(*(partial(call, value) for value in values))


def _run(s: Side, name: str, **more: Any) -> str:
    return str(s.client.create_run(s.experiment, run_name=name, **more).info.run_id)


# Runs.


def _names_of_runs(s: Side) -> Any:
    client, name = s.client, "mlflow.runName"
    seen = []

    def look(run: str) -> None:
        found = client.get_run(run)
        seen.append([found.info.run_name, found.data.tags.get(name)])

    run = _run(s, "first")
    look(run)
    client.update_run(run, name="second")
    look(run)
    client.update_run(run, "FINISHED")
    look(run)
    client.set_tag(run, name, "third")
    look(run)
    client.log_batch(run, tags=[RunTag(name, "fourth")])
    look(run)
    client.delete_tag(run, name)
    look(run)
    client.update_run(run, name="fifth")
    look(run)
    look(client.create_run(s.experiment, tags={name: "by tag"}).info.run_id)
    unnamed = client.create_run(s.experiment).info.run_name
    both = _tried(
        lambda: client.create_run(s.experiment, run_name="a", tags={name: "b"}).info.run_name
    )
    return seen, len(unnamed.split("-")), both


def _latest_of_many(s: Side) -> Any:
    """The largest step counts, then the largest time, then the largest value."""
    run = _run(s, "latest of many")
    points = [(0, 100, 1000), (3, 40, 100), (3, 50, 10), (3, 50, 20), (3, 50, 20), (-3, 900, 900)]
    for step, moment, value in reversed(points):
        s.client.log_metric(run, "m", value, moment, step)
    history = {
        (one.step, one.timestamp, one.value) for one in s.client.get_metric_history(run, "m")
    }
    return s.client.get_run(run).data.metrics, sorted(history)


def _deleted_twice(s: Side) -> Any:
    run = _run(s, "deleted twice")
    stages = []
    for act in (
        s.client.restore_run,
        s.client.delete_run,
        s.client.delete_run,
        s.client.restore_run,
    ):
        stages += _each([run], act)
        stages.append(s.client.get_run(run).info.lifecycle_stage)
    return stages


def _long_values(s: Side) -> Any:
    run = _run(s, "long values")
    client = s.client
    experiment = client.create_experiment("long values")
    body = {"run_id": run, "key": "k"}
    found = [
        _said(_asked(s, "POST", f"{API}/runs/{path}", json={**body, "value": "v" * size}))
        for path, sizes in (("log-parameter", (6000, 6001)), ("set-tag", (5000, 8000, 8001)))
        for size in sizes
    ]
    for size in (5000, 5001):
        given = {"experiment_id": experiment, "key": "k", "value": "v" * size}
        found.append(_said(_asked(s, "POST", f"{API}/experiments/set-experiment-tag", json=given)))
    client.delete_experiment(experiment)
    given = {"experiment_id": experiment, "key": "k", "value": "v"}
    return [*found, _said(_asked(s, "POST", f"{API}/experiments/set-experiment-tag", json=given))]


def _batches(s: Side) -> Any:
    run = _run(s, "batches")
    client = s.client
    client.log_batch(run, params=[Param("a", "0"), Param("b", "1")])
    client.log_batch(run, params=[Param("a", "0"), Param("c", "2")])
    refused = _tried(
        lambda: client.log_batch(
            run, [Metric("no", 1.0, THEN, 0)], [Param("a", "other")], [RunTag("no", "x")]
        )
    )
    client.log_batch(run, tags=[RunTag("t", "one"), RunTag("t", "two")])
    client.log_batch(run, [Metric("m", 1, 2, 0), Metric("m", 2, 3, 0)])
    client.log_batch(run, [Metric("m", 1, 2, 0), Metric("m", 2, 3, 0)])
    client.log_batch(run, [Metric(f"many{n}", n, 5, n * 2) for n in range(1000)])
    data = client.get_run(run).data
    history = sorted((p.step, p.timestamp, p.value) for p in client.get_metric_history(run, "m"))
    kept = {key: value for key, value in data.tags.items() if not key.startswith("mlflow.")}
    return refused, data.params, kept, set(history), len(data.metrics)


def _ordered_runs(s: Side) -> Any:
    made = s.client.create_experiment("orders of suites")
    values = [None, math.nan, math.inf, -math.inf, -1000.0, 0.0, 0.0, 1000.0]
    for place, value in enumerate(values):
        run = s.client.create_run(made, run_name=f"{place}", tags={"t": str(place)}).info.run_id
        if value is not None:
            s.client.log_metric(run, "x", value, 1, 0)
        s.client.log_param(run, "p", str(place))
    orders = [
        ["metrics.x asc", "tag.t asc"],
        ["metrics.x asc", "tag.t desc"],
        ["metrics.x DESC", "params.p ASC"],
        ["metrics.x desc", "params.p desc"],
        ["params.`p` DESC"],
        ["attributes.run_name DESC"],
    ]
    return [
        [one.info.run_name for one in s.client.search_runs([made], order_by=order)]
        for order in orders
    ]


def _filtered_runs(s: Side) -> Any:
    made = s.client.create_experiment("filters of suites")
    one, two = (s.client.create_run(made, run_name=f"run_name{n}").info.run_id for n in (1, 2))
    for run, value in ((one, "some value"), (two, "another value")):
        s.client.log_param(run, "generic", value)
        s.client.set_tag(run, "generic", value)
        s.client.log_param(run, "p_a" if run == one else "p_b", "abc" if run == one else "ABC")
    for run, points in (
        (one, [("m_a", 2.0, 2)]),
        (two, [("m_b", 3.0, 2), ("m_b", 4.0, 8), ("m_b", 8.0, 3)]),
    ):
        for key, value, moment in points:
            s.client.log_metric(run, key, value, moment, 0)
    s.client.set_terminated(two, "FAILED")
    names = {one: "one", two: "two"}
    filters = [
        "params.p_a = 'ABC'",
        "params.p_a != 'ABC'",
        "params.generic LIKE '%other%'",
        "params.generic LIKE '%Other%'",
        "params.generic ILIKE '%Other%'",
        "tags.generic LIKE 'other'",
        "tags.generic ILIKE '%Other%' and params.p_b ILIKE 'ab_'",
        "metrics.m_b != -12.0",
        "params.generic = 'some value' and metrics.m_a > 1.0 and params.p_a LIKE 'A%'",
        "attribute.status != 'blah'",
        "attribute.status = 'KILLED'",
        "attributes.`Run name` = 'run_name1'",
        "attributes.`Run Name` = 'run_name2'",
        "tags.`mlflow.runName` = 'run_name2'",
        f"attributes.run_id = '{one}'",
        f"attributes.run_id != '{one}'",
        f"attributes.run_id IN ('{one}')",
        f"attributes.run_id IN ('{one}','{two}')",
        f"run_id NOT IN ('{one}',  '{two}')",
        f"run_name = 'run_name1' AND run_id IN ('{one}')",
        "attributes.created > 1",
        "attributes.Created < 2",
        "attribute.artifact_uri = 'elsewhere'",
        "attribute.artifact_uri != 'elsewhere'",
        f"attribute.artifact_uri LIKE '%/{one}%'",
        "attributes.experiment_id = '1'",
        "attributes.lifecycle_stage = 'ACTIVE'",
    ]

    def found(text: str) -> list[str]:
        return sorted(names[one.info.run_id] for one in s.client.search_runs([made], text))

    return _each(filters, found)


def _histories(s: Side) -> Any:
    runs = [_run(s, f"history {n}") for n in range(3)]
    for place, run in enumerate(runs[:2]):
        for moment, step, value in (
            (1, 2, 10.0),
            (1, 3, 11.0),
            (1, 3, 12.0),
            (2, 3, 12.0),
            (9, -2, 0.0),
        ):
            s.client.log_metric(run, "a", value + place, moment, step)
        for step in range(20):
            s.client.log_metric(run, "b", 10.0, 1, step)
    names = {run: place for place, run in enumerate(runs)}

    def points(path: str, **params: Any) -> Any:
        answer = _asked(s, "GET", f"{PAGES}/metrics/{path}", params=params)
        if answer.status_code != 200:
            return _said(answer)
        # Of several runs the order is that of their ids.
        found = answer.json().get("metrics", [])
        return sorted(
            ([names[p["run_id"]], p["step"], p["timestamp"], p["value"]] for p in found),
            key=lambda point: point[0],
        )

    bulk, spread = "get-history-bulk", "get-history-bulk-interval"
    many = [f"id_{n}" for n in range(1000)]
    return [
        points(bulk, run_id=runs[:1], metric_key="a"),
        points(bulk, run_id=runs, metric_key="a"),
        points(bulk, run_id=runs[:1], metric_key="a", max_results=2),
        points(bulk, metric_key="a"),
        points(bulk, run_id=many, metric_key="a"),
        points(bulk, run_id=runs[:1]),
        points(spread, run_ids=runs[:1], metric_key="b", max_results=5),
        points(spread, run_ids=runs[:2], metric_key="b", max_results=5),
        points(spread, run_ids=runs[:1], metric_key="b", start_step=0, end_step=4, max_results=5),
        points(spread, run_ids=runs[:1], metric_key="b", start_step=4, end_step=0, max_results=5),
        points(spread, run_ids=runs[:1], metric_key="b", start_step=4, max_results=5),
        points(spread, run_ids=runs[:1], metric_key="b", max_results=0),
        points(spread, run_ids=many, metric_key="b"),
        points(spread, metric_key="b"),
        points(spread, run_ids=runs[:1]),
        _tried(lambda: s.client.get_metric_history(runs[2], "a")),
    ]


def _data_sets(s: Side) -> Any:
    first, second = (s.client.create_experiment(f"data sets of suites {n}") for n in (1, 2))
    sets = [Dataset(f"name{n}", f"digest{n}", f"st{n}", f"source{n}", "{}", "{}") for n in range(5)]

    def used(*pairs: tuple[int, str | None]) -> list[DatasetInput]:
        return [
            DatasetInput(
                sets[n], [InputTag("mlflow.data.context", tag) if tag else InputTag("other", "x")]
            )
            for n, tag in pairs
        ]

    given = [
        (first, used((1, "train"), (2, "eval"), (4, None))),
        (first, used((1, "train"), (3, "test"))),
        (second, used((2, "train"))),
    ]
    names = {}
    for place, (experiment, inputs) in enumerate(given):
        run = s.client.create_run(experiment).info.run_id
        s.client.log_inputs(run, inputs)
        names[run] = place
    filters = [
        "dataset.name = 'name1'",
        "dataset.digest = 'digest2'",
        "dataset.name = 'none'",
        "dataset.context = 'test' and dataset.name = 'name3'",
        "dataset.context = 'test' and dataset.name = 'name1'",
        "datasets.name IN ('name2', 'name3')",
        "datasets.name LIKE 'Name%'",
        "datasets.name ILIKE 'Name%'",
        "datasets.context IN ('test', 'train')",
    ]
    found = [
        sorted(names[r.info.run_id] for r in s.client.search_runs([first, second], text))
        for text in filters
    ]
    lists = [
        _asked(s, "POST", f"{PAGES}/experiments/search-datasets", json=body)
        for body in (
            {"experiment_ids": [first]},
            {"experiment_ids": [first, second]},
            {},
            {"experiment_ids": []},
            {"experiment_ids": [str(n) for n in range(1000)]},
        )
    ]
    summaries = [
        sorted(
            (one["name"], one["digest"], one.get("context"))
            for one in answer.json().get("dataset_summaries", [])
        )
        if answer.status_code == 200
        else _said(answer)
        for answer in lists
    ]
    wrong = [
        _said(_asked(s, "POST", f"{API}/runs/log-inputs", json=body))
        for body in ({"datasets": []}, {"run_id": next(iter(names))})
    ]
    return found, summaries, wrong


# Experiments.


def _experiments(s: Side) -> Any:
    client = s.client
    tags = [{"s1": "value"}, {"s1": "vaLue"}, {"k e y": "value"}, None]
    made = [client.create_experiment(f"suite-{n}", tags=given) for n, given in enumerate(tags)]
    only = "name LIKE 'suite-_'"
    filters = [
        only,
        f"{only} AND attribute.`name` != 'suite-1'",
        "tag.`k e y` = 'value'",
        'tag."k e y" = "value"',
        f"{only} AND tag.s1 != 'VALUE'",
        "tag.s1 LIKE '%Lue'",
        "tag.S1 = 'value'",
        f"{only} AND creation_time > 0",
        f"{only} AND last_update_time < 0",
        "name",
        "creation_time = 'x'",
        "none = 'x'",
    ]
    orders = [
        None,
        ["name DESC"],
        ["experiment_id DESC"],
        ["name", "experiment_id"],
        ["creation_time"],
    ]

    def named(text: str) -> list[str]:
        return [
            one.name for one in client.search_experiments(filter_string=text, order_by=["name"])
        ]

    found = _each(filters, named)
    ordered = [
        [one.name for one in client.search_experiments(filter_string=only, order_by=order)]
        for order in orders
    ]
    client.rename_experiment(made[0], "suite-9")
    ordered.append(
        [
            one.name
            for one in client.search_experiments(filter_string=only, order_by=["last_update_time"])
        ]
    )
    client.delete_experiment(made[1])
    views = [
        [one.name for one in client.search_experiments(view, filter_string=only, order_by=["name"])]
        for view in (ViewType.ACTIVE_ONLY, ViewType.DELETED_ONLY, ViewType.ALL)
    ]
    limits = [
        _said(_asked(s, "POST", f"{API}/experiments/search", json={"max_results": most}))
        for most in (0, -1, 1, 50_000, 1_000_000)
    ]
    pages, token = [], None
    while True:
        page = client.search_experiments(filter_string=only, max_results=2, page_token=token)
        pages.append([one.name for one in page])
        if not (token := page.token):
            break
    taken = _tried(
        lambda: client.create_experiment("suite-9"),
        lambda: client.create_experiment("suite-1"),
        lambda: client.get_experiment("99999999"),
        lambda: client.get_experiment_by_name("none such"),
        lambda: client.rename_experiment("99999999", "x"),
    )
    return found, ordered, views, limits, pages, taken


# The registry.


def _of_registry(s: Side) -> tuple[str, str]:
    """Make six models once, two of them with three versions each; returns the prefix of their names, and the
    run."""
    prefix = "suite_RM"
    if "registry" not in s.kept:
        for name in ("1", "2", "3", "4", "4A", "4ab"):
            s.client.create_registered_model(prefix + name, tags={"t": name.lower(), "all": "x"})
        for name in ("1", "2", "1", "2", "1", "2"):
            number = s.client.create_model_version(
                prefix + name, f"models:/{s.model}", model_id=s.model, run_id=s.owner
            ).version
            s.client.set_model_version_tag(prefix + name, number, "t", f"x{number}")
        s.kept["registry"] = prefix
    return prefix, s.owner


def _models_found(s: Side) -> Any:
    prefix, _ = _of_registry(s)
    filters: Iterable[str] = (
        f"name='{prefix}1'",
        f"name='{prefix}cats'",
        f"name LIKE '{prefix}%'",
        "name LIKE '%uite_RM4_'",
        f"name LIKE '{prefix}4A%'",
        f"name ILIKE '{prefix}4A%'",
        "name iLike '%rM4a%'",
        f"name lIkE '{prefix}4%' AND tags.t != '4'",
        "tag.all = 'x' and tag.`t` LIKE '4%'",
        "tags.T = '4'",
        "name!=something",
        f"name LIKE '{prefix}%' AND name != '{prefix}1'",
        "run_id='somerunID'",
        "source_path = 'A/D'",
        "evilhax = true",
        "name LIKE",
        "name = 'a' OR name = 'b'",
        "name IN ('a')",
    )

    def models(text: str, **more: Any) -> list[str]:
        return [one.name for one in s.client.search_registered_models(text, **more)]

    found = _each(filters, models)
    only = f"name LIKE '{prefix}%'"
    orders = (
        ["name DESC"],
        ["name"],
        ["last_updated_timestamp ASC", "name"],
        ["timestamp DESC"],
        ["run_id"],
        ["name ASC blah"],
    )
    ordered = _each(orders, lambda order: models(only, order_by=order))
    limits = _each((1, 1000), lambda most: len(models(only, max_results=most)))
    limits += _each(["evilhax"], lambda token: models(only, page_token=token))
    return found, ordered, limits


def _versions_found(s: Side) -> Any:
    prefix, run = _of_registry(s)
    only = f"name LIKE '{prefix}%'"
    filters = (
        only,
        f"name = '{prefix}1'",
        f"name ILIKE '{prefix.lower()}2'",
        f"{only} AND run_id = '{run}'",
        f"{only} AND run_id IN ('{run}', 'none')",
        f"{only} AND version_number = 2",
        f"{only} AND version_number < 2",
        f"{only} AND version_number != 2",
        f"{only} AND tag.t != 'x1' and tag.t like 'x%'",
        f"{only} AND tags.`t` ILIKE 'X3'",
        f"{only} AND source_path = 'A'",
        "run_id IN (1,2,3)",
        "run_id IN ()",
        "run_id IN (",
        "run_id IN",
        "run_id IN (,)",
        "run_id IN ('a',,'b')",
        "name LIKE",
        "version_number = 'a'",
        "name = 'a' OR name = 'b'",
    )

    def versions(text: str, **more: Any) -> list[tuple[str, int]]:
        found = s.client.search_model_versions(text, **more)
        return [(one.name, int(one.version)) for one in found]

    found = _each(filters, lambda text: sorted(versions(text)))
    orders = (
        None,
        ["name DESC", "version_number DESC"],
        ["version_number DESC", "name"],
        ["creation_timestamp DESC"],
        ["name ASC", "run_id DESC"],
        ["name ASC blah"],
    )
    ordered = _each(orders, lambda order: versions(only, order_by=order))
    limits = _each((4, 200_001), lambda most: len(versions(only, max_results=most)))
    limits += _each(["evilhax"], lambda token: versions(only, page_token=token))
    return found, ordered, limits


def _life_of_a_model(s: Side) -> Any:
    client, name = s.client, "suite life"
    made = client.create_registered_model(name, {"numeric": 12345, "k": ""})
    seen: list[Any] = [made.tags, made.description or "", made.latest_versions or []]
    seen += _tried(
        lambda: client.create_registered_model(name),
        lambda: client.create_registered_model(""),
        lambda: client.rename_registered_model("none such", "x"),
        lambda: client.get_registered_model("none such"),
        lambda: client.update_registered_model("none such", "x"),
        lambda: client.delete_registered_model("none such"),
        lambda: client.set_registered_model_tag("none such", "a", "b"),
        lambda: client.delete_registered_model_tag(name, "none"),
        lambda: client.set_registered_model_tag(name, "long", "a" * 4999),
        lambda: client.set_registered_model_tag(name, "longer", "a" * 100_001),
        lambda: client.get_model_version(name, "1"),
        lambda: client.get_model_version(name, "not a number"),
        lambda: client.create_model_version("none such", f"models:/{s.model}", model_id=s.model),
    )
    source = f"models:/{s.model}"
    for _ in range(3):
        client.create_model_version(name, source, model_id=s.model, run_id=s.owner, tags={"n": 1})
    client.set_model_version_tag(name, "1", "empty", "")
    client.update_model_version(name, 1, "described")
    client.set_registered_model_alias(name, "champion", "1")
    client.rename_registered_model(name, f"{name} 2")
    name = f"{name} 2"
    version = client.get_model_version(name, "1")
    seen += [version.tags, version.description, version.aliases, version.run_id == s.owner]
    seen.append(client.get_model_version_by_alias(name, "champion").version)
    client.delete_model_version(name, "3")
    client.delete_model_version(name, "1")
    seen += _tried(
        lambda: client.get_registered_model(name).aliases,
        lambda: client.get_model_version_by_alias(name, "champion"),
        lambda: client.delete_model_version(name, "1"),
        lambda: client.update_model_version(name, "1", "x"),
        lambda: client.set_model_version_tag(name, "1", "a", "b"),
        lambda: client.get_model_version_download_uri(name, "1"),
    )
    again = client.create_model_version(name, source, model_id=s.model, run_id=s.owner)
    seen.append(again.version)
    client.delete_registered_model(name)
    seen += _tried(
        lambda: client.get_model_version(name, "2"), lambda: client.delete_registered_model(name)
    )
    client.create_registered_model(name)
    return [*seen, client.create_model_version(name, source, model_id=s.model).version]


# Pages.


def _graphql(s: Side) -> Any:
    run = s.new_run("graphql")
    s.client.create_registered_model("suite graphql")
    query = f"""query testQuery {{ mlflowGetRun(input: {{runId: "{run}"}}) {{
        run {{ info {{ status }} experiment {{ name }} modelVersions {{ name }} }} }} }}"""
    queries = [
        query,
        'query testQuery {test(inputString: "abc") { output }}',
        f'query testQuery {{mlflowGetExperiment(input: {{experimentId: "{s.experiment}"}})'
        " {experiment {name}}}",
        "query testQuery {none}",
    ]
    found = []
    for text in queries:
        answer = _asked(s, "POST", "graphql", json={"query": text, "operationName": "testQuery"})
        body = answer.json()
        found.append([answer.status_code, body.get("data"), bool(body.get("errors"))])
    return found


def _files(s: Side) -> Any:
    run = s.new_run("files")
    upload = f"{PAGES}/upload-artifact"
    found = [
        _said(_asked(s, "POST", upload, params=params, data=data))
        for params, data in (
            ({}, None),
            ({"run_uuid": run}, None),
            ({"run_uuid": run, "path": ""}, None),
            ({"run_uuid": run, "path": "../a.txt"}, "x"),
            ({"run_uuid": run, "path": "a.txt"}, None),
            ({"run_uuid": run, "path": "a.txt"}, "hello world"),
        )
    ]
    for path, params in (
        ("get-artifact", {"run_uuid": run, "path": "a.txt"}),
        ("get-artifact", {"run_id": run, "path": "../a.txt"}),
        ("get-artifact", {"run_id": run, "path": "none.txt"}),
        (f"{API}/artifacts/list", {"run_id": run, "path": "../a"}),
        ("model-versions/get-artifact", {"name": "Net", "version": "1", "path": "../a"}),
        ("model-versions/get-artifact", {"name": "None such", "version": "1", "path": "a"}),
        (f"{API}/artifacts/list", {"run_id": "none"}),
        (f"{API}/artifacts/list", {}),
    ):
        found.append(_said(_asked(s, "GET", path, params=params)))
    return found


_ASKED: dict[str, Call] = {
    "names of runs": _names_of_runs,
    "the latest of many points": _latest_of_many,
    "a run deleted twice": _deleted_twice,
    "long values": _long_values,
    "batches": _batches,
    "orders of runs": _ordered_runs,
    "filters of runs": _filtered_runs,
    "histories": _histories,
    "data sets": _data_sets,
    "experiments": _experiments,
    "registered models found": _models_found,
    "versions found": _versions_found,
    "the life of a model": _life_of_a_model,
    "GraphQL": _graphql,
    "files": _files,
}


def _on_lines(call: Call) -> Call:
    """The same answer, with each part as one text: a line in the file of answers."""
    return lambda s: [json.dumps(plain(one), sort_keys=True) for one in call(s)]


CALLS = {name: _on_lines(call) for name, call in _ASKED.items()}

"""The behaviour of a tracking server beyond one good call of each method: refusals and their codes; filters,
orders and pages; the life of a run."""

from __future__ import annotations

import math
import os
from typing import Any

import requests
from mlflow.entities import Metric, Param, RunTag, ViewType

from tests.integration.mlflow.calls.side import THEN, Call, Side

RUNS = "api/2.0/mlflow/runs"


def _post(s: Side, path: str, body: Any) -> Any:
    """The status, and the code of a refusal."""
    headers = {"Authorization": f"Bearer {os.environ.get('MLFLOW_TRACKING_TOKEN', '')}"}
    answer = requests.post(f"{s.uri}/{path}", json=body, headers=headers, timeout=60)
    found = answer.json() if answer.content else {}
    return [answer.status_code, found.get("error_code", "")]


def _posts(path: str, *bodies: dict[str, Any]) -> Call:
    """The same to the run of the side, once with each body."""

    def call(s: Side) -> Any:
        return [_post(s, f"{RUNS}/{path}", {"run_id": s.run, **body}) for body in bodies]

    return call


_POINT = {"key": "x", "value": 1.5, "timestamp": THEN, "step": 1}


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in _POINT.items() if key != name}


def _searched(s: Side) -> None:
    """Five runs of a new experiment, made once."""
    if "searched" in s.kept:
        return
    s.kept["searched"] = s.client.create_experiment("searched")
    for place in range(5):
        run = s.client.create_run(s.kept["searched"], run_name=f"run-{place}").info.run_id
        s.client.log_batch(
            run,
            [
                Metric("acc", place / 10, THEN, 0),
                Metric("with space", float(place), THEN, 0),
                *([Metric("some", float(place), THEN, 0)] if place % 2 else []),
                *([Metric("odd", math.nan, THEN, 0)] if place == 3 else []),
            ],
            [Param("lr", f"1e-{place}"), Param("act", "ReLU" if place < 2 else "tanh")],
            [RunTag("team", "vision" if place else "text"), RunTag("my.tag", str(place))],
        )
        s.client.set_terminated(run, "FAILED" if place == 4 else "FINISHED")


def _found(*filters: str) -> Call:
    """The names of the runs that each filter finds."""

    def call(s: Side) -> Any:
        _searched(s)
        return [
            [
                one.info.run_name
                for one in s.client.search_runs(
                    [s.kept["searched"]], text, order_by=["attributes.run_name ASC"]
                )
            ]
            for text in filters
        ]

    return call


def _refused(*filters: str) -> Call:
    """The code with which each filter is refused."""

    def call(s: Side) -> Any:
        _searched(s)
        ids = [s.kept["searched"]]
        return [
            _post(s, f"{RUNS}/search", {"experiment_ids": ids, "filter": text}) for text in filters
        ]

    return call


def _ordered(*orders: str) -> Call:
    def call(s: Side) -> Any:
        _searched(s)
        return [
            [
                one.info.run_name
                for one in s.client.search_runs([s.kept["searched"]], order_by=[text, "tag.my.tag"])
            ]
            for text in orders
        ]

    return call


def _pages(s: Side) -> Any:
    _searched(s)
    found, token = [], None
    while True:
        page = s.client.search_runs(
            [s.kept["searched"]],
            max_results=2,
            order_by=["attributes.run_name DESC"],
            page_token=token,
        )
        found.append([one.info.run_name for one in page])
        token = page.token
        if not token:
            return found


def _experiments(s: Side) -> Any:
    made = {"ex-a": {"k": "value"}, "ex-ab": {"k": "vaLue"}, "Ex-abc": {}}
    for name, tags in made.items():
        s.client.create_experiment(name, tags=tags)
    filters = [
        "attribute.name = 'ex-a'",
        "name LIKE 'ex-a%'",
        "name ILIKE 'ex-a%'",
        "tags.k = 'value'",
        "tag.k != 'value'",
        "tags.k ILIKE '%alu%'",
        "name ILIKE 'ex-%' AND tags.k LIKE 'va%'",
    ]
    order = ["name DESC"]
    return [
        [one.name for one in s.client.search_experiments(filter_string=text, order_by=order)]
        for text in filters
    ]


def _latest(s: Side) -> Any:
    """The latest of several points, which is not the last to arrive."""
    run = s.new_run("latest")
    for step, moment, value in ((5, 10, 1.0), (2, 20, 2.0), (7, 5, 3.0), (6, 30, 4.0)):
        s.client.log_metric(run, "m", value, THEN + moment, step)
    found = [(one.step, one.timestamp, one.value) for one in s.client.get_metric_history(run, "m")]
    return s.client.get_run(run).data.metrics, found


def _special(s: Side) -> Any:
    run = s.new_run("special")
    for key, value in (("nan", math.nan), ("inf", math.inf), ("less", -math.inf), ("big", 1e300)):
        s.client.log_metric(run, key, value, THEN, 0)
    return s.client.get_run(run).data.metrics


def _life(s: Side) -> Any:
    """Ended, gone on, deleted, logged to, restored."""
    run = s.new_run("life")
    states = []
    for status in ("FINISHED", "RUNNING", "FAILED", "SCHEDULED", "KILLED"):
        s.client.update_run(run, status)
        info = s.client.get_run(run).info
        states.append((info.status, info.end_time is None))
    s.client.log_metric(run, "late", 1.0, THEN, 0)
    s.client.delete_run(run)
    body = {"run_id": run, "key": "k", "value": "v"}
    refusals = [
        _post(s, f"{RUNS}/log-metric", {"run_id": run, **_POINT}),
        _post(s, f"{RUNS}/log-parameter", body),
        _post(s, f"{RUNS}/set-tag", body),
        _post(s, f"{RUNS}/update", {"run_id": run, "status": "FINISHED"}),
        _post(s, f"{RUNS}/delete", {"run_id": run}),
    ]
    s.client.restore_run(run)
    return states, refusals, s.client.get_run(run).data.metrics


def _deleted_experiment(s: Side) -> Any:
    made = s.client.create_experiment("deleted")
    run = s.client.create_run(made, run_name="in it").info.run_id
    s.client.delete_experiment(made)
    again = _post(s, "api/2.0/mlflow/experiments/create", {"name": "deleted"})
    inside = _post(s, f"{RUNS}/create", {"experiment_id": made})
    shown = [
        [one.info.run_name for one in s.client.search_runs([made], "", view)]
        for view in (ViewType.ACTIVE_ONLY, ViewType.DELETED_ONLY, ViewType.ALL)
    ]
    s.client.restore_experiment(made)
    return again, inside, shown, s.client.get_run(run).info.lifecycle_stage


def _empty(s: Side) -> Any:
    run = s.new_run("empty")
    s.client.log_param(run, "p", "")
    s.client.set_tag(run, "t", "")
    s.client.log_batch(run, params=[Param("q", "")], tags=[RunTag("u", "line\nline")])
    return s.client.get_run(run).data


def _twice(s: Side) -> Any:
    run = s.new_run("twice")
    s.client.log_param(run, "p", "1")
    s.client.log_param(run, "p", "1")
    other = {"run_id": run, "key": "p", "value": "2"}
    batch = {"run_id": run, "params": [{"key": "n", "value": "1"}, {"key": "p", "value": "3"}]}
    refused = [_post(s, f"{RUNS}/log-parameter", other), _post(s, f"{RUNS}/log-batch", batch)]
    return refused, s.client.get_run(run).data.params


def _missing(s: Side) -> Any:
    run, number = "0123456789abcdef0123456789abcdef", "999999999"
    return [
        _post(s, f"{RUNS}/log-metric", {"run_id": run, **_POINT}),
        _post(s, f"{RUNS}/log-batch", {"run_id": run, "metrics": [_POINT]}),
        _post(s, f"{RUNS}/log-batch", {"run_id": number, "metrics": [_POINT]}),
        _post(s, f"{RUNS}/set-tag", {"run_id": run, "key": "k", "value": "v"}),
        _post(s, f"{RUNS}/update", {"run_id": run, "status": "FINISHED"}),
        _post(s, f"{RUNS}/delete", {"run_id": run}),
        _post(s, f"{RUNS}/create", {"experiment_id": number}),
        _post(s, f"{RUNS}/search", {"experiment_ids": [number]}),
        _post(s, "api/2.0/mlflow/experiments/delete", {"experiment_id": number}),
        _post(s, "api/2.0/mlflow/registered-models/create", {"name": ""}),
        _post(s, "api/2.0/mlflow/registered-models/create", {"name": "Net"}),
        _post(s, "api/2.0/mlflow/model-versions/create", {"name": "None such", "source": "x"}),
        _post(
            s,
            "api/2.0/mlflow/registered-models/alias",
            {"name": "Net", "alias": "1", "version": "1"},
        ),
        _post(
            s,
            "api/2.0/mlflow/registered-models/alias",
            {"name": "Net", "alias": "a", "version": "99"},
        ),
    ]


def _created(s: Side) -> Any:
    path = "api/2.0/mlflow/experiments/create"
    bodies: list[Any] = [{}, {"name": 123}, {"name": ""}, {"name": "e", "tags": "5"}]
    s.client.create_experiment("taken")
    return [_post(s, path, body) for body in [*bodies, {"name": "taken"}, {"name": "x" * 501}]]


CALLS: dict[str, Call] = {
    "a metric is refused": lambda s: [
        _post(s, f"{RUNS}/log-metric", body)
        for body in (
            {**_POINT, "run_id": 31},
            {**_POINT, "run_id": None},
            {**_POINT},
            *({**_without(name), "run_id": s.run} for name in ("key", "value", "timestamp")),
            *(
                {**_POINT, "run_id": s.run, name: value}
                for name, value in (
                    ("key", 31),
                    ("key", None),
                    ("key", ""),
                    ("key", "k" * 251),
                    ("step", "foo"),
                    ("timestamp", "foo"),
                    ("timestamp", None),
                    ("value", "foo"),
                    ("value", None),
                )
            ),
        )
    ],
    "a metric without a step": lambda s: _post(
        s, f"{RUNS}/log-metric", {**_without("step"), "run_id": s.run}
    ),
    "a step below 0": lambda s: _post(
        s, f"{RUNS}/log-metric", {**_POINT, "key": "below", "step": -2, "run_id": s.run}
    ),
    "a batch is refused": _posts(
        "log-batch",
        {"metrics": "foo"},
        {"params": "foo"},
        {"tags": "foo"},
        {"metrics": [_without("timestamp")]},
        {"metrics": [_without("key")]},
        {"metrics": [_without("value")]},
        {"metrics": [{**_POINT, "value": "foo"}]},
        {"params": [{"key": "p", "value": "1"}, {"key": "p", "value": "2"}]},
        {"params": [{"key": "q", "value": "1"}, {"key": "q", "value": "1"}]},
        {"params": [{"key": "k" * 251, "value": "1"}]},
        {"params": [{"key": "long", "value": "v" * 6001}]},
        {"tags": [{"key": "long", "value": "v" * 8001}]},
        {"tags": [{"key": "bad\n", "value": "v"}]},
        {"metrics": [_POINT] * 1001},
        {"params": [{"key": f"p{n}", "value": "1"} for n in range(101)]},
    ),
    "a batch that is empty, or without steps": _posts(
        "log-batch", {}, {"metrics": []}, {"metrics": [_without("step")]}
    ),
    "a parameter or tag is refused": lambda s: [
        _post(s, f"{RUNS}/{path}", body)
        for path in ("log-parameter", "set-tag")
        for body in (
            {"run_id": 31, "key": "k", "value": "v"},
            {"run_id": s.run, "key": 31, "value": "v"},
            {"run_id": s.run, "key": "k", "value": 41},
            {"run_id": s.run, "value": "v"},
            {"run_id": s.run, "key": "k" * 251, "value": "v"},
            {"run_id": s.run, "key": "k", "value": "v" * 9000},
        )
    ],
    "an experiment is refused": _created,
    "what does not exist": _missing,
    "a parameter twice": _twice,
    "empty values, and lines": _empty,
    "the latest point": _latest,
    "infinities and what is not a number": _special,
    "the life of a run": _life,
    "a deleted experiment": _deleted_experiment,
    "search: metrics": _found(
        "metrics.acc > 0.1",
        "metric.acc <= 0.1",
        "metrics.acc = 0.3 ",
        "metrics.acc != 0.3",
        "metrics.`with space` >= 3",
        "metrics.some > 0",
        "metrics.odd > 0",
        "metrics.odd != 0",
        "metrics.some > 0 AND metrics.acc < 0.2",
    ),
    "search: parameters": _found(
        "params.act = 'ReLU'",
        "params.act LIKE 're%'",
        "params.act ILIKE 're%'",
        "params.act != 'ReLU'",
        "params.lr = '1e-3'",
        "params.none = 'x'",
        "params.none != 'x'",
        "param.act LIKE '%a_h'",
    ),
    "search: tags": _found(
        "tags.team = 'text'",
        "tags.team != 'text'",
        "tags.`my.tag` = '2'",
        'tag."my.tag" = "2"',
        "tags.team LIKE '%i%'",
        "tags.team ILIKE 'TE%'",
        "tags.mlflow.runName = 'run-1'",
    ),
    "search: attributes": _found(
        "attributes.status = 'FAILED'",
        "status != 'FINISHED'",
        "run_name = 'run-2'",
        "attributes.run_name LIKE '%-3'",
        "attributes.`run name` = 'run-0'",
        "start_time > 0",
        "attributes.end_time < 1",
        "attributes.run_id = 'none'",
        "attributes.run_id NOT IN ('none')",
        "attributes.status = 'RUNNING'",
    ),
    "search: what is not understood": _refused(
        "acc > 1",
        "metrics.acc > 'a'",
        "metrics.acc LIKE 'a'",
        "params.act > 'a'",
        "params.act = ReLU",
        "tags.team < 'a'",
        "attributes.none = 'a'",
        "attributes.run_name IN ('a')",
        "attributes.start_time = 'a'",
        "metrics.acc > 1 OR metrics.acc < 1",
        "metrics.acc",
        "nonsense",
        "dataset.name = 'x'",
        "model.x = 'y'",
    ),
    "search: orders": _ordered(
        "metrics.acc DESC",
        "metrics.some ASC",
        "metrics.some DESC",
        "metrics.odd ASC",
        "params.act ASC",
        "params.lr DESC",
        "tags.team ASC",
        "attributes.run_name DESC",
        "attributes.status ASC",
    ),
    "search: pages": _pages,
    "search: limits": lambda s: [
        _post(s, f"{RUNS}/search", {"experiment_ids": [s.experiment], "max_results": most})
        for most in (0, -1, 1, 50_000, 50_001)
    ],
    "search: wrong orders and tokens": lambda s: [
        _post(s, f"{RUNS}/search", {"experiment_ids": [s.experiment], **body})
        for body in (
            {"order_by": ["none.x"]},
            {"order_by": ["metrics.acc", "metrics.acc"]},
            {"order_by": ["metrics.acc UP"]},
            {"page_token": "nonsense"},
        )
    ],
    "search: experiments": _experiments,
}

"""Runs: trials with their experiments in one table, as Determined's release 0.38 has them.

What is done to a run is done to its experiment, if it is the only run of it. A run of a search with several
can only be killed: its experiment is archived, moved, paused or deleted as a whole.
"""

# Parameters and fields are named as in the API.
# ruff: noqa: N815
from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from pydantic import BaseModel, Field
from starlette.responses import Response

from determined.common.wire import limits
from determined_registry.database.tables import experiments, metric_summaries, projects, trials
from determined_service.access.dependencies import (
    Admission,
    ProjectReader,
    TrialReader,
    may_named,
)
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Id, ManyIds, Text
from determined_service.base.db import Database, as_asker
from determined_service.base.errors import BadRequest, NotFound
from determined_service.base.json import JsonResponse
from determined_service.lifecycle import places
from determined_service.lifecycle import trials as trialing
from determined_service.lifecycle import workspaces as keeping
from determined_service.public.bulk import ACTIONS, Act, act_in_words
from determined_service.public.deletions import request_deletion
from determined_service.public.projects import destination
from determined_service.state.change import Change, changing
from determined_service.views import runs as view
from determined_service.views.experiments import in_project
from determined_service.views.lists import answer_list
from determined_service.views.runs import COLUMNS, STATISTICS, Type
from determined_service.views.trials import WEIGHT
from determined_service.views.workspaces import get_project
from determined_service.web.router import Router
from determined_service.web.state import Db

router = Router("Trials", "/api/v1")
t, e = trials.c, experiments.c

_LOOKED_AT = 1_000
"""The latest runs of a project, of which hyperparameters, metadata and metrics become columns."""

Results = dict[str, list[dict[str, Any]]]


class RunSearch(BaseModel):
    """``v1SearchRunsRequest``."""

    projectId: Id | None = None
    filter: Text | None = Field(
        default=None,
        description='JSON: `{"filterGroup": {"kind": "group", "conjunction": "and", "children": '
        '[{"kind": "field", "columnName": "hp.lr", "operator": "<", "value": 0.1}]}, "showArchived": '
        "false}`. "
        "Operators: `=`, `!=`, `<`, `<=`, `>`, `>=`, `contains`, `notContains`, `isEmpty`, `notEmpty`.",
    )
    sort: Text | None = Field(
        default=None, description="Such as `validation.loss.min=asc,id=desc`; default: `id=desc`."
    )
    offset: Id = 0
    limit: Id = Field(
        default=0, description="0: 100 items; -1: all; -2: none, only the pagination."
    )


@router.post("/runs")
async def search_runs(given: RunSearch, user: TrialReader, db: Db) -> Response:
    """The runs that match; of all projects without one."""
    wanted = [in_project(given.projectId), *view.filtered(given.filter)]
    statement = view.select_runs().where(*wanted).order_by(*view.ordered_by(given.sort))
    return await answer_list(
        db,
        "runs",
        statement,
        t.id,
        WEIGHT,
        view.runs_json,
        offset=given.offset,
        limit=given.limit,
    )


class ChosenRuns(BaseModel):
    """``v1PauseRunsRequest`` and similar requests. With ``filter``, ``runIds`` are ignored."""

    runIds: ManyIds = Field(default_factory=list)
    projectId: Id | None = Field(
        default=None, description="Only runs of this project; 0 and -1: of all."
    )
    filter: Text | None = Field(default=None, description="As of a search.")


class MovedRuns(BaseModel):
    """``v1MoveRunsRequest``."""

    runIds: ManyIds = Field(default_factory=list)
    sourceProjectId: Id | None = None
    destinationProjectId: Id
    filter: Text | None = None
    skipMultitrial: bool = Field(
        default=False, description="Runs of searches with several are not moved in any case."
    )

    def chosen(self) -> ChosenRuns:
        """The runs to move."""
        return ChosenRuns(runIds=self.runIds, projectId=self.sourceProjectId, filter=self.filter)


async def _act_on_runs(
    verb: str, given: ChosenRuns, admission: Admission, db: Database, act: Act
) -> Results:
    """``{"results": [{"id": 3, "error": ""}]}``. ``act`` acts on the experiment of each run, in a separate
    transaction. Raises BadRequest when nothing is chosen."""
    found = await _find(given, db)
    user, refused = await admission.refusals({row.experiment_id for row in found.values()})
    results = []
    for run_id in dict.fromkeys(found if given.filter else given.runIds):
        row = found.get(run_id)
        if row is None:
            error = NotFound(f"run {run_id} does not exist").message
        elif row.experiment_id in refused:
            error = refused[row.experiment_id].message
        elif given.projectId not in (None, 0, -1, row.project_id):
            error = f"run {run_id} is not in project {given.projectId}"
        elif not row.is_multitrial:
            error = await act_in_words(db, act, row.experiment_id, user.username)
        elif verb == "kill":
            error = await act_in_words(db, _kill_trial, run_id, user.username)
        else:
            error = (
                f"run {run_id} is part of a search, and can only be killed by itself: {verb} its experiment "
                f"{row.experiment_id}"
            )
        results.append({"id": run_id, "error": error})
    return {"results": results}


async def _kill_trial(change: Change, trial_id: int, by: str) -> None:
    await trialing.kill(change, trial_id)


async def _find(given: ChosenRuns, db: Database) -> dict[int, sa.Row[Any]]:
    """The chosen runs that the sender sees, by id. Raises BadRequest."""
    statement = view.select_run_ids().order_by(t.id)
    if given.filter:
        statement = statement.where(in_project(given.projectId), *view.filtered(given.filter))
    elif given.runIds:
        statement = statement.where(t.id.in_(given.runIds))
    else:
        raise BadRequest('no runs are named: send "runIds": [1, 2], or "filter"')
    async with db.tx() as conn, as_asker(conn):
        rows = (await conn.execute(statement.limit(limits.MANY_IDS + 1))).all()
    if len(rows) > limits.MANY_IDS:
        raise BadRequest(
            f"filter: more than {limits.MANY_IDS} runs match: choose fewer, one part after the other"
        )
    return {row.id: row for row in rows}


def _add_route(verb: str, action: str) -> None:
    admission_of = may_named(Action.CHANGE, Kind.EXPERIMENT, action)

    async def act(given: ChosenRuns, db: Db, admission: Admission = admission_of) -> Results:
        return await _act_on_runs(action, given, admission, db, ACTIONS[action])

    router.add_api_route(
        f"/runs/{verb}",
        act,
        methods=["POST"],
        name=f"{verb}_runs",
        description=f"{verb.capitalize()}s many runs; the answer has one result for each, with errors in "
        "words.",
    )


for _verb in ("pause", "resume", "kill", "archive", "unarchive"):
    _add_route(_verb, "activate" if _verb == "resume" else _verb)


@router.post("/runs/delete")
async def delete_runs(
    given: ChosenRuns,
    admission: Annotated[Admission, may_named(Action.DELETE, Kind.EXPERIMENT)],
    db: Db,
) -> Results:
    """Requests the deletion of ended runs with their experiments; one result for each, with errors in
    words."""

    async def delete(change: Change, experiment_id: int, by: str) -> None:
        await request_deletion(change, experiment_id, admission.subject.user_id)

    return await _act_on_runs("delete", given, admission, db, delete)


@router.post("/runs/move")
async def move_runs(
    given: MovedRuns,
    admission: Annotated[Admission, may_named(Action.CHANGE, Kind.EXPERIMENT, "move")],
    db: Db,
) -> Results:
    """Moves runs with their experiments to another project; one result for each, with errors in words."""
    async with changing(db) as change:
        to = await destination(change, admission.subject, given.destinationProjectId)

    async def move(change: Change, experiment_id: int, by: str) -> None:
        await places.hold(change.conn, to)
        await keeping.move_experiment(change, experiment_id, to)

    return await _act_on_runs("move", given.chosen(), admission, db, move)


@router.get("/projects/{project_id}/columns", tags=["Workspaces"])
async def read_columns(project_id: Id, user: ProjectReader, db: Db) -> Response:
    """The columns by which runs of the project are filtered and sorted: hyperparameters, metadata and metrics
    are those of its latest thousand runs, the first level of nested ones."""
    of_runs = (
        sa.select(t.id, t.hparams, t.run_metadata)
        .join(experiments, e.id == t.experiment_id)
        .where(e.project_id == project_id)
        .order_by(t.id.desc())
        .limit(_LOOKED_AT)
        .cte("latest")
    )
    async with db.tx() as conn:
        await get_project(conn, user, projects.c.id == project_id, project_id)
        hparams = await conn.execute(_names_in(of_runs.c.hparams))
        metadata = await conn.execute(_names_in(of_runs.c.run_metadata))
        m = metric_summaries.c
        metrics = await conn.execute(
            sa.select(m.group_name, m.metric, sa.func.bool_and(m.type == "number"))
            .join(of_runs, of_runs.c.id == m.trial_id)
            .group_by(m.group_name, m.metric)
            .order_by(m.group_name, m.metric)
            .limit(_LOOKED_AT)
        )
    found = [_column(name, one.type, "RUN", one.title) for name, one in COLUMNS.items()]
    found += [_column(f"hp.{name}", type_, "RUN_HYPERPARAMETERS") for name, type_ in hparams]
    found += [_column(f"metadata.{name}", type_, "RUN_METADATA") for name, type_ in metadata]
    for group, metric, is_number in metrics:
        location = _LOCATIONS.get(group, "CUSTOM_METRIC")
        type_ = Type.NUMBER if is_number else Type.ANY
        found += [
            _column(f"{group}.{metric}.{statistic}", type_, location)
            for statistic in (STATISTICS if is_number else STATISTICS[:1])
        ]
    return JsonResponse({"columns": found})


_LOCATIONS = {"validation": "VALIDATIONS", "training": "TRAINING"}


def _column(name: str, type_: str, location: str, title: str = "") -> dict[str, str]:
    """``v1ProjectColumn``."""
    return {
        "column": name,
        "type": type_,
        "location": f"LOCATION_TYPE_{location}",
        "displayName": title,
    }


def _names_in(objects: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """The names in JSON objects, and the type of their values."""
    pair = sa.func.jsonb_each(objects).table_valued("key", "value").lateral("pair")
    kind = sa.func.jsonb_typeof(pair.c.value)
    of = {"number": Type.NUMBER, "string": Type.TEXT, "array": Type.ARRAY}
    type_ = sa.case(
        (
            sa.func.min(kind) == sa.func.max(kind),
            sa.case(of, value=sa.func.min(kind), else_=Type.ANY),
        ),
        else_=Type.ANY,
    )
    return (
        sa.select(pair.c.key, type_)
        .select_from(objects.table)
        .join(pair, sa.true())
        .group_by(pair.c.key)
        .order_by(pair.c.key)
        .limit(_LOOKED_AT)
    )

"""One action on many experiments: chosen by their ids, or by a filter.

Each experiment is changed in a separate transaction, as by its own route: an experiment that does not allow
it does not stop the others, and a request that is sent twice has the same effect as one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from determined_registry.database.tables import experiments as table
from determined_service.access.dependencies import Admission, may_named
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Id, Labels, ManyIds, ManyNames, Name, Text
from determined_service.base.db import Database, as_asker
from determined_service.base.errors import ApiError, BadRequest
from determined_service.lifecycle import experiments as experimenting
from determined_service.state import states
from determined_service.state.change import Change, changing
from determined_service.views.experiments import SHOWN_STATE, in_project
from determined_service.views.values import state_filter
from determined_service.web.router import Router
from determined_service.web.state import Db

router = Router("Experiments", "/api/v1")

Act = Callable[[Change, int, str], Awaitable[None]]
"""Acts on the experiment of this id, for the user of this name."""

e = table.c

ACTIONS: dict[str, Act] = {
    "activate": lambda change, id_, by: experimenting.activate(change, id_),
    "pause": experimenting.pause,
    "cancel": lambda change, id_, by: experimenting.cancel(change, id_),
    "kill": lambda change, id_, by: experimenting.kill(change, id_),
    "archive": lambda change, id_, by: experimenting.archive(change, id_, True),
    "unarchive": lambda change, id_, by: experimenting.archive(change, id_, False),
}
# Added to a filter's conditions: an action "on all of these" means those that it can change.
_ELIGIBLE: dict[str, sa.ColumnElement[bool]] = {
    "activate": e.state == states.PAUSED,
    "pause": e.state == states.ACTIVE,
    "cancel": e.state.not_in(states.TERMINAL),
    "kill": e.state.not_in(states.TERMINAL),
    "archive": sa.and_(e.state.in_(states.TERMINAL), ~e.archived),
    "unarchive": sa.and_(e.state.in_(states.TERMINAL), e.archived),
}


class Filters(BaseModel):
    """``v1BulkExperimentFilters``: experiments that match all given filters."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    name: Name | None = None
    description: Text | None = None
    labels: Labels = Field(default_factory=list)
    archived: bool | None = None
    states: ManyNames = Field(default_factory=list)
    user_ids: ManyIds = Field(default_factory=list)
    project_id: Id | None = None
    excluded_experiment_ids: ManyIds = Field(default_factory=list)

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        wanted: list[sa.ColumnElement[bool]] = [in_project(self.project_id)]
        if self.name:
            wanted.append(e.name.icontains(self.name, autoescape=True))
        if self.description:
            wanted.append(e.description.icontains(self.description, autoescape=True))
        if self.labels:
            wanted.append(e.labels.contains(self.labels))
        if self.archived is not None:
            wanted.append(e.archived == self.archived)
        if self.states:
            wanted.append(state_filter(e.state, SHOWN_STATE, self.states))
        if self.user_ids:
            wanted.append(e.owner_id.in_(self.user_ids))
        if self.excluded_experiment_ids:
            wanted.append(e.id.not_in(self.excluded_experiment_ids))
        return wanted


class ChosenExperiments(BaseModel):
    """``v1PauseExperimentsRequest`` and similar requests. With ``filters``, ``experimentIds`` are ignored."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    experiment_ids: ManyIds = Field(default_factory=list)
    filters: Filters | None = None
    project_id: Id | None = Field(
        default=None, description="Only experiments of this project; 0 and -1: of all."
    )


async def act_on_many(
    action: str,
    given: ChosenExperiments,
    admission: Admission,
    db: Database,
    act: Act | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """``{"results": [{"id": 3, "error": ""}]}``; raises BadRequest when nothing is chosen. ``act``: of an
    action that is none of this module's.

    A filter chooses only among those that the action can change; an id that it cannot, and an experiment
    that the user may not change, is an error in words.
    """
    if given.filters is not None:
        ids = await _matching(db, action, given.filters, given.project_id)
        outside: set[int] = set()
    elif given.experiment_ids:
        ids = list(dict.fromkeys(given.experiment_ids))
        outside = await _outside(db, ids, given.project_id)
    else:
        raise BadRequest('no experiments are named: send "experimentIds": [1, 2], or "filters"')
    user, refused = await admission.refusals(ids)
    results = []
    for experiment_id in ids:
        if experiment_id in outside:
            error = f"experiment {experiment_id} is not in project {given.project_id}"
        elif experiment_id in refused:
            error = refused[experiment_id].message
        else:
            error = await act_in_words(db, act or ACTIONS[action], experiment_id, user.username)
        results.append({"id": experiment_id, "error": error})
    return {"results": results}


def _add_routes(action: str) -> None:
    admission_of = may_named(Action.CHANGE, Kind.EXPERIMENT, action)

    async def of_all(
        given: ChosenExperiments, db: Db, admission: Admission = admission_of
    ) -> dict[str, list[dict[str, Any]]]:
        return await act_on_many(action, given, admission, db)

    async def of_project(
        project_id: Id, given: ChosenExperiments, db: Db, admission: Admission = admission_of
    ) -> dict[str, list[dict[str, Any]]]:
        given.project_id = project_id
        return await act_on_many(action, given, admission, db)

    for path, route in (
        (f"/experiments/{action}", of_all),
        (f"/projects/{{project_id}}/experiments/{action}", of_project),
    ):
        router.add_api_route(
            path,
            route,
            methods=["POST"],
            name=f"{action}_experiments",
            description=f"{action.capitalize()}s many experiments; the answer has one result for each, "
            "with errors in words.",
        )


for _action in ACTIONS:
    _add_routes(_action)


async def act_in_words(db: Database, act: Act, experiment_id: int, by: str) -> str:
    """Acts in a transaction; why it was refused, or blank."""
    try:
        async with changing(db) as change:
            await act(change, experiment_id, by)
    except ApiError as error:
        return error.message
    return ""


async def _matching(
    db: Database, action: str, filters: Filters, project_id: Id | None
) -> list[int]:
    wanted = [*filters.conditions(), _ELIGIBLE.get(action, sa.true()), in_project(project_id)]
    async with db.tx() as conn, as_asker(conn):
        return list((await conn.execute(sa.select(e.id).where(*wanted).order_by(e.id))).scalars())


async def _outside(db: Database, ids: list[int], project_id: int | None) -> set[int]:
    """Those of ``ids`` that belong to another project."""
    async with db.tx() as conn, as_asker(conn):
        found = await conn.execute(sa.select(e.id).where(e.id.in_(ids), ~in_project(project_id)))
        return set(found.scalars())

"""Changes by MLflow's clients of experiments and trials.

A script that knows only MLflow makes an unmanaged experiment, and trials of it: it is `native` here. Its
parameters are the trial's hyperparameters, its metrics go where all metrics go. Data without a place in our
other tables (tags, names of runs, parameters that a managed trial logs beside its hyperparameters) is in
`mlflow_runs` and `mlflow_experiments`.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import Quotas
from determined.common.wire import limits
from determined_registry.database.tables import (
    experiments,
    mlflow_experiments,
    mlflow_runs,
    trials,
)
from determined_registry.mlflow.names import OWN_GROUP, flat, param_value
from determined_service.base import topics
from determined_service.base.checks import check_bytes
from determined_service.base.errors import BadRequest, Conflict, NotFound
from determined_service.ingest.mlflow_batches import Point
from determined_service.ingest.reports import MAX_STEPS, ReportBatch
from determined_service.ingest.streams import StreamPosition
from determined_service.lifecycle import unmanaged
from determined_service.lifecycle.experiments import lock_experiment
from determined_service.state.change import Change

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STREAMS = uuid.UUID("8b1d4a39-6ed7-4f1c-9a7e-5c1f0b7a9a44")
GROUPS = ("training", "validation", "system")
_VALIDATION = (
    "val_",
    "valid_",
    "validation_",
    "eval_",
    "test_",
    "val/",
    "valid/",
    "eval/",
    "test/",
)

x = mlflow_experiments.c
m = mlflow_runs.c

# A trial without a row of its run still has a run. The row is read by a second statement: the first one would
# show it as it was before the wait for the lock.
_LOCK_RUN = sa.text("SELECT FROM trials WHERE id = :id FOR NO KEY UPDATE")
_RUN = sa.text(
    """
    SELECT t.id, t.hparams, coalesce(m.native, false) AS native, coalesce(m.params, '{}') AS params,
           coalesce(m.tags, '{}') AS tags, coalesce(m.artifacts, '{}') AS artifacts,
           coalesce(m.inputs, '[]') AS inputs
    FROM trials t LEFT JOIN mlflow_runs m ON m.trial_id = t.id WHERE t.id = :id
    """
)
_FACTS = sa.text(
    """
    WITH seen AS (
        UPDATE trials SET seen_at = now() WHERE id = :id AND seen_at < now() - interval '10 minutes'
    )
    SELECT t.run_count, coalesce(m.native, false) AS native, m.deleted_at IS NOT NULL OR e.archived AS
    deleted,
           e.config -> 'searcher' ->> 'metric' AS searcher_metric
    FROM trials t JOIN experiments e ON e.id = t.experiment_id LEFT JOIN mlflow_runs m ON m.trial_id = t.id
    WHERE t.id = :id
    """
)


@dataclass(frozen=True, slots=True)
class RunChange:
    """Changes of a run. Fields that are None, and keys missing in ``tags`` and ``artifacts``, stay as they
    are; a key whose value is None is removed. ``inputs`` are added."""

    name: str | None = None
    tags: Mapping[str, str | None] | None = None
    params: Mapping[str, str] | None = None
    inputs: Sequence[Mapping[str, Any]] | None = None
    artifacts: Mapping[str, int | None] | None = None
    deleted: bool | None = None


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """The facts about a trial that a report of metrics needs."""

    run_count: int
    native: bool
    searcher_metric: str | None


async def find_native(conn: AsyncConnection, name: str) -> int | None:
    """The experiment that an MLflow client has made under that name."""
    found: int | None = (
        await conn.execute(sa.select(x.experiment_id).where(x.name == name))
    ).scalar_one_or_none()
    return found


async def is_native(conn: AsyncConnection, experiment_id: int) -> bool:
    """True if an MLflow client has made the experiment."""
    found = await conn.execute(
        sa.select(x.experiment_id).where(x.experiment_id == experiment_id, x.name.is_not(None))
    )
    return found.first() is not None


async def name_experiment(
    change: Change, experiment_id: int, name: str, tags: Mapping[str, str]
) -> None:
    """A new experiment is an MLflow client's. Raises Conflict when there is one of that name."""
    check_bytes(len(orjson.dumps(dict(tags))), limits.METADATA_BYTES, "tags")
    made = await change.conn.execute(
        insert(mlflow_experiments)
        .values(experiment_id=experiment_id, name=name, tags=dict(tags))
        .on_conflict_do_nothing()
        .returning(x.experiment_id)
    )
    if made.first() is None:
        raise Conflict(f"an experiment {name!r} already exists")


async def change_experiment(
    change: Change,
    experiment_id: int,
    *,
    name: str | None = None,
    tags: Mapping[str, str | None] | None = None,
) -> None:
    """Raises NotFound; Conflict when another experiment has the name."""
    conn = change.conn
    await lock_experiment(change, experiment_id)
    # A second statement, as for runs.
    found = await conn.execute(sa.select(x.name, x.tags).where(x.experiment_id == experiment_id))
    row = found.first()
    if name is not None:
        if row is not None and row.name is not None:
            other = await find_native(conn, name)
            if other not in (None, experiment_id):
                raise Conflict(f"an experiment {name!r} already exists")
            await conn.execute(
                sa.update(mlflow_experiments)
                .where(x.experiment_id == experiment_id)
                .values(name=name)
            )
        # What MLflow shows of ours ends in its number.
        shown = name.removesuffix(f" #{experiment_id}")
        await conn.execute(
            sa.update(experiments).where(experiments.c.id == experiment_id).values(name=shown)
        )
        await note_update(change, experiment_id)
    if tags is not None:
        after = _changed({} if row is None else row.tags, tags, "tags")
        await conn.execute(
            insert(mlflow_experiments)
            .values(experiment_id=experiment_id, tags=after)
            .on_conflict_do_update(index_elements=[x.experiment_id], set_={"tags": after})
        )
    change.notify(topics.experiment(experiment_id))


async def note_update(change: Change, experiment_id: int) -> None:
    """The experiment has been renamed, hidden or shown now."""
    values = {"updated_at": sa.func.now()}
    await change.conn.execute(
        insert(mlflow_experiments)
        .values(experiment_id=experiment_id, **values)
        .on_conflict_do_update(index_elements=[x.experiment_id], set_=values)
    )


async def start_run(
    change: Change, experiment_id: int, name: str, tags: Mapping[str, str], quotas: Quotas
) -> int:
    """A new trial of an unmanaged experiment, which runs from now on. Raises as
    :func:`unmanaged.put_trial`."""
    check_bytes(len(orjson.dumps(dict(tags))), limits.METADATA_BYTES, "tags")
    trial_id = await unmanaged.put_trial(change, experiment_id, {}, None, quotas)
    await unmanaged.start(change, trial_id, False, quotas)
    await change.conn.execute(
        sa.insert(mlflow_runs).values(trial_id=trial_id, native=True, name=name, tags=dict(tags))
    )
    return trial_id


async def change_run(change: Change, trial_id: int, given: RunChange) -> None:
    """Apply the changes to the run. Raises NotFound; BadRequest for a parameter that has another value, and
    for too large values."""
    if (await change.conn.execute(_LOCK_RUN, {"id": trial_id})).first() is None:
        raise NotFound(f"run {trial_id} does not exist")
    row = (await change.conn.execute(_RUN, {"id": trial_id})).one()
    values: dict[str, Any] = {}
    if given.name is not None:
        values["name"] = given.name
    tags: dict[str, str | None] = dict(given.tags or {})
    if given.name is not None and row.native:
        tags["mlflow.runName"] = given.name
    if tags:
        values["tags"] = _changed(row.tags, tags, "tags")
    if given.inputs:
        values["inputs"] = _once([*row.inputs, *given.inputs])
        check_bytes(len(orjson.dumps(values["inputs"])), limits.METADATA_BYTES, "inputs")
    if given.artifacts:
        values["artifacts"] = _changed(row.artifacts, given.artifacts, "artifacts")
    if given.deleted is not None:
        values["deleted_at"] = sa.func.now() if given.deleted else None
    if given.params:
        await _set_params(change, row, given.params, values)
    if values:
        await change.conn.execute(
            insert(mlflow_runs)
            .values(trial_id=trial_id, **values)
            .on_conflict_do_update(index_elements=[m.trial_id], set_=values)
        )
        change.notify(topics.trial(trial_id))


def _once(inputs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Each data set and model once, as it was said first: clients ask again, and MLflow's store does so."""
    found: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for one in inputs:
        of = one.get("dataset")
        data = (of.get("name"), of.get("digest")) if isinstance(of, dict) else (None, None)
        found.setdefault((one.get("model_id"), *data), one)
    return list(found.values())


async def _set_params(
    change: Change, row: Any, params: Mapping[str, str], values: dict[str, Any]
) -> None:
    known = {**dict(flat(row.hparams)), **row.params}
    for key, value in params.items():
        if known.get(key, value) != value:
            raise BadRequest(
                f"Changing param values is not allowed. Param with key='{key}' was already logged with "
                f"value='{known[key]}' for run ID='{row.id}'. Attempted logging new value '{value}'."
            )
    new = {key: value for key, value in params.items() if key not in known}
    if not new:
        return
    if not row.native:
        values["params"] = _changed(row.params, new, "params")
        return
    after = {**row.hparams, **{key: param_value(value) for key, value in new.items()}}
    check_bytes(len(orjson.dumps(after)), limits.METADATA_BYTES, "params")
    await change.conn.execute(sa.update(trials).where(trials.c.id == row.id).values(hparams=after))


def _changed(before: Mapping[str, Any], by: Mapping[str, Any], what: str) -> dict[str, Any]:
    after = {key: value for key, value in {**before, **by}.items() if value is not None}
    check_bytes(len(orjson.dumps(after)), limits.METADATA_BYTES, what)
    return after


async def set_state(change: Change, trial_id: int, state: str, quotas: Quotas) -> None:
    """Set the state that a native run's script reports; the run may go on after its end.

    Raises NotFound; BadRequest for a run that the cluster runs; OverQuota.
    """
    await unmanaged.reopen_or_end(change, trial_id, state, quotas)


async def facts(conn: AsyncConnection, trial_id: int) -> ReportFacts:
    """Raises NotFound; BadRequest for a run that is hidden."""
    row = (await conn.execute(_FACTS, {"id": trial_id})).first()
    if row is None:
        raise NotFound(f"run {trial_id} does not exist")
    if row.deleted:
        raise BadRequest(
            f"The run {trial_id} must be in the 'active' state. Current state is deleted."
        )
    return ReportFacts(row.run_count, row.native, row.searcher_metric)


def group_of(key: str, of: ReportFacts) -> tuple[str, str]:
    """The group and name under which a metric is kept.

    A native run's is what the client called it, in the group that its name tells. In a trial of the
    cluster's a name that begins with a group, or is that of the searcher's metric, means what a trial's
    own report would.
    """
    if of.native:
        group, slash, _ = key.partition("/")
        if slash and group in GROUPS:
            return group, key
        return ("validation" if key.startswith(_VALIDATION) else "training"), key
    if key == of.searcher_metric:
        return "validation", key
    group, slash, name = key.partition("/")
    if slash and group in GROUPS and name:
        return group, name
    return OWN_GROUP, key


_KNOWN = sa.text(
    """
    SELECT DISTINCT g.place FROM unnest(
        cast(:groups AS text[]), cast(:names AS text[]), cast(:steps AS bigint[]), cast(:moments AS bigint[])
    ) WITH ORDINALITY AS g(group_name, name, step, moment, place)
    JOIN metrics m ON m.trial_id = :trial AND m.group_name = g.group_name AND m.steps_completed = g.step
        AND round(extract(epoch FROM m.end_time) * 1000)::bigint = g.moment AND m.metrics ? g.name
    """
)


async def without_known(
    conn: AsyncConnection, trial_id: int, of: ReportFacts, metrics: Sequence[Point]
) -> list[Point]:
    """The metrics that the run does not have at their steps and times."""
    places = [group_of(key, of) for key, *_ in metrics]
    given = {
        "trial": trial_id,
        "groups": [group for group, _ in places],
        "names": [name for _, name in places],
        "steps": [step for *_, step in metrics],
        "moments": [moment for _, _, moment, _ in metrics],
    }
    known = set((await conn.execute(_KNOWN, given)).scalars())
    return [one for place, one in enumerate(metrics, 1) if place not in known]


def batch(trial_id: int, of: ReportFacts, metrics: Collection[Point], sent: bytes) -> ReportBatch:
    """The reports of metrics, each ``(key, value, milliseconds since 1970, step)``.

    ``sent``: the request; the same one again changes nothing, as MLflow keeps a point once. Values of one
    name that have one step and time are separate reports. Raises BadRequest.
    """
    stream = uuid.uuid5(_STREAMS, f"{trial_id} {hashlib.sha256(sent).hexdigest()}")
    found = ReportBatch(trial_id, of.run_count, StreamPosition(stream, 0))
    reports: dict[tuple[str, int, int, int], dict[str, Any]] = {}
    seen: dict[tuple[str, int, int, str], int] = {}
    groups: dict[str, tuple[str, str]] = {}
    for key, value, moment, step in metrics:
        known = groups.get(key)
        if known is None:
            known = groups[key] = group_of(key, of)
        group, name = known
        place = (group, step, moment, name)
        turn = seen.get(place, 0)
        seen[place] = turn + 1
        reports.setdefault((group, step, moment, turn), {})[name] = value
    for (group, step, moment, _), values in reports.items():
        found.add(group, step, values, None, _iso(moment), least=-MAX_STEPS, by_time=True)
    return found


def _iso(millis: int) -> str:
    return (_EPOCH + timedelta(milliseconds=millis)).isoformat()

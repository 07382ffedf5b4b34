"""``continue``: an experiment that has ended goes on in place, under the same id and with the same trials.

The search begins again with the same seed, and so with the same trials; their known results are used again.
For each trial ``known`` keeps the metric of every length that it reported and, if it completed before the
searcher's target, the reason. When the new search asks for a trial that exists,
:mod:`~determined_service.search.take_up` takes it up: an operation with a known result is completed at
once, and only an operation without one makes the trial run, from its latest checkpoint. So the trials that
were canceled or failed run again, the others do not, and the search's log stays complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import sqlalchemy as sa

from determined import expconf
from determined.common.cluster_config import Quotas
from determined_registry.database.tables import experiments, trials
from determined_searchers import SearcherError
from determined_service.base import policies, topics
from determined_service.base.aside import aside
from determined_service.base.errors import BadRequest, Conflict
from determined_service.base.policy import Held
from determined_service.base.settings import Settings
from determined_service.lifecycle import config_policies, trial_queue
from determined_service.lifecycle import experiments as experimenting
from determined_service.lifecycle.places import require_open_experiment, workspace_of
from determined_service.lifecycle.quotas import require_room
from determined_service.scheduling.capacity import check_slots
from determined_service.scheduling.container_rights import require_rights
from determined_service.search import beginning
from determined_service.search.beginning import SearchBeginning
from determined_service.state import run_records, states
from determined_service.state.change import Change
from determined_service.submission.completing import check_patterns
from determined_service.submission.size import check_size

SINGLE = "single"
SEARCHES = (SINGLE, "random", "grid", "async_halving", "adaptive_asha")
"""Search methods whose n-th trial does not depend on results."""
FIXED = ("project", "workspace")
"""Fields that an override must not change."""

# The record of a trial's present task: another task replaces it as soon as the trial runs again.
_TASK = """jsonb_build_object(
            'id', t.task_id, 'state', t.state, 'reason', t.reason, 'end_time', t.end_time)"""
_REMEMBER = sa.text(
    f"""
    UPDATE trials t SET known = jsonb_build_object(
        'lengths', coalesce(t.known -> 'lengths', '{{}}') || coalesce(
            (SELECT jsonb_object_agg(v.event ->> 'length', v.event -> 'metric')
             FROM search_events v
             WHERE v.experiment_id = t.experiment_id
               AND v.event ->> 'type' = 'validation_completed'
               AND v.event ->> 'request_id' = t.request_id), '{{}}'),
        'completed', t.state = 'COMPLETED',
        'exit', CASE WHEN t.state = 'COMPLETED' THEN coalesce(
                    t.early_exit, CASE WHEN t.op_complete THEN NULL ELSE 'USER_REQUESTED_STOP' END)
                END,
        'task', {_TASK})
    WHERE t.experiment_id = :id
    """
)
_FORGET = sa.text(
    f"""
    UPDATE trials t
    SET known = jsonb_build_object('lengths', '{{}}'::jsonb, 'completed', false, 'task', {_TASK})
    WHERE t.experiment_id = :id
    """
)
# Every task so far keeps the configuration under which it ran.
_KEEP_CONFIG = sa.text(
    """
    UPDATE tasks k SET config = e.config
    FROM trials t JOIN experiments e ON e.id = t.experiment_id
    WHERE e.id = :id AND (k.id = t.task_id OR k.former_of = t.id) AND k.config IS NULL
    """
)
# Outside of the table of moves: only `continue` leads out of an end state.
_REVIVE_EXPERIMENT = sa.text(
    """
    UPDATE experiments
    SET state = 'ACTIVE', reason = NULL, end_time = NULL, archived = false
    WHERE id = :id
    RETURNING id, state, config, resource_pool, config -> 'searcher' AS searcher
    """
)


async def read_changes(text: str) -> expconf.Document | None:
    """The changes in the YAML ``text``; None if it is blank or ``{}``, which Determined's `det` always sends.

    Raises BadRequest.
    """
    if not text.strip():
        return None
    try:
        found = await aside(len(text), expconf.load_yaml, text)
    except expconf.ConfigError as error:
        raise BadRequest(str(error)) from error
    return found if found.data else None


def override(
    config: Mapping[str, Any], given: expconf.Document, held: Held = ()
) -> tuple[dict[str, Any], list[str]]:
    """``config``, which is complete, with ``given`` laid over it within the config policies ``held``; remarks
    on what these have changed. Raises BadRequest."""
    try:
        data = given.data if isinstance(given.data, dict) else {}
        for field in FIXED:
            if field in data and data[field] != config.get(field):
                raise BadRequest(f"{field}: cannot be changed when an experiment is continued")
        searcher = data.get("searcher")
        name = searcher.get("name") if isinstance(searcher, dict) else None
        if name is not None and name != config["searcher"]["name"]:
            raise BadRequest(
                f"searcher.name: an experiment keeps its search method when it is continued: "
                f"{config['searcher']['name']}, not {name}"
            )
        above = policies.above(held)
        prescribed = above.get("searcher", {}).get("name", config["searcher"]["name"])
        if prescribed != config["searcher"]["name"]:
            # It keeps its search method.
            del above["searcher"]
        found = expconf.complete(given, defaults=config, above=above)
    except expconf.ConfigError as error:
        raise BadRequest(policies.explained(held, str(error))) from error
    remarks = policies.overridden(held, data)
    found["resources"], more = policies.limit_slots(held, found["resources"])
    return found, remarks + more


async def require_continuable(change: Change, experiment_id: int, overrides: bool) -> sa.Row[Any]:
    """The locked experiment. Raises NotFound, and Conflict or BadRequest with the reason why it cannot be
    continued.
    """
    row = await experimenting.lock_experiment(change, experiment_id)
    if row.state not in states.TERMINAL:
        raise Conflict(
            f"experiment {experiment_id} is {row.state}: only an experiment that has ended can be continued"
        )
    unmanaged = await change.conn.execute(
        sa.select(experiments.c.unmanaged).where(experiments.c.id == experiment_id)
    )
    if unmanaged.scalar_one():
        raise BadRequest(
            f"experiment {experiment_id} is unmanaged: to continue it, run its script again"
        )
    await require_open_experiment(change.conn, experiment_id)
    name = row.searcher["name"]
    if name not in SEARCHES:
        raise BadRequest(
            f"a search by {name} cannot be continued; those by {', '.join(SEARCHES)} can"
        )
    reports = trial_queue.is_reports_form(row.searcher)
    if reports and name not in (SINGLE, "random", "grid"):
        raise BadRequest(f"a search by {name} without lengths cannot be continued")
    if name != SINGLE:
        if overrides:
            raise BadRequest(
                f"experiment {experiment_id} is a search ({name}): only the configuration of a "
                f"single trial can be changed when it is continued"
            )
        await _require_unfinished(change, experiment_id, row.state)
    return row


async def _require_unfinished(change: Change, experiment_id: int, state: str) -> None:
    found = await change.conn.execute(
        sa.select(
            sa.func.count(), sa.func.count().filter(trials.c.state != states.COMPLETED)
        ).where(trials.c.experiment_id == experiment_id)
    )
    total, unfinished = found.one()
    if state == states.COMPLETED and not unfinished:
        raise Conflict(
            f"there is nothing to continue: all {total} trials of experiment {experiment_id} have completed"
        )


def _overridden(
    config: Mapping[str, Any], given: expconf.Document, held: Held
) -> tuple[dict[str, Any], SearchBeginning, list[str]]:
    found, remarks = override(config, given, held)
    check_size(found)
    try:
        begun = beginning.begin(found)
    except SearcherError as error:
        raise BadRequest(str(error)) from error
    return found, begun, remarks


async def reconfigure(
    change: Change, experiment_id: int, given: expconf.Document, settings: Settings
) -> tuple[SearchBeginning, tuple[str, ...], list[str]]:
    """Lays ``given`` over the (locked) experiment's configuration. Raises BadRequest.

    Returns the beginning of its search under that, warnings, and remarks on what config policies have
    changed.
    """
    found = await change.conn.execute(
        sa.select(experiments.c.config, experiments.c.owner_id).where(
            experiments.c.id == experiment_id
        )
    )
    row = found.one()
    size = len(orjson.dumps(given.data))
    held: Held = ()
    if settings.policies.known:
        held = await config_policies.of_experiment(change.conn, experiment_id)
    config, begun, remarks = await aside(size, _overridden, row.config, given, held)
    await check_patterns(config)
    pool, warnings = await check_slots(
        change.conn, config, settings.cluster, workspace_of(experiment_id)
    )
    config, more = await config_policies.limited(change.conn, config, pool, held, settings.cluster)
    await require_rights(change.conn, config, pool, row.owner_id, settings)
    await change.conn.execute(_KEEP_CONFIG, {"id": experiment_id})
    await change.conn.execute(
        sa.update(experiments)
        .where(experiments.c.id == experiment_id)
        .values(
            config=config,
            name=config["name"],
            description=config.get("description") or "",
            labels=list(config.get("labels") or []),
            resource_pool=pool,
        )
    )
    return begun, warnings, remarks + more


async def begin_again(
    change: Change, experiment: sa.Row[Any], quotas: Quotas, begun: SearchBeginning | None = None
) -> None:
    """The (locked, continuable) experiment and its unfinished trials are ACTIVE again.

    ``begun``: what :func:`reconfigure` has returned; None: the experiment keeps its configuration. Raises
    OverQuota.
    """
    given = {"id": experiment.id}
    await change.conn.execute(
        sa.select(trials.c.id)
        .where(trials.c.experiment_id == experiment.id)
        .order_by(trials.c.id)
        .with_for_update(key_share=True)
    )
    # A single trial is continued even if it has reported its last validation.
    single = experiment.searcher["name"] == SINGLE
    await change.conn.execute(_FORGET if single else _REMEMBER, given)
    revived = (await change.conn.execute(_REVIVE_EXPERIMENT, given)).one()
    if begun is None:
        size = len(orjson.dumps(revived.config))
        try:
            begun = await aside(size, beginning.begin, revived.config)
        except SearcherError as error:
            # An older release, or none, has checked the configuration.
            raise Conflict(f"experiment {experiment.id} cannot be continued: {error}") from error
    await beginning.store_again(change, revived, begun)
    change.notify(topics.experiment(experiment.id))
    await run_records.wake(change, run_records.EXPERIMENT, experiment.id)
    counted = ("experiments", "trials", "stored_trials", "metric_bytes", "package_bytes")
    await require_room(change.conn, quotas, experiment.owner_id, *counted)

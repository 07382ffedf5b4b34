"""Changes of an experiment besides its state: name, description, notes, labels, policy."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from determined_registry.database.tables import experiments
from determined_service.base import topics
from determined_service.base.errors import BadRequest, NotFound
from determined_service.deleting import deletions
from determined_service.lifecycle.experiments import lock_experiment
from determined_service.state import states
from determined_service.state.change import Change

e = experiments.c

_POLICY = {
    "saveExperimentBest": "save_experiment_best",
    "saveTrialBest": "save_trial_best",
    "saveTrialLatest": "save_trial_latest",
}


async def describe(change: Change, experiment_id: int, values: Mapping[str, Any]) -> None:
    """Sets columns of the experiment, if there is one."""
    if not values:
        return
    await change.conn.execute(sa.update(experiments).where(e.id == experiment_id).values(values))
    change.notify(topics.experiment(experiment_id))


async def relabel(
    change: Change, experiment_id: int, *, add: Collection[str] = (), remove: Collection[str] = ()
) -> list[str]:
    """The experiment's labels afterwards. Raises NotFound."""
    found = await change.conn.execute(
        sa.select(e.labels).where(e.id == experiment_id).with_for_update(key_share=True)
    )
    labels = found.scalar_one_or_none()
    if labels is None:
        raise NotFound(f"experiment {experiment_id} does not exist")
    after = sorted(({*labels} | {*add}) - {*remove})
    await describe(change, experiment_id, {"labels": after})
    return after


async def set_policy(change: Change, experiment_id: int, given: Mapping[str, Any]) -> None:
    """Replaces (parts of) the policy that says which checkpoints are kept. Checkpoints that it no longer
    keeps are deleted: at once when the experiment has ended, else at its end. Raises NotFound, BadRequest."""
    experiment = await lock_experiment(change, experiment_id)
    values = _read_policy(given)
    config = e.config
    await change.conn.execute(
        sa.update(experiments)
        .where(e.id == experiment_id)
        .values(
            config=sa.func.jsonb_set(
                config,
                sa.literal(["checkpoint_storage"], sa.ARRAY(sa.Text)),
                sa.func.coalesce(config["checkpoint_storage"], sa.cast({}, config.type)).op("||")(
                    sa.cast(values, config.type)
                ),
            )
        )
    )
    change.notify(topics.experiment(experiment_id))
    if experiment.state in states.TERMINAL:
        await deletions.collect_garbage(change, experiment_id)


def _read_policy(given: Mapping[str, Any]) -> dict[str, int]:
    values: dict[str, int] = {}
    for name, value in given.items():
        if name not in _POLICY:
            raise BadRequest(
                f"checkpointStorage.{name} of an experiment cannot be changed; its policy can: "
                f"{', '.join(_POLICY)}"
            )
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise BadRequest(f"checkpointStorage.{name} must be a whole number of at least 0")
        values[_POLICY[name]] = value
    return values

"""Blocks that submit experiments and wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from determined.common.api import Session
from determined.experimental._determined import Determined
from determined.experimental._submission import Submission, plan
from determined_flows.blocks import keys
from determined_flows.blocks.cluster import HERE, DeterminedCluster
from determined_flows.blocks.results import Checkpoint, Experiment, ExperimentFailed
from determined_flows.blocks.waiting import until_ended

Config = str | Path | dict[str, Any]

EXPERIMENTS = "/api/v1/experiments"
FAILED = ("CANCELED", "ERROR")
ENDED = ("COMPLETED", *FAILED, "DELETED", "DELETE_FAILED", "DELETING")


@task(name="submit-experiment", cache_policy=NO_CACHE)
async def submit_experiment(
    config: Config,
    model_dir: str | Path | None = None,
    includes: Iterable[str | Path] = (),
    *,
    cached: bool = False,
    cluster: DeterminedCluster = HERE,
) -> Experiment:
    """Submits an experiment, once: a try of the same call finds the experiment of the try before.

    Args:
        config: a YAML file's path, a mapping, or YAML text (more than one line).
        model_dir: the directory with the training code; ``includes``: further files and directories.
        cached: answer with this user's earlier experiment of the same configuration and the same code, if it
            runs or has completed.
        cluster: which cluster, and as whom.

    Raises:
        ConfigError, ContextError: nothing was sent. BadRequestException: the service refused it.
    """
    with cluster.session() as session:
        return await asyncio.to_thread(_submit, session, config, model_dir, tuple(includes), cached)


@task(name="wait-for-experiment", cache_policy=NO_CACHE)
async def wait_for_experiment(
    experiment_id: int, *, cluster: DeterminedCluster = HERE, check: bool = True
) -> Experiment:
    """Waits for the experiment's end. When the flow is cancelled meanwhile, the experiment is killed.

    Raises ExperimentFailed if it did not complete, unless ``check`` is false; NotFoundException.
    """
    with cluster.session() as session:
        return await wait_until_ended(session, experiment_id, check)


@task(name="run-experiment", cache_policy=NO_CACHE)
async def run_experiment(
    config: Config,
    model_dir: str | Path | None = None,
    includes: Iterable[str | Path] = (),
    *,
    cached: bool = False,
    cluster: DeterminedCluster = HERE,
    check: bool = True,
) -> Experiment:
    """:func:`submit_experiment` and :func:`wait_for_experiment` in one task, with their arguments."""
    with cluster.session() as session:
        made = await asyncio.to_thread(_submit, session, config, model_dir, tuple(includes), cached)
        return await wait_until_ended(session, made.id, check)


@task(name="best-checkpoint", cache_policy=NO_CACHE)
async def best_checkpoint(
    experiment_id: int,
    metric: str | None = None,
    smaller_is_better: bool | None = None,
    *,
    cluster: DeterminedCluster = HERE,
) -> Checkpoint:
    """The experiment's best checkpoint, by the searcher's metric or by a validation ``metric``, which needs
    ``smaller_is_better``.

    Raises CheckpointNotFound, NotFoundException.
    """
    with cluster.session() as session:
        return await asyncio.to_thread(_best, session, experiment_id, metric, smaller_is_better)


def _best(
    session: Session, experiment_id: int, metric: str | None, smaller: bool | None
) -> Checkpoint:
    found = Determined._with_session(session).get_experiment(experiment_id)
    best = found.top_checkpoint(metric, smaller)
    training = best.training
    assert training is not None and training.trial_id is not None
    metrics = (training.validation_metrics or {}).get("avgMetrics") or {}
    return Checkpoint(
        uuid=best.uuid,
        experiment_id=experiment_id,
        trial_id=training.trial_id,
        steps_completed=int((best.metadata or {}).get("steps_completed", 0)),
        metrics={
            name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))
        },
    )


def _submit(
    session: Session,
    config: Config,
    model_dir: str | Path | None,
    includes: tuple[str | Path, ...],
    cached: bool,
) -> Experiment:
    planned = plan(config, model_dir, includes)
    if cached:
        return _send(session, replace(planned, cached=True))
    return submit_planned(session, planned)


def submit_planned(session: Session, planned: Submission) -> Experiment:
    """Sends the submission, once for each call of a block."""
    return _send(session, replace(planned, idempotency_key=keys.of_call(_content(planned))))


def _send(session: Session, planned: Submission) -> Experiment:
    submitted = planned.send(session)
    for warning in submitted.warnings:
        get_run_logger().warning("%s", warning)
    return _read(session, submitted.experiment.id)


def _content(planned: Submission) -> str:
    """Of configuration and code: the same for equal files with any times."""
    data = orjson.dumps(planned.config.document.data, option=orjson.OPT_SORT_KEYS)
    files = sorted((item.path, item.content or b"") for item in planned.items)
    return keys.digest(
        data, *(part for path, content in files for part in (path.encode(), content))
    )


async def wait_until_ended(session: Session, experiment_id: int, check: bool) -> Experiment:
    """As :func:`wait_for_experiment`, with an open session."""
    found = await until_ended(
        session,
        f"{EXPERIMENTS}/{experiment_id}",
        f"experiment {experiment_id}",
        lambda: _read(session, experiment_id),
        ENDED,
    )
    if check and found.state in FAILED:
        raise ExperimentFailed(found)
    return found


def _read(session: Session, experiment_id: int) -> Experiment:
    found = session.get(f"{EXPERIMENTS}/{experiment_id}")["experiment"]
    best = found.get("bestTrialSearcherMetric")
    return Experiment(
        id=experiment_id,
        name=found["name"],
        state=found["state"].removeprefix("STATE_"),
        metric=(found["config"].get("searcher") or {}).get("metric"),
        best_metric=float(best) if isinstance(best, (int, float)) else None,
    )

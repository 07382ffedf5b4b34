"""Blocks for the model registry, and the evaluation of checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from prefect import task
from prefect.cache_policies import NO_CACHE

from determined.common.api import Session, errors
from determined.common.promotion import ScoreComparison, trial
from determined.experimental._metrics import iter_metrics
from determined.experimental._submission import plan, read_config
from determined_flows.blocks import keys
from determined_flows.blocks.cluster import HERE, DeterminedCluster
from determined_flows.blocks.experiments import submit_planned, wait_until_ended
from determined_flows.blocks.results import Evaluation, Move, Version

MODELS = "/api/v1/models"


@task(name="register-model", cache_policy=NO_CACHE)
async def register_model(
    model: str, checkpoint: str, *, comment: str = "", cluster: DeterminedCluster = HERE
) -> Version:
    """Makes the checkpoint (its UUID) the model's next version, once; a model that does not exist is made.

    Raises ForbiddenException unless model and checkpoint are the caller's own; NotFoundException;
    ConflictException when the checkpoint is not whole, or the model is archived.
    """
    with cluster.session() as session:
        return await asyncio.to_thread(_register, session, model, checkpoint, comment)


def _register(session: Session, model: str, checkpoint: str, comment: str) -> Version:
    try:
        session.get(_path(model))
    except errors.NotFoundException:
        # Somebody may make it meanwhile.
        with contextlib.suppress(errors.ConflictException):
            session.post(MODELS, json={"name": model})
    body: dict[str, Any] = {"checkpointUuid": checkpoint, "comment": comment}
    key = keys.of_call(keys.digest(b"register", model.encode(), checkpoint.encode()))
    if key is not None:
        body["requestId"] = str(keys.as_uuid(key))
    made = session.post(f"{_path(model)}/versions", json=body)["modelVersion"]
    return Version(
        model=made["model"]["name"], version=made["version"], checkpoint=made["checkpoint"]["uuid"]
    )


@task(name="promote", cache_policy=NO_CACHE)
async def promote(
    model: str, version: int, alias: str = "champion", *, cluster: DeterminedCluster = HERE
) -> Move:
    """Lets the alias stand for the version from now on; if it does already, nothing changes.

    Raises NotFoundException, BadRequestException, ForbiddenException; ConflictException when the model is
    archived.
    """
    with cluster.session() as session:
        path = f"{_path(model)}/aliases/{quote(alias, safe='')}"
        found = await asyncio.to_thread(session.put, path, json={"version": version})
    return Move(model=model, alias=alias, version=version, before=found["fromVersion"])


@task(name="evaluate", cache_policy=NO_CACHE)
async def evaluate(
    checkpoint: str,
    function: str,
    model_dir: str | Path,
    config: dict[str, Any] | str | Path | None = None,
    *,
    includes: Iterable[str | Path] = (),
    cluster: DeterminedCluster = HERE,
) -> Evaluation:
    """Score a checkpoint by a function of yours, in a separate trial on the cluster.

    Args:
        checkpoint: its UUID.
        function: ``module:function`` within ``model_dir``, called as ``function(path, hparams)`` with the
            downloaded checkpoint's directory and the hyperparameters of its trial. It returns a mapping of
            names to numbers, or to lists of one number for each example.
        model_dir: the directory with the code; ``includes``: further files and directories.
        config: an experiment configuration whose ``environment``, ``resources`` and storage count.

    Raises ExperimentFailed when the function does; ConfigError, ContextError.
    """
    training = {} if config is None else read_config(config).document.data
    given = trial.configuration(
        training,
        f"evaluation of {checkpoint[:8]}",
        {"evaluate": function, "checkpoints": {"challenger": checkpoint}},
    )
    with cluster.session() as session:
        planned = plan(given, model_dir, includes)
        made = await asyncio.to_thread(submit_planned, session, planned)
        await wait_until_ended(session, made.id, check=True)
        return await asyncio.to_thread(_scores, session, made.id, checkpoint)


def _scores(session: Session, experiment_id: int, checkpoint: str) -> Evaluation:
    trials = session.get(f"/api/v1/experiments/{experiment_id}/trials")["trials"]
    *_, report = iter_metrics(session, [trials[0]["id"]], trial.GROUP)
    found = ScoreComparison.read(report.metrics[trial.COMPARISON])
    means = {name: one.challenger for name, one in found.metrics.items()}
    return Evaluation(
        checkpoint=checkpoint,
        experiment_id=experiment_id,
        scores={name: mean for name, mean in means.items() if mean is not None},
        examples=max((one.examples for one in found.metrics.values()), default=0),
    )


def _path(model: str) -> str:
    return f"{MODELS}/{quote(model, safe='')}"

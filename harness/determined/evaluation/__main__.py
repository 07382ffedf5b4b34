"""The process of an evaluation's trial (:mod:`determined.evaluation`)."""

from __future__ import annotations

import importlib
import logging
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import determined as det
from determined.common.promotion.trial import COMPARISON, DATA_VERSION, GROUP
from determined.evaluation import compare, data
from determined.experimental import client

logger = logging.getLogger("determined.evaluation")


def main() -> None:
    """Run the job described by the trial's hyperparameters and report its result."""
    info = det.get_cluster_info()
    if info is None or info.trial is None:
        raise SystemExit(
            "determined.evaluation runs in trials that the platform submits, nowhere else"
        )
    # The user's modules lie in the working directory.
    sys.path.insert(0, str(Path.cwd()))
    hparams = info.trial.hparams
    with det.core.init() as context:
        found = _data_version(hparams) if "evaluate" not in hparams else _evaluate(hparams)
        context.train.report_metrics(GROUP, 1, found)
        for operation in context.searcher.operations():
            context.train.report_validation_metrics(operation.length, {"done": 1})
            operation.report_completed(1)


def load(name: str) -> Callable[..., Any]:
    """``module:function`` of the model definition. Raises ValueError, ImportError, AttributeError."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ValueError(f"{name!r} must be of the form module:function")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function


def _data_version(hparams: Mapping[str, Any]) -> dict[str, Any]:
    if hparams.get("data_version"):
        version = data.by_function(load(hparams["data_version"]))
    else:
        version = data.by_files(hparams["data_files"])
    logger.info("the data's version is %s", version)
    return {DATA_VERSION: version}


def _evaluate(hparams: Mapping[str, Any]) -> dict[str, Any]:
    function = load(hparams["evaluate"])
    checkpoints = hparams["checkpoints"]
    scored = {role: _score(function, role, uuid) for role, uuid in sorted(checkpoints.items())}
    rule = hparams.get("rule") or {}
    comparison = compare.compare(
        scored["challenger"],
        scored.get("champion"),
        metric=rule.get("metric"),
        smaller_is_better=bool(rule.get("smaller_is_better")),
        confidence=rule.get("confidence"),
        seed=int(hparams.get("seed", 0)),
    )
    means = {
        f"{role}_{name}": score.mean
        for role, scores in scored.items()
        for name, score in scores.items()
    }
    return {**means, COMPARISON: comparison.to_json()}


def _score(function: Callable[..., Any], role: str, uuid: str) -> dict[str, compare.Score]:
    checkpoint = client.get_checkpoint(uuid)
    hparams = dict(checkpoint.training.hparams) if checkpoint.training is not None else {}
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint.download(str(Path(folder) / "checkpoint"))
        scores = compare.read(function(Path(path), hparams))
    for name, score in scores.items():
        logger.info("%s (%s): %s %.6g", role, uuid, name, score.mean)
    return scores


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    main()

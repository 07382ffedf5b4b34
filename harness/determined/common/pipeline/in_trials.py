"""Steps that call a function of the user's in an experiment of one trial: :func:`trial_configuration`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from determined.common.pipeline import references
from determined.common.pipeline.kinds import CHECK
from determined.common.pipeline.plan import PipelinePlan, PlannedStep
from determined.common.pipeline.references import StepReference
from determined.common.pipeline.resolving import NO_ITEM, Results, put, value_of
from determined.common.promotion import trial


def trial_configuration(
    plan: PipelinePlan,
    step: PlannedStep,
    results: Results,
    name: str,
    hyperparameters: Mapping[str, Any],
) -> dict[str, Any]:
    """The experiment that does what ``hyperparameters`` say, where the experiment of the step ``like`` runs.

    A check runs before anything is known, so what that step takes of others does not count for it. Raises
    ReferenceError_.
    """
    like = plan.step(step.config["like"])
    config = copy.deepcopy(like.config)
    for key, value in like.overrides.items():
        if step.kind != CHECK or not any(True for _ in references.found_in(value, strict=True)):
            put(config, key, copy.deepcopy(value))

    def find(reference: StepReference) -> Any:
        return value_of(reference, results, NO_ITEM)

    made = references.substitute(trial.configuration(config, "", {}), find)
    return {**made, "name": name, "hyperparameters": dict(hyperparameters)}

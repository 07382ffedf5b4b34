"""Experiments and models as building blocks of your own Prefect flows.

::

    from prefect import flow
    from determined_flows import blocks

    @flow
    async def nightly():
        trained = await blocks.run_experiment("const.yaml", "code/")
        best = await blocks.best_checkpoint(trained.id)
        version = await blocks.register_model("digits", best.uuid)
        await blocks.promote("digits", version.version)

Each function is a Prefect task (its plain form: ``run_experiment.fn``) that answers a small, frozen record
of values that JSON can hold. Which cluster they ask, and as whom, says a
:class:`~determined_flows.blocks.cluster.DeterminedCluster` block, or the login of this machine
(docs/automate/blocks.md).
"""

from determined_flows.blocks.cluster import DeterminedCluster
from determined_flows.blocks.commands import run_command
from determined_flows.blocks.experiments import (
    best_checkpoint,
    run_experiment,
    submit_experiment,
    wait_for_experiment,
)
from determined_flows.blocks.models import evaluate, promote, register_model
from determined_flows.blocks.results import (
    Checkpoint,
    Command,
    CommandFailed,
    Evaluation,
    Experiment,
    ExperimentFailed,
    Move,
    Version,
)

__all__ = [
    "Checkpoint",
    "Command",
    "CommandFailed",
    "DeterminedCluster",
    "Evaluation",
    "Experiment",
    "ExperimentFailed",
    "Move",
    "Version",
    "best_checkpoint",
    "evaluate",
    "promote",
    "register_model",
    "run_command",
    "run_experiment",
    "submit_experiment",
    "wait_for_experiment",
]

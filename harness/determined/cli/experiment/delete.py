"""``det e delete``, ``delete-tb-files`` and ``set gc-policy``"""

from __future__ import annotations

from typing import Annotated

import typer

from determined.cli.arguments.confirmation import Yes, confirm
from determined.cli.arguments.ids import ExperimentIds, each, numbers
from determined.cli.errors import talk
from determined.cli.experiment.edit import settings
from determined.cli.experiment.paths import ExperimentId, reference
from determined.cli.following.deletion import wait_for_deletion
from determined.cli.output import format as f
from determined.cli.output import render
from determined.cli.output.render import Column, Format
from determined.cli.state import state
from determined.common.printable import counted

GOING = (
    Column("Trial ID", "TrialID"),
    Column("Total Batches", "StepsCompleted"),
    Column("State", "State"),
    Column("Searcher Metric", "SearcherMetric"),
    Column("UUID", "UUID"),
    Column("Size", lambda r: f.size(sum(int(size) for size in r["Resources"].values()))),
)


def delete(ctx: typer.Context, experiment_ids: ExperimentIds, yes: Yes = False) -> None:
    """Permanently delete experiments that have ended.

    Metrics, logs, checkpoints, TensorBoard files and Prefect runs are deleted with them.
    """
    from determined.common.api import errors

    ids = numbers(experiment_ids)
    named = f"experiment{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}"
    confirm(f"Delete {named} with all metrics, logs and checkpoints? This cannot be undone.", yes)
    refused: dict[int, errors.APIException] = {}
    # All deletions are requested before the first wait, so that they run side by side.
    for experiment_id in ids:
        try:
            reference(ctx, experiment_id).delete()
        except (errors.BadRequestException, errors.ForbiddenException) as error:
            refused[experiment_id] = error

    def end_of(experiment_id: int) -> str:
        if experiment_id in refused:
            raise refused[experiment_id]
        return _wait_until_gone(ctx, experiment_id)

    each(ids, end_of)


def delete_tb_files(ctx: typer.Context, experiment_id: ExperimentId, yes: Yes = False) -> None:
    """Permanently delete the TensorBoard files of an experiment that has ended."""
    confirm(f"Delete the TensorBoard files of experiment {experiment_id} for good?", yes)
    deletion_id = reference(ctx, experiment_id).delete_tensorboard_files()
    done = f"deleted the TensorBoard files of experiment {experiment_id}"
    wait_for_deletion(state(ctx).client, deletion_id, done)


def _wait_until_gone(ctx: typer.Context, experiment_id: int) -> str:
    if reference(ctx, experiment_id).wait_until_deleted():
        return f"deleted experiment {experiment_id}"
    return (
        f"experiment {experiment_id} is not deleted yet; check that an agent is running to"
        " delete its files (det a list)"
    )


@settings.command("gc-policy")
def set_gc_policy(
    ctx: typer.Context,
    experiment_id: ExperimentId,
    save_experiment_best: Annotated[
        int,
        typer.Option(
            "--save-experiment-best",
            metavar="N",
            min=0,
            help="how many of the experiment's best checkpoints to keep",
        ),
    ],
    save_trial_best: Annotated[
        int,
        typer.Option(
            "--save-trial-best",
            metavar="N",
            min=0,
            help="how many of each trial's best checkpoints to keep",
        ),
    ],
    save_trial_latest: Annotated[
        int,
        typer.Option(
            "--save-trial-latest",
            metavar="N",
            min=0,
            help="how many of each trial's latest checkpoints to keep",
        ),
    ],
    yes: Yes = False,
) -> None:
    """Change which checkpoints are kept; the others are deleted.

    The checkpoints of an experiment that runs are deleted at its end.
    """
    policy = {
        "save_experiment_best": save_experiment_best,
        "save_trial_best": save_trial_best,
        "save_trial_latest": save_trial_latest,
    }
    if not yes:
        going = reference(ctx, experiment_id).preview_gc_policy(**policy)
        if going:
            render.show(GOING, going, Format.TABLE)
        talk(f"This policy would delete {counted(len(going), 'checkpoint')} now.")
        confirm("Change the policy? Checkpoints that it does not keep are deleted for good.", yes)
    reference(ctx, experiment_id).set_gc_policy(**policy)
    talk(f"set the checkpoint policy of experiment {experiment_id}")


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("delete")(delete)
    app.command("delete-tb-files")(delete_tb_files)

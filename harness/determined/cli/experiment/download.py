"""``det e download``, ``download-model-def`` and ``download-tensorboard``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from determined.cli.arguments.options import Quiet
from determined.cli.errors import talk
from determined.cli.experiment.paths import ExperimentId, reference
from determined.cli.output.downloads import SmallerIsBetter, SortBy, download_all, ranking
from determined.cli.printing import echo


def download(
    ctx: typer.Context,
    experiment_id: ExperimentId,
    output_dir: Annotated[
        Path,
        typer.Option(
            "-o", "--output-dir", help="each checkpoint goes to DIR/<uuid>", metavar="DIR"
        ),
    ] = Path("checkpoints"),
    top_n: Annotated[int, typer.Option("--top-n", min=1, help="from how many trials")] = 1,
    sort_by: SortBy = None,
    smaller_is_better: SmallerIsBetter = None,
    quiet: Quiet = False,
) -> None:
    """Download the best checkpoints of the best trials."""
    experiment = reference(ctx, experiment_id)
    found = experiment.top_n_checkpoints(top_n, *ranking(sort_by, smaller_is_better))
    download_all(found, output_dir, quiet)


def download_model_def(
    ctx: typer.Context,
    experiment_id: ExperimentId,
    output_dir: Annotated[
        Path, typer.Option("-o", "--output-dir", help="the directory to write to", metavar="DIR")
    ] = Path(),
) -> None:
    """Download an experiment's submitted code as experiment_<ID>_model_def.tgz."""
    archive = reference(ctx, experiment_id).model_definition()
    output_dir.mkdir(parents=True, exist_ok=True)
    target = output_dir / f"experiment_{experiment_id}_model_def.tgz"
    target.write_bytes(archive)
    echo(str(target))


def download_tensorboard(
    ctx: typer.Context,
    experiment_id: ExperimentId,
    output_dir: Annotated[
        Path | None,
        typer.Option("-o", "--output-dir", help="default: tensorboard/<ID>", metavar="DIR"),
    ] = None,
) -> None:
    """Download the TensorBoard files of every trial, for tensorboard --logdir DIR."""
    folder = reference(ctx, experiment_id).download_tensorboard_files(output_dir)
    if not any(path.is_file() for path in Path(folder).rglob("*")):
        talk(
            f"experiment {experiment_id} has no TensorBoard files; trials upload them while they run"
        )
    echo(folder)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("download")(download)
    app.command("download-model-def")(download_model_def)
    app.command("download-tensorboard")(download_tensorboard)

"""``det e describe`` and ``det e config``"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined.cli.arguments.ids import ExperimentIds, numbers
from determined.cli.arguments.options import Csv, Json, chosen
from determined.cli.errors import talk
from determined.cli.experiment.lists import EXPERIMENTS, TRIALS
from determined.cli.experiment.paths import ExperimentId, reference
from determined.cli.output import render
from determined.cli.output.render import Column, Format, Record, Section
from determined.cli.output.workloads import WORKLOADS
from determined.cli.printing import echo
from determined.common.printable import one_line

if TYPE_CHECKING:
    from determined.experimental import Experiment, Trial

DETAILS = (
    *EXPERIMENTS,
    Column("Description", "description"),
    Column("Archived", "archived"),
    Column("Labels", lambda record: ", ".join(record.get("labels") or ())),
    Column("Reason", "reason"),
)


def describe(
    ctx: typer.Context,
    experiment_ids: ExperimentIds,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="also show every training and validation report")
    ] = False,
    json: Json = False,
    csv: Csv = False,
    outdir: Annotated[
        Path | None,
        typer.Option("--outdir", help="write CSV files into this directory", metavar="DIR"),
    ] = None,
) -> None:
    """Show experiments and their trials: runs and their reasons, waiting requests, failures.

    Failures include the end of the failed trials' logs. Tables show the newest 200 trials of each experiment;
    JSON, CSV and --outdir have all. CSV contains only the tables of experiments, trials and reports.
    """
    from determined.cli.following import explanation

    fmt = chosen(json, csv)
    if outdir is not None and fmt is not Format.TABLE:
        raise typer.BadParameter("give only one of --outdir, --json and --csv")
    table = fmt is Format.TABLE and outdir is None
    documents: list[dict[str, Any]] = []
    remarks: list[tuple[int, str]] = []
    for experiment_id in numbers(experiment_ids):
        experiment = reference(ctx, experiment_id)
        said = experiment.remarks()
        remarks += [(experiment_id, one) for one in said]
        if table:
            documents.append(_newest(experiment, metrics))
            continue
        trials = experiment.list_trials()
        if metrics:
            _add_workloads(trials)
        document = {**experiment.document, "trials": [trial.document for trial in trials]}
        document["config"] = experiment.config
        document["remarks"] = said
        if fmt is not Format.CSV and outdir is None:
            document |= explanation.read(experiment, trials)
        documents.append(document)
    sections = _sections(documents, metrics)
    if outdir is None:
        if fmt is Format.TABLE:
            sections += explanation.sections(documents)
        render.show_sections(sections, fmt, document=documents)
        if table:
            _say_what_is_left_out(documents)
            for experiment_id, remark in remarks:
                talk(f"experiment {experiment_id}: {one_line(remark)}")
        return
    outdir.mkdir(parents=True, exist_ok=True)
    for section in sections:
        file = outdir / f"{section.title.lower()}.csv"
        render.save_csv(section, file)
        talk(f"wrote {file}")


def _add_workloads(trials: Sequence[Trial]) -> None:
    for trial in trials:
        trial.document["workloads"] = list(trial.iter_workloads(batch_metrics=True))


def _newest(experiment: Experiment, metrics: bool) -> dict[str, Any]:
    """The trials in tables: nobody reads a hundred thousand rows, and to fetch them would take minutes."""
    from determined.cli.following import explanation
    from determined.experimental.client import TrialState

    def newest(states: list[TrialState] | None = None) -> tuple[list[Trial], int]:
        shown = explanation.SHOWN
        found = experiment.iter_trials(limit=shown, offset=-shown, max_results=shown, states=states)
        trials = list(found)
        return trials, found.total or len(trials)

    trials, total = newest()
    failed, failures = None, 0
    if total > len(trials):
        failed, failures = newest([TrialState.ERROR])
    if metrics:
        _add_workloads(trials)
    document = {
        **experiment.document,
        "trials": [trial.document for trial in trials],
        "trialsTotal": total,
        "failuresTotal": failures,
    }
    return document | explanation.read(experiment, trials, failed, explanation.SHOWN)


def _say_what_is_left_out(documents: Sequence[dict[str, Any]]) -> None:
    for document in documents:
        number, trials = document["id"], len(document["trials"])
        if document["trialsTotal"] > trials:
            failed = len(document["failures"])
            more = f", and the newest {failed} of {document['failuresTotal']} that failed"
            talk(
                f"experiment {number}: the newest {trials} of {document['trialsTotal']} trials and their "
                f"runs are shown{more if document['failuresTotal'] > failed else ''} (all of them: "
                f"det experiment list-trials {number}, or this command with --json)"
            )
        waiting = len(document["waiting"])
        if document["waitingTotal"] > waiting:
            talk(
                f"experiment {number}: {waiting} of {document['waitingTotal']} requests that wait are shown "
                "(all of them: this command with --json)"
            )


def _sections(documents: list[dict[str, Any]], metrics: bool) -> list[Section]:
    trials = [trial for document in documents for trial in document["trials"]]
    columns = [TRIALS[0], Column("Experiment ID", "experimentId"), *TRIALS[1:]]
    sections = [Section("Experiments", DETAILS, documents), Section("Trials", columns, trials)]
    if metrics:
        workloads: list[Record] = [
            {**workload, "trialId": trial["id"]}
            for trial in trials
            for workload in trial["workloads"]
        ]
        named = [Column("Trial ID", "trialId"), *WORKLOADS]
        sections.append(Section("Workloads", named, workloads))
    return sections


def config(ctx: typer.Context, experiment_id: ExperimentId) -> None:
    """Print the complete configuration as YAML."""
    import yaml

    found = reference(ctx, experiment_id).get_config()
    echo(yaml.safe_dump(found, sort_keys=True), end="")


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("describe")(describe)
    app.command("config")(config)

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
from determined.cli.experiment.paths import ExperimentId, path
from determined.cli.output import render
from determined.cli.output.render import Column, Format, Record, Section
from determined.cli.output.workloads import WORKLOADS, read_workloads
from determined.cli.printing import echo
from determined.cli.state import state
from determined.common.printable import one_line

if TYPE_CHECKING:
    from determined.common.api.session import Session

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
    from determined.common.api import pages

    fmt = chosen(json, csv)
    if outdir is not None and fmt is not Format.TABLE:
        raise typer.BadParameter("give only one of --outdir, --json and --csv")
    session = state(ctx).session
    table = fmt is Format.TABLE and outdir is None
    documents: list[dict[str, Any]] = []
    remarks: list[tuple[int, str]] = []
    for experiment_id in numbers(experiment_ids):
        answer = session.get(path(experiment_id), params={"remarks": True})
        remarks += [(experiment_id, one) for one in answer.get("remarks") or ()]
        if table:
            documents.append(_newest(session, experiment_id, answer, metrics))
            continue
        trials = list(pages.read(session, path(experiment_id, "/trials"), "trials"))
        if metrics:
            _add_workloads(session, trials)
        document = {**answer["experiment"], "trials": trials}
        document["config"] = answer.get("config") or document.get("config")
        document["remarks"] = list(answer.get("remarks") or ())
        if fmt is not Format.CSV and outdir is None:
            document |= explanation.read(session, experiment_id, trials)
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


def _add_workloads(session: Session, trials: Sequence[dict[str, Any]]) -> None:
    for trial in trials:
        trial["workloads"] = list(read_workloads(session, trial["id"], full=True))


def _newest(
    session: Session, experiment_id: int, answer: dict[str, Any], metrics: bool
) -> dict[str, Any]:
    """What tables show: a person reads no hundred thousand rows, and they would take minutes."""
    from determined.cli.following import explanation

    def page(**params: Any) -> tuple[list[dict[str, Any]], int]:
        found = session.get(path(experiment_id, "/trials"), params=params)
        trials = found.get("trials") or []
        return trials, (found.get("pagination") or {}).get("total") or len(trials)

    shown = explanation.SHOWN
    trials, total = page(offset=-shown, limit=shown)
    failed, failures = None, 0
    if total > len(trials):
        failed, failures = page(states="STATE_ERROR", offset=-shown, limit=shown)
    if metrics:
        _add_workloads(session, trials)
    document = {**answer["experiment"], "trials": trials, "trialsTotal": total}
    document["failuresTotal"] = failures
    return document | explanation.read(session, experiment_id, trials, failed, shown)


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

    answer = state(ctx).session.get(path(experiment_id))
    found = answer.get("config") or answer["experiment"]["config"]
    echo(yaml.safe_dump(found, sort_keys=True), end="")


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("describe")(describe)
    app.command("config")(config)

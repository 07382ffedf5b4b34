"""``det cluster``"""

from __future__ import annotations

import dataclasses

import typer

from determined.cli.arguments.options import Json
from determined.cli.errors import talk
from determined.cli.groups import group
from determined.cli.output import render
from determined.cli.printing import echo
from determined.cli.state import state
from determined.common.printable import counted

app = group("Checks of the whole cluster.")


@app.command("doctor")
def doctor(ctx: typer.Context, json: Json = False) -> None:
    """Check every part of the cluster and say what to do; exit code 1 if a check failed.

    Works even if the service, Postgres or Prefect is down.
    """
    from determined.cli.doctor.examine import examine
    from determined.cli.doctor.judge import judge

    findings = judge(examine(state(ctx)))
    counts = {name: sum(each.status == name for each in findings) for name in ("WARNING", "FAILED")}
    if json:
        render.print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        width = max(len(finding.check) for finding in findings)
        for finding in findings:
            echo(f"{finding.status:<8} {finding.check:<{width}}  {finding.found}")
            if finding.advice:
                echo(f"{'':<8} {'':<{width}}  -> {finding.advice}")
    warnings = counted(counts["WARNING"], "warning")
    talk(f"{counted(len(findings), 'check')}: {counts['FAILED']} failed, {warnings}")
    if counts["FAILED"]:
        raise typer.Exit(1)

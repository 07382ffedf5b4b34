"""`det deploy`: starting and stopping clusters.

Loaded by `det` through the entry point group ``determined.cli``; also runs by itself (``python -m
determined_deployments.cli local cluster-up``). The commands are implemented in
``determined_deployments.local``; it is imported when a command runs, so that `det --help` stays quick.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from determined.common import installation
from determined.common.printable import log_text, plain
from determined.common.wire import pages

if TYPE_CHECKING:
    from determined_deployments.local.uninstall import Removal

app = typer.Typer(
    name="deploy", help="Start and stop clusters.", no_args_is_help=True, add_completion=False
)
local = typer.Typer(
    name="local", help="A cluster of your own on this machine.", no_args_is_help=True
)
app.add_typer(local)

talk = Console(stderr=True)

DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the cluster.", envvar="DET_DATA_DIR", show_default=False),
]


SettingsFile = Annotated[
    Path,
    typer.Option(
        "--config",
        envvar="DET_SERVICE_CONFIG",
        help="The settings (YAML or JSON): docs/reference/settings.md.",
        show_default=False,
    ),
]


@app.command("service")
def run_service(config: SettingsFile) -> None:
    """Run the service alone, in the foreground until SIGTERM: for systemd, with a Postgres and a Prefect of
    yours.

    It waits for Postgres (db_wait_s), makes and migrates its tables when it starts, and waits for Prefect.
    """
    from determined_deployments import foreground

    with _bad_settings_in_words():
        foreground.serve(config)


@app.command("prefect")
def run_prefect(config: SettingsFile) -> None:
    """Run Prefect's server alone, in the foreground until SIGTERM: for systemd, with a Postgres of yours.

    It reads prefect_api_url, prefect_auth, prefect_db_url, prefect_redis_url, db_wait_s, data_dir. It waits
    for Postgres, makes and migrates its tables when it starts, and sends nothing anywhere. Variables
    PREFECT_… of the environment win.
    """
    from determined_deployments import foreground

    with _bad_settings_in_words():
        foreground.serve_prefect(config)


@app.command("migrate")
def run_migrations(config: SettingsFile) -> None:
    """Bring the tables of the service and of Prefect's server to this release, and end.

    Both do it themselves when they start. Beforehand, an upgrade whose migration fails ends with the earlier
    release still at work.
    """
    from determined_deployments import foreground

    with _bad_settings_in_words():
        foreground.migrate(config)


@contextmanager
def _bad_settings_in_words() -> Iterator[None]:
    from determined_deployments.foreground import SettingsError

    try:
        yield
    except SettingsError as error:
        talk.print(
            plain(f"Error: {error}"), style="red", markup=False, highlight=False, soft_wrap=True
        )
        raise typer.Exit(1) from None


def _refuse(reason: str | None) -> None:
    if reason is not None:
        said = plain(f"Error: {reason}")
        talk.print(said, style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1)


@contextmanager
def _failures_in_words() -> Iterator[None]:
    """Turns a ClusterError into its message (and log) on stderr and exit code 1."""
    from determined_deployments.local import ClusterError, ComponentFailed

    try:
        yield
    except ClusterError as error:
        if isinstance(error, ComponentFailed) and error.log_tail:
            tail = plain(error.log_tail)
            talk.print(tail, markup=False, highlight=False, soft_wrap=True, style="dim")
        said = plain(f"Error: {error}")
        talk.print(said, style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        talk.print("interrupted; everything that this command had started was stopped")
        raise typer.Exit(130) from None


@local.command("cluster-up")
def cluster_up(
    data_dir: DataDir = None,
    slots: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Slots of the agent; default: one per GPU, else per CPU core."
        ),
    ] = None,
    gpu: Annotated[
        bool | None,
        typer.Option(
            "--gpu/--no-gpu", help="Fail if there is no GPU / use CPU slots even if there are GPUs."
        ),
    ] = None,
    db_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="A Postgres server to use; its address begins with postgresql://."
        ),
    ] = None,
    master_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", help="Port of the service; default 8080 or the next free one."
        ),
    ] = None,
    cluster_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Shown by `det master info`.")
    ] = None,
    initial_user_password: Annotated[
        str | None,
        typer.Option(
            metavar="PW", help="First password of the users determined and admin; default: random."
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Cluster configuration (docs/operate/cluster-config.md), also --master-config-path; '' for"
            " none any more.",
        ),
    ] = None,
    # Determined's name: both in one line of the help leave no room for the rest of it.
    master_config_path: Annotated[str | None, typer.Option(hidden=True)] = None,
    task_user: Annotated[
        str | None,
        typer.Option(
            metavar="USER",
            help="Run trials as this account of the machine, USER or USER:GROUP (the cluster must run as"
            " root); '' for the cluster's own again.",
        ),
    ] = None,
    agents: Annotated[
        str | None,
        typer.Option(
            metavar="each|1",
            help="An agent for each resource pool (default), or 1: for the default compute pool only.",
        ),
    ] = None,
) -> None:
    """Start the cluster, or its missing components, and print its addresses."""
    _refuse(installation.no_agents_here())
    _refuse(installation.no_platform())
    from determined_deployments.local import ClusterOptions
    from determined_deployments.local import cluster_up as up
    from determined_deployments.local.report import TerminalReporter

    with _failures_in_words():
        if agents not in (None, "each", "1"):
            raise typer.BadParameter(
                f"found {agents}; a local cluster starts an agent for each resource pool (each), or only one "
                "(1), which offers all slots of the machine (see --slots); `det agent start` adds others",
                param_hint="--agents",
            )
        wishes = ClusterOptions(
            slots=slots,
            gpu=gpu,
            db_url=db_url,
            master_port=master_port,
            cluster_name=cluster_name,
            initial_user_password=initial_user_password,
            config=master_config_path if config is None else config,
            task_user=task_user,
            one_agent=None if agents is None else agents == "1",
        )
        state = up(data_dir, wishes, reporter=TerminalReporter(talk))
    typer.echo(f"service    {state.master_url}")
    typer.echo(f"Prefect UI {state.prefect_url}")
    _say_how_to_log_in(data_dir)
    typer.echo(f"open it    det open ({state.master_url}{pages.HOME}/)")


@local.command("cluster-down")
def cluster_down(
    data_dir: DataDir = None,
    delete_db: Annotated[
        bool, typer.Option("--delete-db", help="Also delete the databases (asks first).")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    cluster_name: Annotated[
        str | None, typer.Option(help="Stop only a cluster of this name; fail for any other.")
    ] = None,
) -> None:
    """Stop the cluster and everything that trains on it. Data stays unless --delete-db."""
    _refuse(installation.no_platform())
    from determined_deployments.local import ClusterError
    from determined_deployments.local import cluster_down as down
    from determined_deployments.local import state as states
    from determined_deployments.local.layout import Layout
    from determined_deployments.local.report import TerminalReporter

    with _failures_in_words():
        layout = Layout.of(data_dir)
        if cluster_name is not None:
            state = states.load(layout)
            if state is None or state.cluster_name != cluster_name:
                found = f"is called {state.cluster_name!r}" if state else "does not exist"
                raise ClusterError(
                    f"--cluster-name {cluster_name}: the cluster in {layout.root} {found}"
                )
        if delete_db and not yes:
            typer.confirm(
                f"Delete all experiments, metrics, models and users of {layout.root}?",
                abort=True,
                err=True,
            )
        if not down(data_dir, delete_db=delete_db, reporter=TerminalReporter(talk)):
            talk.print("nothing was running", highlight=False)


@local.command("uninstall")
def uninstall(
    data_dir: DataDir = None,
    keep_checkpoints: Annotated[
        bool, typer.Option("--keep-checkpoints", help="Leave the checkpoints where they are.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Stop the cluster and remove all that it has written, for good. Says first what goes and what stays."""
    _refuse(installation.no_platform())
    from determined_deployments.local import uninstall as removing
    from determined_deployments.local.report import TerminalReporter

    with _failures_in_words():
        removal = removing.plan(data_dir, keep_checkpoints=keep_checkpoints)
        if removal.is_empty:
            talk.print(f"no cluster found in {removal.root}", highlight=False, soft_wrap=True)
        else:
            _say_removal(removal)
            if not yes:
                typer.confirm("Remove all of this for good?", abort=True, err=True)
            removing.uninstall(removal, TerminalReporter(talk))
            talk.print("removed", highlight=False)
        for left in removal.left:
            line = plain(f"left: {left.name} ({left.why}): {left.command}")
            talk.print(line, highlight=False, markup=False, soft_wrap=True)


def _say_removal(removal: Removal) -> None:
    lines = [
        f"{_megabytes(part.size) or '0 MB':>9}  {part.path}: {part.what}" for part in removal.parts
    ]
    if removal.database:
        lines.append(f"           the databases {removal.database} of the server of --db-url")
    if removal.logins:
        lines.append(
            f"           the logins of {', '.join(removal.logins)} at {removal.master_url}"
        )
    for line in ["The cluster is ended, and this is removed:", *lines]:
        talk.print(plain(line), highlight=False, markup=False, soft_wrap=True)


@local.command("status")
def status(
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show each component: state, pid, address, memory, uptime. Exit code 1 unless all run."""
    _refuse(installation.no_platform())
    from determined_deployments.local import cluster_status
    from determined_deployments.local.layout import Layout

    with _failures_in_words():
        rows = cluster_status(data_dir)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
    elif not rows:
        talk.print(f"no cluster in {Layout.of(data_dir).root}", highlight=False)
    else:
        columns = ("component", "state", "pid", "url", "rss", "memory", "uptime")
        table = Table(*columns, box=None, pad_edge=False)
        for row in rows:
            table.add_row(
                row.component,
                f"dead (see {row.log})" if row.state == "dead" else row.state,
                str(row.pid or ""),
                row.url or "",
                _megabytes(row.rss),
                _megabytes(row.memory),
                _duration(row.uptime_s),
            )
        # As wide as it is, so that addresses and paths stay in one piece.
        console = Console()
        width = console.measure(table, options=console.options.update(width=10_000)).maximum
        Console(width=max(width, console.width)).print(table)
        _say_how_to_log_in(data_dir)
    if not rows or any(row.state != "running" for row in rows):
        raise typer.Exit(1)


@local.command("logs")
def logs(
    component: Annotated[
        str | None,
        typer.Argument(help="postgres, prefect, service, agent or agent-POOL; default: all."),
    ] = None,
    data_dir: DataDir = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new lines.")] = False,
    tail: Annotated[int, typer.Option(help="Number of old lines per component.", min=0)] = 100,
) -> None:
    """Print the components' own logs."""
    _refuse(installation.no_platform())
    from determined_deployments.local import read_logs

    with _failures_in_words():
        chosen = [component] if component else None
        try:
            for name, line in read_logs(data_dir, chosen, tail=tail, follow=follow):
                # The parts' logs quote what users wrote, such as the names of experiments.
                shown = log_text(line)
                typer.echo(shown if component else f"{name:<9}{shown}")
        except KeyboardInterrupt:
            return


def _say_how_to_log_in(data_dir: Path | None) -> None:
    """Names the file and the fields, on stderr. A password itself would stay in terminals and CI logs."""
    from determined_deployments.local.layout import Layout

    talk.print(
        "Prefect's page asks for one line, user:password; copy it from the field prefect_auth of\n"
        f"{Layout.of(data_dir).state} (det logs in by itself; the passwords of its users are in the same "
        'file). For your own flows: eval "$(det prefect env)"',
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _megabytes(size: int | None) -> str:
    return f"{size / 1e6:.0f} MB" if size is not None else ""


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


if __name__ == "__main__":
    app()

"""The root of the command tree, and the options before the command."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated, Any

import typer

from determined.cli import errors
from determined.cli.groups import LazyGroup, refuse_option
from determined.cli.printing import echo, flush, of_stdout
from determined.cli.state import State


class Root(LazyGroup):
    """The group `det`. It turns the errors of all commands into messages."""

    modules = {
        "agent|a": ("determined.cli.agent", "the machines that run trials"),
        "attach": ("determined.cli.attach", "a terminal beside a trial that runs"),
        "checkpoint|c": (
            "determined.cli.checkpoint",
            "the saved states of models: describe, download, delete",
        ),
        "cluster": ("determined.cli.cluster", "checks of the whole cluster"),
        "command|cmd": ("determined.cli.command", "programs that run on the cluster's machines"),
        "config-policies|cp": (
            "determined.cli.config_policies",
            "what holds for all configurations of a workspace, or of the cluster",
        ),
        "dev": ("determined.cli.dev", "for programs that use the REST API"),
        "exec": ("determined.cli.exec", "a program beside a trial that runs"),
        "experiment|e": (
            "determined.cli.experiment",
            "hyperparameter searches and single training runs",
        ),
        "flow|f": ("determined.cli.flow", "from a YAML file to a trained model in one command"),
        "init": ("determined.cli.init", "a folder to start from, for your framework"),
        "job|j": ("determined.cli.job", "the queue for slots: who waits, why, and in which order"),
        "master": ("determined.cli.master", "the service behind the REST API"),
        "model|m": ("determined.cli.model", "the registry: checkpoints under a name and a number"),
        "notebook": ("determined.cli.notebook", "JupyterLab on the cluster's machines"),
        "open": ("determined.cli.open", "the cluster's pages, in the browser and logged in"),
        "pipeline": (
            "determined.cli.pipeline",
            "experiments that take what earlier ones have found",
        ),
        "prefect": ("determined.cli.prefect", "the Prefect server that the cluster runs on"),
        "preview-search": (
            "determined.cli.preview_search",
            "which trials a search would create, and how long each would train",
        ),
        "project|p": (
            "determined.cli.project",
            "experiments of a workspace that belong together",
        ),
        "rbac": ("determined.cli.rbac", "roles, and who has which where"),
        "resource-pool|rp": (
            "determined.cli.resource_pool",
            "groups of agents, and how their slots are given out",
        ),
        "resources|res": ("determined.cli.resources", "accounting: who used which slots, when"),
        "retrain": (
            "determined.cli.retrain",
            "models that are trained again on a schedule, and promoted only when they are better",
        ),
        "run": ("determined.cli.run", "a program of this directory, run on the cluster"),
        "shell": ("determined.cli.shell", "terminals on the cluster's machines"),
        "slot|s": ("determined.cli.slot", "the GPUs or CPU cores of the agents"),
        "task": ("determined.cli.task", "whatever runs on the cluster, or waits for slots"),
        "template|tpl": (
            "determined.cli.template",
            "values that several configurations share, by a name",
        ),
        "tensorboard": (
            "determined.cli.tensorboard",
            "the curves of experiments and trials, in a browser",
        ),
        "token|tkn": ("determined.cli.token", "access tokens: what programs send in users' names"),
        "trial|t": ("determined.cli.trial", "training runs with one set of hyperparameters each"),
        "user|u": ("determined.cli.user", "users, login and logout"),
        "user-group": ("determined.cli.user_group", "groups of users, who get roles together"),
        "version": ("determined.cli.version", "the versions of det and of the service"),
        "workspace|w": (
            "determined.cli.workspace",
            "projects, models, templates and tasks of one group of people",
        ),
    }

    summaries = {"deploy": "a cluster on this machine, and the parts of a larger one"}

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            # Help is printed by typer itself, or by rich for it.
            *_, (frame, _) = traceback.walk_tb(error.__traceback__)
            if not frame.f_globals["__name__"].startswith(("rich.", "typer.")):
                raise
            errors.talk(f"error: {errors.explain(of_stdout(error))}")
            sys.exit(1)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            flush()
            return result
        except (typer.Exit, typer.Abort, KeyboardInterrupt):
            raise
        except Exception as error:
            refuse_option(error)
            found = ctx.find_object(State)
            if found is None:
                raise errors.fail(error, verbose=False) from None
            raise errors.fail(
                error, verbose=found.verbose, origin=found.origin, has_admin=found.has_admin
            ) from None


app = typer.Typer(
    cls=Root,
    help="Run Determined's experiments and hyperparameter searches on Prefect.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from determined.__version__ import __version__

        echo(f"det {__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    user: Annotated[
        str | None, typer.Option("-u", "--user", help="log in as this user", metavar="NAME")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--master",
            metavar="URL",
            help="address of the service; default: the first of $DET_MASTER, $DET_MASTER_ADDR,"
            " the local cluster, http://localhost:8080",
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="show the traceback of an error")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version"),
    ] = False,
) -> None:
    given = ctx.find_object(State)
    ctx.obj = State(
        master=master,
        user=user,
        verbose=verbose,
        says_message=not ctx.resilient_parsing,
        transport=given.transport if given is not None else None,
    )
    if ctx.invoked_subcommand is None:
        # `det -v` alone is how Determined's users ask for the version.
        _print_version(verbose)
        typer.echo(ctx.get_help())

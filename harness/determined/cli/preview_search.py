"""``det preview-search``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from determined.cli.arguments.options import Json, Overrides
from determined.cli.errors import CliError, talk
from determined.cli.output import render
from determined.cli.printing import echo
from determined.cli.state import state
from determined.cli.submission import preview
from determined.common.printable import one_line

app = typer.Typer(add_completion=False)

_MAX_SEED = 2**32 - 1


@app.command()
def preview_search(
    ctx: typer.Context,
    config_file: Annotated[Path, typer.Argument(help="YAML file", metavar="CONFIG_FILE")],
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=_MAX_SEED, help="seed of the simulated metrics")
    ] = 0,
    config: Overrides = None,
    json: Json = False,
) -> None:
    """Show which trials a search would create, and how long each would train.

    The search is simulated with random metrics; the same seed gives the same result. No cluster is
    needed.
    """
    from determined.expconf.doubts import doubts

    complete = _read(config_file, config or [])
    searcher = {name: value for name, value in complete["searcher"].items() if value is not None}
    for remark in doubts(complete):
        talk(f"warning: {one_line(remark)}")
    found = preview.preview(complete, seed, state(ctx), str(config_file))
    if json:
        render.print_json({"searcher": searcher, "seed": seed, **found})
        return
    echo("Using search configuration:")
    echo(_as_yaml(searcher))
    echo(f"This search will create a total of {found['trials']} trial(s).")
    render.show_sections(preview.tables(found), render.Format.TABLE, document=found)


def _read(path: Path, overrides: list[str]) -> dict[str, Any]:
    """The completed configuration. Raises ConfigError, and CliError if there is no searcher."""
    from determined import expconf

    document = expconf.apply_overrides(expconf.read_yaml(path), overrides)
    if document.data.get("searcher") is None:
        raise CliError(f"{path}: Experiment configuration must have 'searcher' section")
    return expconf.complete_search(document)


def _as_yaml(section: dict[str, Any]) -> str:
    import yaml

    class Indented(yaml.SafeDumper):
        """Indents a list inside a mapping, as upstream prints it."""

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, False)

    return yaml.dump(section, Dumper=Indented, sort_keys=False)

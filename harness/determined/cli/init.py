"""``det init``"""

from __future__ import annotations

import importlib.util
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from determined.cli.arguments.options import Csv, Json, chosen
from determined.cli.errors import CliError, talk
from determined.cli.output import render
from determined.cli.output.render import Column
from determined.common import installation

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Template:
    """A folder of ``examples/`` that a project can start from.

    ``config`` and ``script`` are the files of the first run, on the cluster and off it; ``others`` come
    besides. ``packages`` are what the script imports, which come with ``extras``.
    """

    folder: str
    about: str
    packages: tuple[str, ...]
    extras: tuple[str, ...]
    others: tuple[str, ...] = ()
    config: str = "const.yaml"
    script: str = "train.py"

    @property
    def files(self) -> tuple[str, ...]:
        return (self.config, *self.others, self.script)


_TORCH = ("torch", "sklearn")

TEMPLATES = {
    "core": Template(
        "digits",
        "a training loop of your own in PyTorch, through the Core API; one trial, and searches",
        packages=_TORCH,
        extras=("examples",),
        others=("random.yaml", "adaptive.yaml"),
    ),
    "pytorch": Template(
        "digits_pytorch_trial",
        "a PyTorchTrial: the class says what a batch is, the Trainer does the rest; one trial, a search",
        packages=_TORCH,
        extras=("examples",),
        others=("adaptive.yaml", "distributed.yaml", "model_def.py"),
    ),
    "transformers": Template(
        "huggingface",
        "Hugging Face's Trainer with one callback; in one process or in several",
        packages=(*_TORCH, "transformers", "accelerate"),
        extras=("examples", "transformers"),
        others=("distributed.yaml",),
    ),
    "lightning": Template(
        "lightning",
        "Lightning's Trainer with one callback; in one process or in several",
        packages=(*_TORCH, "lightning"),
        extras=("examples", "lightning"),
        others=("distributed.yaml",),
    ),
    "keras": Template(
        "keras",
        "Keras 3 on PyTorch's backend, with one callback",
        packages=(*_TORCH, "keras"),
        extras=("examples", "keras"),
    ),
    "sklearn": Template(
        "sklearn",
        "a scikit-learn model through the Core API, without PyTorch; one trial, a search",
        packages=("sklearn",),
        extras=("examples",),
        others=("random.yaml",),
    ),
    "ddp": Template(
        "distributed",
        "several processes of one trial: torch's DistributedDataParallel under the Core API",
        packages=_TORCH,
        extras=("examples",),
        config="distributed.yaml",
    ),
}

COLUMNS = (Column("Template", "name"), Column("What it is", "about"))


def _names() -> list[str]:
    return list(TEMPLATES)


@app.command()
def init(
    name: Annotated[
        str | None,
        typer.Argument(help="which; none: list them", metavar="TEMPLATE", autocompletion=_names),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="the new folder; default: the template's name",
            metavar="FOLDER",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Write a folder to start from: a script that trains, and its configurations. Without a template: list
    the templates.

    Every template runs as it is, with `det flow run` and by itself. Nothing that is there already is changed.
    """
    if name is None:
        listed = [{"name": key, "about": one.about} for key, one in TEMPLATES.items()]
        render.show(COLUMNS, listed, chosen(json, csv), what="templates")
        if not (json or csv):
            talk("next: det init TEMPLATE [FOLDER]")
        return
    if name not in TEMPLATES:
        raise CliError(f"unknown template {name!r}; choose {', '.join(TEMPLATES)}")
    template = TEMPLATES[name]
    target = folder if folder is not None else Path(name)
    _write(template, target)
    script, config, here = (
        shlex.quote(str(path))
        for path in (target / template.script, target / template.config, target)
    )
    talk(f"wrote {target}: {', '.join(template.files)}")
    missing = [one for one in template.packages if importlib.util.find_spec(one) is None]
    if missing:
        needed = installation.command(*template.extras)
        talk(f"{template.script} needs {', '.join(missing)}, not installed here: {needed}")
    talk(f"off the cluster: python {script}")
    talk(f"next: det flow run {config} {here}")


def examples() -> Path:
    """In the wheel they lie in this package, in a checkout at the top."""
    package = Path(__file__).parents[1]
    inside = package / "examples"
    return inside if inside.exists() else package.parents[1] / "examples"


def _write(template: Template, target: Path) -> None:
    """Raises CliError, and then has written nothing, if ``target`` has anything in it."""
    source = examples() / template.folder
    texts = {file: (source / file).read_bytes() for file in template.files}
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CliError(
            f"{target} is there already, and nothing is overwritten: give another folder as the last argument"
        )
    target.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        # Whoever put a file there meanwhile keeps it.
        with (target / file).open("xb") as new:
            new.write(text)

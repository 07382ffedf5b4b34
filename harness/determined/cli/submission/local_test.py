"""``--local --test``: one batch of a trial class on this machine, without a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from determined.cli.errors import CliError, talk

if TYPE_CHECKING:
    from determined.common.context import ContextItem
    from determined.experimental._submission import Submission


def train_one_batch_here(planned: Submission) -> None:
    """Trains and validates one batch of what would be submitted, in a folder that has those files alone.

    Raises CliError if that fails, and for an entrypoint that is a program: only it knows what a batch is.
    """
    from determined import expconf
    from determined.experimental._submission import as_text

    config = planned.config.document.data
    spec = expconf.trial_class(config)
    if spec is None:
        entrypoint = config.get("entrypoint")
        words = entrypoint if isinstance(entrypoint, list) else [str(entrypoint)]
        raise CliError(
            "--local tries one batch of an entrypoint of the form module:TrialClass; this one is a program:"
            f" run it here yourself ({' '.join(map(str, words))}; off the cluster core.init() needs none), or"
            " leave --local out: --test alone tries one batch on the cluster"
        )
    with tempfile.TemporaryDirectory(prefix="det-local-") as folder:
        _write(planned.items, Path(folder))
        # From the standard input: configurations have secrets.
        command = [sys.executable, "-m", "determined.exec.one_batch", spec]
        try:
            done = subprocess.run(
                command,
                input=as_text(config).encode(),
                cwd=folder,
                env={**os.environ, **_variables(config)},
                check=False,
            )
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
    if done.returncode != 0:
        raise CliError(f"the test failed: the process exited with code {done.returncode}")
    talk(f"test: passed; one batch of {spec} was trained and validated here, nothing was submitted")


def _write(items: Iterable[ContextItem], folder: Path) -> None:
    for item in items:
        path = folder / item.path
        if item.content is None:
            path.mkdir(exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(item.content)


def _variables(config: Mapping[str, Any]) -> dict[str, str]:
    """Those of ``environment_variables``; of one list for each device that of CPUs."""
    given = (config.get("environment") or {}).get("environment_variables") or []
    words = (given.get("cpu") or []) if isinstance(given, dict) else given
    return dict(word.split("=", 1) for word in words if "=" in word)

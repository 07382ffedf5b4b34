"""Per experiment: what its first trial imported, the next ones have imported already.

Only installed packages are learnt, never user code. The experiment's zygote is a fork of the ``trial``
zygote with the experiment's own environment variables set, because packages read those at import.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from determined_deployments.agent.fork_server import ForkServer, ZygotePlan
from determined_deployments.agent.zygote import ROOT
from determined_tasks import imported_modules

logger = logging.getLogger(__name__)

TRIAL = "trial"
FOLDER = "imports"
# An experiment's zygote outlives its last leg here by this much.
KEEP_SECONDS = 60.0
# Fewer new modules are not worth a process.
FEWEST_MODULES = 5


@dataclass
class _Experiment:
    env: dict[str, str] = field(default_factory=dict)
    legs: int = 0
    learnt: bool = False
    expiry: asyncio.TimerHandle | None = None


class Learning:
    """Which zygote an experiment's next leg is forked from."""

    def __init__(self, forks: ForkServer, work_dir: Path) -> None:
        self._forks = forks
        self._folder = work_dir / FOLDER
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in self._folder.iterdir():  # of an earlier agent: packages may have changed
            path.unlink(missing_ok=True)
        self._experiments: dict[int, _Experiment] = {}

    def before_leg(self, spec: Mapping[str, Any]) -> tuple[list[str], str | None]:
        """A leg is about to start: the zygotes it may be forked from, the warmest first; and where it
        is to write what it imported."""
        experiment_id = spec.get("experiment_id")
        if experiment_id is None:
            return [TRIAL, ROOT], None
        experiment = self._experiments.setdefault(experiment_id, _Experiment())
        experiment.legs += 1
        if experiment.expiry is not None:
            experiment.expiry.cancel()
            experiment.expiry = None
        items = (item.partition("=") for item in spec.get("environment_variables") or ())
        experiment.env = {name: value for name, _, value in items if name}
        path = None if experiment.learnt else str(self._path(experiment_id))
        return [_zygote(experiment_id), TRIAL, ROOT], path

    def after_leg(self, experiment_id: int | None) -> None:
        """A leg has ended: learns from it, if there is anything to learn yet."""
        experiment = self._experiments.get(experiment_id) if experiment_id is not None else None
        if experiment is None or experiment_id is None:
            return
        experiment.legs -= 1
        if not experiment.learnt:
            self._learn(experiment_id, experiment)
        if experiment.legs == 0:
            loop = asyncio.get_running_loop()
            experiment.expiry = loop.call_later(KEEP_SECONDS, self._forget, experiment_id)

    def _learn(self, experiment_id: int, experiment: _Experiment) -> None:
        modules = imported_modules.read(self._path(experiment_id))
        if modules is None:
            return
        experiment.learnt = True
        self._path(experiment_id).unlink(missing_ok=True)
        if len(modules) < FEWEST_MODULES:
            return
        logger.info("experiment %s: %d modules learnt", experiment_id, len(modules))
        self._forks.want(
            ZygotePlan(_zygote(experiment_id), TRIAL, optional=modules, env=experiment.env)
        )

    def _forget(self, experiment_id: int) -> None:
        self._forks.drop(_zygote(experiment_id))
        self._experiments.pop(experiment_id, None)

    def _path(self, experiment_id: int) -> Path:
        return self._folder / f"{experiment_id}.json"


def _zygote(experiment_id: int) -> str:
    return f"experiment-{experiment_id}"

"""Per model definition: what its first trial imported, the next ones have imported already.

Only installed packages are learnt, never user code. The zygote is a fork of the ``trial`` zygote with the
experiment's own environment variables set, because packages read those at import. It serves every
experiment with the same code, entrypoint and variables, and outlives the last leg of them a while.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
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
# A zygote outlives its last leg here by this much.
KEEP_SECONDS = 60.0
# Fewer new modules are not worth a process.
FEWEST_MODULES = 5
# So long a leg waits for a zygote that is being made: to import the same meanwhile, next to it, would
# make both slower.
PATIENCE_SECONDS = 10.0


@dataclass
class _Code:
    env: dict[str, str] = field(default_factory=dict)
    legs: int = 0
    learnt: bool = False
    expiry: asyncio.TimerHandle | None = None


def key_of(spec: Mapping[str, Any]) -> str:
    """The zygote's name for legs like this one (a LegSpec)."""
    what = [spec.get(name) for name in ("model_def_hash", "entrypoint", "environment_variables")]
    text = json.dumps(what, sort_keys=True)
    return f"code-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class Learning:
    """Which zygote a trial's next leg is forked from."""

    def __init__(self, forks: ForkServer, work_dir: Path) -> None:
        self._forks = forks
        self._folder = work_dir / FOLDER
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in self._folder.iterdir():  # of an earlier agent: packages may have changed
            path.unlink(missing_ok=True)
        self._codes: dict[str, _Code] = {}

    def before_leg(self, spec: Mapping[str, Any]) -> tuple[list[str], str | None]:
        """A leg is about to start: the zygotes it may be forked from, the warmest first; and where it
        is to write what it imported."""
        if spec.get("experiment_id") is None:
            return [TRIAL, ROOT], None
        key = key_of(spec)
        code = self._codes.setdefault(key, _Code())
        code.legs += 1
        if code.expiry is not None:
            code.expiry.cancel()
            code.expiry = None
        items = (item.partition("=") for item in spec.get("environment_variables") or ())
        code.env = {name: value for name, _, value in items if name}
        # The last leg may have told of its end a moment before its process ends.
        self._learn(key, code)
        return [key, TRIAL, ROOT], None if code.learnt else str(self._path(key))

    async def settle(self, spec: Mapping[str, Any]) -> None:
        """Returns when the leg's zygote is ready, or is not about to be."""
        if spec.get("experiment_id") is not None:
            await self._forks.wait_started(key_of(spec), PATIENCE_SECONDS)

    def after_leg(self, spec: Mapping[str, Any]) -> None:
        """A leg has ended: learns from it, if there is anything to learn yet."""
        key = key_of(spec)
        code = self._codes.get(key) if spec.get("experiment_id") is not None else None
        if code is None:
            return
        code.legs -= 1
        self._learn(key, code)
        if code.legs == 0:
            loop = asyncio.get_running_loop()
            code.expiry = loop.call_later(KEEP_SECONDS, self._forget, key)

    def _learn(self, key: str, code: _Code) -> None:
        if code.learnt:
            return
        modules = imported_modules.read(self._path(key))
        if modules is None:
            return
        code.learnt = True
        self._path(key).unlink(missing_ok=True)
        if len(modules) < FEWEST_MODULES:
            return
        logger.info("%s: %d modules learnt", key, len(modules))
        self._forks.want(ZygotePlan(key, TRIAL, optional=modules, env=code.env))

    def _forget(self, key: str) -> None:
        self._forks.drop(key)
        self._codes.pop(key, None)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

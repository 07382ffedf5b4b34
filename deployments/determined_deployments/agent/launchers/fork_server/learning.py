"""Keeps, for each model definition, a fork server that has already imported what its trials import.

Before the first leg, the imports are read from the source (:mod:`determined_tasks.static_imports`). The
other modules that the leg imported are added for the legs after it. Only installed packages count, never
user code. The zygotes are forks of the ``trial`` zygote with the experiment's own environment variables
set, because packages read those at import. They serve every experiment with the same code, entrypoint and
variables, and end a while after the last leg that uses them.

What opens an accelerator or starts a thread must not be imported before a fork, and only the try shows that.
So a whole package is left out at the first offence, tries and their CPU time are bounded, and what was found
out is kept (:class:`Unforkable`): no leg waits for it, and no code pays for it twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import sys
import sysconfig
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from determined.common.api import errors
from determined.common.wire.legs import LegSpec
from determined_deployments.agent.launchers.fork_server.server import ForkServer, ZygotePlan
from determined_deployments.agent.launchers.fork_server.zygote import ROOT
from determined_tasks import context_dir, imported_modules, static_imports
from determined_tasks.context_dir import ModelDefinitionError

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
SECONDS_OF_MODULE = 0.003
"""What a leg saves for each module that it finds imported, about: it waits no longer than that."""
MOST_TRIES = 3
IMPORT_CPU_SECONDS = 60


@dataclass
class _CodePlan(ZygotePlan):
    """A zygote of some code. ``has``: top-level packages that its parent has imported."""

    unforkable: Unforkable = field(kw_only=True)
    has: Collection[str] = ()
    tries: int = 0

    def leave_out(self, module: str) -> bool:
        self.tries += 1
        parts = module.split(".")
        package = ".".join(parts[: 2 if parts[0] in self.has else 1])
        self.unforkable.add(package)
        self.optional = self.unforkable.without(self.optional)
        return self.tries < MOST_TRIES and bool(self.optional)

    def crashed(self) -> None:
        self.unforkable.add(self.name)


@dataclass
class _Code:
    env: dict[str, str] = field(default_factory=dict)
    legs: int = 0
    foresight: asyncio.Task[bool] | None = None
    """Whether the source imports slow packages of the ``trial`` zygote, for which its legs then wait."""
    learnt: bool = False
    expiry: asyncio.TimerHandle | None = None
    plans: dict[str, _CodePlan] = field(default_factory=dict)
    """The zygotes that are or were wanted."""


def key_of(spec: LegSpec) -> str:
    """The zygote's name for legs like this one."""
    what = [spec.model_def_hash, spec.entrypoint, spec.environment_variables]
    text = json.dumps(what, sort_keys=True)
    return f"code-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _learnt(key: str) -> str:
    """The zygote with what a leg of the code was seen to import."""
    return f"{key}-learnt"


class Unforkable:
    """Packages that must not be imported before a fork, and zygotes that their imports have ended.

    They are kept in ``path`` for as long as the same packages are installed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._packages = _installed_packages()
        self._names: set[str] = set()
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(path.read_text())
            if kept["packages"] == self._packages:
                self._names = set(map(str, kept["names"]))

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        self._names.add(name)
        aside = self._path.with_suffix(".part")
        with contextlib.suppress(OSError):
            content = {"packages": self._packages, "names": sorted(self._names)}
            aside.write_text(json.dumps(content))
            aside.rename(self._path)

    def without(self, modules: Iterable[str]) -> list[str]:
        """Those of ``modules`` that are not in one of the packages."""
        return [name for name in modules if not self._names & set(_with_parents(name))]


def _with_parents(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]


def _installed_packages() -> str:
    """Differs when another package or release is installed, or the interpreter is another."""
    folders = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    found = sorted(path.name for folder in folders for path in Path(folder).glob("*.dist-info"))
    return hashlib.sha256("\n".join([sys.version, *found]).encode()).hexdigest()


class Learning:
    """Which zygote a trial's next leg is forked from.

    ``fetch`` gets the archive of a model definition by its hash (raises APIException); ``imported``
    are the modules that the ``trial`` zygote has anyway.
    """

    def __init__(
        self,
        forks: ForkServer,
        work_dir: Path,
        fetch: Callable[[str], Awaitable[bytes]],
        imported: Collection[str] = (),
    ) -> None:
        self._forks = forks
        self._work_dir = work_dir
        self._fetch = fetch
        self._imported = {name.partition(".")[0] for name in imported} - {"determined"}
        self._unforkable = Unforkable(work_dir / "unforkable.json")
        self._folder = work_dir / FOLDER
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in self._folder.iterdir():  # of an earlier agent: packages may have changed
            path.unlink(missing_ok=True)
        self._codes: dict[str, _Code] = {}

    def before_leg(self, spec: LegSpec) -> tuple[list[str], str | None]:
        """A leg is about to start: the zygotes it may be forked from, the warmest first; and where it
        is to write what it imported."""
        if spec.experiment_id is None:
            return [TRIAL, ROOT], None
        key = key_of(spec)
        code = self._codes.setdefault(key, _Code())
        code.legs += 1
        if code.expiry is not None:
            code.expiry.cancel()
            code.expiry = None
        code.env = spec.user_environment()
        # The last leg may have told of its end a moment before its process ends.
        self._learn(key, code)
        names = [_learnt(key), key, TRIAL, ROOT]
        return names, None if code.learnt else str(self._path(key))

    async def settle(self, spec: LegSpec) -> None:
        """Returns when the leg's zygotes are ready, or will not be ready soon."""
        if spec.experiment_id is None:
            return
        key = key_of(spec)
        code = self._codes[key]
        if code.foresight is None:
            code.foresight = asyncio.create_task(self._foresee(key, code, spec))
        await asyncio.wait({code.foresight}, timeout=PATIENCE_SECONDS)
        waits = code.foresight.done() and code.foresight.result()
        if waits or code.plans:
            await self._forks.wait_started(TRIAL, PATIENCE_SECONDS)
        for name, plan in list(code.plans.items()):
            # What the source names takes long to import; of what was learnt this is not known.
            saved = (
                SECONDS_OF_MODULE * len(plan.optional) if name == _learnt(key) else PATIENCE_SECONDS
            )
            if plan.tries == 0:
                patience = min(saved, PATIENCE_SECONDS)
                await self._forks.wait_started(name, patience, lambda: plan.tries > 0)  # noqa: B023

    def _want(self, code: _Code, name: str, parent: str, modules: list[str]) -> None:
        """Asks for a zygote of the code, if any of the modules may be imported."""
        wanted = [] if name in self._unforkable else self._unforkable.without(modules)
        if wanted:
            plan = _CodePlan(
                name,
                parent,
                optional=wanted,
                env=code.env,
                cpu_seconds=IMPORT_CPU_SECONDS,
                unforkable=self._unforkable,
                has=self._imported,
            )
            code.plans[name] = plan
            self._forks.want(plan)

    async def _foresee(self, key: str, code: _Code, spec: LegSpec) -> bool:
        """Asks for a zygote that imports the packages that the source names; see :attr:`_Code.foresight`."""
        model_def, entrypoint = spec.model_def_hash, spec.entrypoint
        if not model_def or not entrypoint:
            return False
        try:
            source = context_dir.cached(self._work_dir, model_def)
            if source is None:
                archive = await self._fetch(model_def)
                unpack = context_dir.unpacked
                source = await asyncio.to_thread(
                    unpack, self._work_dir, model_def, lambda _: archive
                )
            named = await asyncio.to_thread(static_imports.read, entrypoint, source)
        except (errors.APIException, ModelDefinitionError, OSError) as error:
            # The leg will say more.
            logger.info("%s: cannot read the imports from its source: %s", key, error)
            return False
        tops = {name: name.partition(".")[0] for name in named}
        modules = [name for name in named if tops[name] not in {"determined", *self._imported}]
        if self._codes.get(key) is code:
            self._want(code, key, TRIAL, modules)
        return not self._imported.isdisjoint(tops.values())

    def after_leg(self, spec: LegSpec) -> None:
        """A leg has ended: learns from it, if there is anything to learn yet."""
        key = key_of(spec)
        code = self._codes.get(key) if spec.experiment_id is not None else None
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
        parent = key if self._forks.is_wanted(key) else TRIAL
        self._want(code, _learnt(key), parent, modules)

    def _forget(self, key: str) -> None:
        self._forks.drop(_learnt(key))
        self._forks.drop(key)
        self._codes.pop(key, None)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

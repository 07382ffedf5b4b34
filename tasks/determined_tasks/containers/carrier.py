"""The carrier of training processes in containers of a Docker engine.

The container is independent of its supervisor, as that is of the agent. A supervisor that finds the container
of its leg follows it to its end, and ships the rest of its log: whatever is killed here, nothing runs twice
and no line is lost.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from determined.common.wire.legs import LegSpec
from determined_tasks import context_dir, entrypoint, exit_reason, identity, ports
from determined_tasks.carrier import Carrier, Fetch, Listening, NotStarted
from determined_tasks.containers import (
    accounts,
    ends,
    engine,
    frames,
    images,
    plan,
    rights,
    starting,
)
from determined_tasks.containers.engine import EngineUnavailable
from determined_tasks.containers.images import ImageError, RegistryAway
from determined_tasks.containers.log_pump import LogPump
from determined_tasks.containers.plan import NetworkError
from determined_tasks.containers.rights import RightsError
from determined_tasks.containers.settings import ContainerSettings
from determined_tasks.containers.starting import CannotStart
from determined_tasks.exit_reason import LegResult, failed_to_start, infrastructure
from determined_tasks.identity import Identity, IdentityError
from determined_tasks.leg_reporter import LegReporter
from determined_tasks.supervision import ORDER, write_private
from determined_tasks.task_environment import AgentSide

if TYPE_CHECKING:
    from docker.api.client import APIClient

logger = logging.getLogger(__name__)

T = TypeVar("T")

BEGUN = "container-begun"
"""Exists from just before the container is created; holds :data:`STARTED` when it runs."""
STARTED = "started"
PLACE_IN_LOG = "log-place.json"
ENGINE_RETRY_SECONDS = 1.0
# The engine may tell of the kernel's kill after it told of the exit.
OOM_SECONDS = 2.0
ENDED_FROM_OUTSIDE = (128 + signal.SIGKILL, 128 + signal.SIGTERM, engine.UNKNOWN_CODE)
"""Exit codes that a container has whose engine was stopped, among others."""


class ContainerCarrier(Carrier):
    """The training process is a container's first program. It is found again by the container's name."""

    outlives = True

    def __init__(
        self,
        spec: LegSpec,
        place: AgentSide,
        root: Path,
        reporter: LegReporter,
        order: Mapping[str, Any],
    ) -> None:
        """``order``: the supervisor's, with ``container``; the next supervisor gets it from a file. Raises
        OSError when that cannot be written."""
        super().__init__(spec, place, root, reporter)
        write_private(root / ORDER, orjson.dumps(dict(order)))
        self.settings = ContainerSettings.from_json(order["container"])
        self.inside = replace(place, master=self.settings.master_url)
        self.name = plan.container_name(place.agent_id, place.work_dir, spec.name)
        self.image = plan.image(spec, place, self.settings)
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        """One for each kill(), for the image and for the container's end: what the main thread waits for."""
        self._is_killed = False
        self._image: dict[str, Any] | Exception | None = None
        self._client: APIClient | None = None
        self._account: Identity | None = None
        self._command: list[str] = []
        self._oom_before = exit_reason.oom_kills().machine

    def _is_bridge(self) -> bool:
        """True if the container has a network to itself. Raises NetworkError."""
        return plan.network_mode(self.spec, self.settings) != "host"

    @contextlib.contextmanager
    def _in_words(self) -> Iterator[None]:
        """Raises NotStarted for what goes wrong with engine, image or container."""
        from docker.errors import APIError

        try:
            yield
        except (ImageError, NetworkError, RightsError) as error:
            end = failed_to_start(str(error))
        except CannotStart as error:
            end = ends.not_started(f"{error} (in {len(starting.RETRY_SECONDS) + 1} tries)")
        except APIError as error:
            status, words = starting.answer(error)
            reason = ends.of_engine(status, words)
            end = ends.refused(words, self.image) if reason is None else infrastructure(reason)
        except (RegistryAway, EngineUnavailable) as error:
            end = infrastructure(f"the leg cannot be prepared: {error}")
        else:
            return
        raise NotStarted(end)

    def found(self) -> bool:
        # A pull takes minutes.
        self.reporter.begin()
        begun = self.root / BEGUN
        if not begun.exists():
            return False
        with self._in_words():
            # A container that may run is worth the wait for the engine.
            client = self._client = self._insist(self._connect)
            container = self._insist(lambda: engine.inspect(client, self.name))
            if container is not None and container["State"]["Status"] == "created":
                engine.remove(client, self.name)
                return False
            if container is None and begun.read_text() != STARTED:
                return False
            self.has_run = True
            if container is None:
                reason = "its container was removed while its supervisor was away"
                raise NotStarted(infrastructure(reason))
            with contextlib.suppress(IdentityError, OSError):
                self._hold_compiled(self._resolved(accounts.resolve), container["Image"])
            self._command = [str(word) for word in container["Config"]["Entrypoint"] or ["sh"]]
        return True

    def _connect(self) -> APIClient:
        return engine.connect(self.settings.api_version)

    def _reach(self) -> APIClient:
        """As :meth:`_connect`, and the engine answers: a connection alone does not ask it anything."""
        client = self._connect()
        engine.call(client, "GET", "/_ping", lines=True)
        return client

    def _connected(self) -> APIClient:
        """For the supervisor's main thread."""
        assert self._client is not None
        return self._client

    def _warn(self, text: str) -> None:
        self.reporter.say(text, "WARNING")

    def _rest(self, seconds: float) -> bool:
        """Waits; False: the leg is stopped meanwhile."""
        with contextlib.suppress(queue.Empty):
            self._news.get(timeout=seconds)
        return not self._is_killed

    def prepare(self, fetch: Fetch) -> None:
        with self._in_words():
            if self._client is None:
                self._client = starting.patiently(self._reach, self._warn, self._rest)
            account = self._account = self._resolved(accounts.resolve)
            rights.require(
                self.spec,
                self.settings.rights,
                agent_id=self.place.agent_id,
                is_root=accounts.is_root(account),
                storage=self.place.checkpoint_dir,
            )
            if self._is_bridge():
                self.listen_host = "0.0.0.0"
        threading.Thread(target=self._get_image, args=(self._client,), daemon=True).start()
        context_dir.lay_out(self.root, self.place.work_dir, self.spec.model_def_hash, fetch)
        # The engine would make them as root.
        for name in ("workdir", "compiled"):
            (self.root / context_dir.RUN_DIR / name).mkdir()

    def _get_image(self, client: APIClient) -> None:
        """Beside the rest of the preparation, which does not use ``client``, and so that a pull can be
        interrupted.
        """
        given = self.spec.config.get("environment") or {}
        try:
            self._image = images.ensure(
                client,
                self.image,
                force=bool(given.get("force_pull_image")),
                registry_auth=given.get("registry_auth"),
                say=lambda text: self.reporter.say(text, "INFO"),
                is_stopped=lambda: self._is_killed,
            )
        except Exception as error:
            self._image = error
        self._news.put(None)

    @contextlib.contextmanager
    def files(self) -> Iterator[None]:
        yield
        if self._account is not None:
            for folder in (context_dir.WORKDIR, context_dir.RUN_DIR):
                identity.give(self._account, self.root / folder)
            if self.place.checkpoint_dir is not None:
                identity.let_store(self.place.checkpoint_dir, self.spec.cluster_id)

    def start(self, spec: LegSpec, variables: Mapping[str, str]) -> None:
        self.spec = spec
        self._news.get()
        with self._in_words():
            if self._is_killed or self._image is None:
                raise NotStarted(infrastructure("ended before its container ran"))
            if isinstance(self._image, Exception):
                raise self._image
            body = self._request(self._image, variables)
            begun = self.root / BEGUN
            begun.touch()
            client = self._connected()
            starting.patiently(
                lambda: starting.start(client, self.name, body), self._warn, self._rest
            )
            begun.write_text(STARTED)
        self.has_run = True

    def _request(self, image: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
        """The body of the request that creates the container."""
        spec, account = self.spec, self._account
        hooks = entrypoint.hooks_of(
            self.root / context_dir.WORKDIR, self.root / context_dir.RUN_DIR
        )
        command = entrypoint.in_container(spec.entrypoint, hooks=hooks)
        self._command = entrypoint.after_meeting(command) if spec.nodes > 1 else command
        compiled = self._hold_compiled(account, image["Id"])
        given = (image.get("Config") or {}).get("Env") or ()
        env = plan.environment(
            spec, self.inside, self.settings, given, account, compiled is not None
        )
        return plan.request(
            spec,
            self.place,
            self.settings,
            root=self.root,
            image=image["Id"],
            command=self._command,
            env=env | dict(variables),
            user=accounts.user(account),
            account=account,
            compiled=compiled,
        )

    def listening(self) -> Listening:
        found = self._insist(lambda: engine.inspect(self._connected(), self.name))
        pid = (found["State"]["Pid"] if found is not None else None) or None
        if self._is_bridge() and found is not None:
            # Everything that listens in its network is the container's.
            return Listening(pid, plan.own_address(found), None)
        return Listening(pid, ports.LOOPBACK, None if pid is None else [pid])

    def wait(self) -> LegResult:
        try:
            with self._in_words():
                return self._followed()
        except NotStarted as error:
            return error.result

    def _followed(self) -> LegResult:
        client = self._connected()
        with self.place.session() as link:
            pump = LogPump(
                link,
                self.reporter.owner,
                frames.mend(frames.follow(self._insist(self._connect), self.name)),
                self.root / PLACE_IN_LOG,
                plan.work_dir(self.spec),
            )
            pump.start()
            interrupted: list[bool] = []
            threading.Thread(target=self._watch_end, args=(interrupted,), daemon=True).start()
            self._news.get()
            if self._is_killed:
                self._insist(lambda: engine.kill(client, self.name))
            pump.join()
        ended = self._ended()
        if ended is None:
            return infrastructure("its container was removed by another program")
        if self._ended_with_engine(ended, bool(interrupted)):
            return infrastructure("the Docker engine was stopped, and the container with it")
        state: Mapping[str, Any] = ended["State"]
        return ends.describe(
            state,
            image=self.image,
            command=self._command,
            memory=self.settings.memory,
            hook_pending=self._pending_hook(self.root / context_dir.WORKDIR),
            init_error=pump.init_error,
            machine_is_full=self._has_oom() and not state.get("OOMKilled"),
            told=pump.why.text,
        )

    def _watch_end(self, interrupted: list[bool]) -> None:
        """Waits for the container's end, over restarts of the engine (which are ``interrupted``)."""
        from docker.errors import APIError

        while True:
            try:
                path = f"/containers/{self.name}/wait"
                # An engine that dies may end its answer where the content would begin.
                if engine.call(self._connect(), "POST", path, timeout=None) is not None:
                    break
                interrupted.append(True)
            except EngineUnavailable:
                interrupted.append(True)
                time.sleep(ENGINE_RETRY_SECONDS)
            except APIError:  # it is gone
                break
        self._news.put(None)

    def _ended_with_engine(self, container: Mapping[str, Any], interrupted: bool) -> bool:
        """``interrupted``: whether the engine was away since the supervisor waits."""
        state = container["State"]
        if int(state["ExitCode"]) not in ENDED_FROM_OUTSIDE or state.get("OOMKilled"):
            return False
        found = self._insist(
            # With a new connection: an engine that stops answers on those that it has.
            lambda: engine.ended_with_engine(self._connect(), container)
        )
        return interrupted if found is None else found

    def _ended(self) -> Mapping[str, Any] | None:
        """The container after its end; None when it is gone."""
        deadline = time.monotonic() + OOM_SECONDS
        while True:
            found = self._insist(lambda: engine.inspect(self._connected(), self.name))
            if found is None:
                return None
            state = found["State"]
            waits = state["Running"] or (
                state["ExitCode"] == 137 and not state["OOMKilled"] and self._has_oom()
            )
            if not waits or time.monotonic() > deadline:
                return found
            time.sleep(0.05)

    def _has_oom(self) -> bool:
        now = exit_reason.oom_kills().machine
        return self._oom_before is not None and now is not None and now > self._oom_before

    def _insist(self, ask: Callable[[], T]) -> T:
        """Repeat ``ask`` until the engine answers."""
        while True:
            try:
                return ask()
            except EngineUnavailable as error:
                logger.info("%s", error)
                time.sleep(ENGINE_RETRY_SECONDS)

    def kill(self) -> None:
        self._is_killed = True
        self._news.put(None)

    def ask_to_end(self) -> None:
        from docker.errors import APIError

        with contextlib.suppress(APIError, EngineUnavailable):
            engine.kill(self._connect(), self.name, signal.SIGTERM)

    def enter(self, connection: socket.socket, variables: Mapping[str, str]) -> None:
        # Only now: most legs are never entered.
        from determined_tasks.containers import beside

        beside.ContainerEntry(self.name, self._connect, plan.RUN_DIR)(connection, variables)

    def clean_up(self, keep: bool) -> None:
        self._insist(lambda: engine.remove(self._connect(), self.name))
        self._held.close()
        if keep:
            for name in (ORDER, PLACE_IN_LOG, BEGUN):
                (self.root / name).unlink(missing_ok=True)

"""The supervisor of a leg whose training process runs in a container.

It is a process of the agent's machine, independent of the agent; the container is independent of both. A
supervisor that finds the container of its leg follows it to its end, ships the rest of its log and reports
the exit: whatever is killed here, nothing runs twice and no line is lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import orjson

from determined.common.api import errors
from determined.common.forking import process as forked
from determined.common.wire.legs import ExitKind, LegSpec, LogOwner, Port
from determined_tasks import (
    bell,
    compiled_code,
    context_dir,
    entrypoint,
    exit_reason,
    identity,
    ports,
    restore_point,
    returning,
    task_environment,
)
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
from determined_tasks.context_dir import ModelDefinitionError
from determined_tasks.exit_reason import LegResult, failed_to_start, infrastructure
from determined_tasks.identity import Identity, IdentityError
from determined_tasks.leg import fetch_model_def, read_place
from determined_tasks.leg_reporter import LegReporter
from determined_tasks.service_link import ServiceLink
from determined_tasks.supervision import KILL_SIGNAL, LegRecord, ProcessName, heeding, lock
from determined_tasks.task_environment import Place

if TYPE_CHECKING:
    from docker.api.client import APIClient

    from determined_tasks.gates import Gates

logger = logging.getLogger(__name__)

ORDER = "order.json"
"""The order, for a supervisor that takes over."""
BEGUN = "container-begun"
"""Exists from just before the container is created; holds :data:`STARTED` when it runs."""
STARTED = "started"
PORTS = "ports.json"
"""The ports that were reserved, for a supervisor that takes over."""
PLACE_IN_LOG = "log-place.json"
SPOOL = "logs.spool"
ENGINE_RETRY_SECONDS = 1.0
# The engine may tell of the kernel's kill after it told of the exit.
OOM_SECONDS = 2.0
ENDED_FROM_OUTSIDE = (128 + signal.SIGKILL, 128 + signal.SIGTERM, engine.UNKNOWN_CODE)
"""Exit codes that a container has whose engine was stopped, among others."""

Event = Literal["stop", "ended", "prepared"]


def supervise(order: Mapping[str, Any]) -> int:
    """Entry point for the fork server. ``order``: ``spec`` (JSON of a LegSpec), ``place`` (arguments of
    Place), ``container`` (of ContainerSettings); or ``allocation``: the directory of a leg whose supervisor
    is gone, and ``stop``: the signal that it was to get, if any. Returns 0 when the exit is reported and
    nothing of the leg is left.
    """
    forked.set_title("leg")
    stop = order.get("stop")
    if "allocation" in order:
        order = orjson.loads((Path(order["allocation"]) / ORDER).read_bytes())
    spec, place = LegSpec.from_json(order["spec"]), read_place(order["place"])
    root = context_dir.allocation_dir(place.work_dir, spec.allocation_id)
    with lock(root) as ours:
        if ours:
            _write(root / ORDER, orjson.dumps(dict(order)))
            _Leg(spec, place, ContainerSettings.from_json(order["container"]), root).run(stop)
    return 0


def _write(path: Path, content: bytes) -> None:
    aside = path.with_suffix(".part")
    aside.touch(mode=0o600)
    aside.write_bytes(content)
    aside.rename(path)


class _Leg:
    def __init__(
        self, spec: LegSpec, place: Place, settings: ContainerSettings, root: Path
    ) -> None:
        self.spec = spec
        self.place = place
        self.settings = settings
        self.root = root
        self.name = plan.container_name(place.agent_id, place.work_dir, spec.allocation_id)
        self.image = plan.image(spec, place, settings)
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.stopped: LegResult | None = None
        self._links: list[ServiceLink] = []
        self.ports = ports.Reserved([])
        self.address = ""
        self._watch: ports.Watch | None = None
        self._gates: Gates | None = None
        self._doors: Any = None
        self._held = contextlib.ExitStack()
        self.reporter = LegReporter(
            self._link(), spec, place.agent_id, root / SPOOL, self._allocation_ended
        )
        self._oom_before = exit_reason.oom_kills().machine

    def _link(self) -> ServiceLink:
        """A connection for one thread."""
        link = ServiceLink(self.place.master, self.place.agent_token)
        self._links.append(link)
        return link

    def run(self, stop: int | None) -> None:
        this = ProcessName.of(os.getpid())
        assert this is not None
        LegRecord(self.spec.allocation_id, self.spec.experiment_id, this).write(self.root)
        with heeding(self._heed):
            if stop is not None:
                self._heed(stop)
            self.reporter.begin()
            result = self._run()
        if self.stopped is not None:
            self.reporter.say(str(result), "INFO")
        elif result.kind is not ExitKind.EXITED or result.exit_code != 0:
            self.reporter.say(str(result), "ERROR")
        workdir = self.root / context_dir.WORKDIR
        # Nobody can write there any more: the container has ended.
        returning.send(self.root, workdir, None, self.spec, self._link(), self.reporter.say)
        self.reporter.finish(result)
        self._clean_up()
        for link in self._links:
            link.__exit__(None, None, None)

    def _stop(self, result: LegResult) -> None:
        """Safe in a signal handler."""
        if self.stopped is None:
            self.stopped = result
        self.events.put("stop")

    def _heed(self, number: int) -> None:
        if number == KILL_SIGNAL:
            self._stop(LegResult(None, signal.SIGKILL, ExitKind.EXITED, "as asked for"))
        else:
            self._stop(infrastructure("stopped together with its agent"))

    def _allocation_ended(self) -> None:
        self._stop(infrastructure("the allocation had ended before its process ran"))

    def _run(self) -> LegResult:
        from docker.errors import APIError

        try:
            command: list[str] | LegResult | None = None
            if (self.root / BEGUN).exists():
                # A container that may run is worth the wait for the engine.
                client = self._insist(self._connect)
                command = self._found(client)
            else:
                client = starting.patiently(self._reach, self._warn, self._rest)
            taken_over = command is not None
            if command is None:
                command = self._begin(client)
            if isinstance(command, LegResult):
                return command
            bell.listen(self.root, self._rung)
            if taken_over:
                # The supervisor before this one may have had its door open.
                bell.ring(self.root)
            return self._follow(client, command)
        except (
            ModelDefinitionError,
            IdentityError,
            ImageError,
            NetworkError,
            RightsError,
        ) as error:
            return failed_to_start(str(error))
        except entrypoint.EntrypointError as error:
            return failed_to_start(str(error))
        except errors.NotFoundException as error:
            return failed_to_start(f"the model definition cannot be read: {error}")
        except CannotStart as error:
            return self.stopped or ends.not_started(
                f"{error} (in {len(starting.RETRY_SECONDS) + 1} tries)"
            )
        except APIError as error:
            status, words = starting.answer(error)
            reason = ends.of_engine(status, words)
            if reason is not None:
                return infrastructure(reason)
            return ends.refused(words, self.image)
        except ports.PortsError as error:
            return infrastructure(str(error))
        except (RegistryAway, EngineUnavailable, OSError, errors.APIException) as error:
            return self.stopped or infrastructure(f"the leg cannot be prepared: {error}")

    def _warn(self, text: str) -> None:
        self.reporter.say(text, "WARNING")

    def _rest(self, seconds: float) -> bool:
        """Waits; False: the leg is stopped meanwhile."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(queue.Empty):
            while self.stopped is None:
                self.events.get(timeout=max(0.0, deadline - time.monotonic()))
        return self.stopped is None

    def _rung(self) -> None:
        # Only now: most legs are never entered.
        from determined_tasks import doors
        from determined_tasks.containers import beside

        if self._doors is None:
            entry = beside.Entry(self.name, self._connect, plan.RUN_DIR)
            self._doors = doors.Doors(self.spec, self.place, entry, self.reporter.say)
        self._doors.rung()

    def _connect(self) -> APIClient:
        return engine.connect(self.settings.api_version)

    def _reach(self) -> APIClient:
        """As :meth:`_connect`, and the engine answers: a connection alone does not ask it anything."""
        client = self._connect()
        engine.call(client, "GET", "/_ping", lines=True)
        return client

    def _found(self, client: APIClient) -> list[str] | LegResult | None:
        """The command of the container that an earlier supervisor started; None: it started none."""
        found = self._insist(lambda: engine.inspect(client, self.name))
        if found is not None and found["State"]["Status"] != "created":
            with contextlib.suppress(IdentityError, OSError):
                self._hold_compiled(self._account(), found["Image"])
            return [str(word) for word in found["Config"]["Entrypoint"] or ["sh"]]
        if found is None and (self.root / BEGUN).read_text() == STARTED:
            return infrastructure("its container was removed while its supervisor was away")
        if found is not None:
            engine.remove(client, self.name)
        return None

    def _account(self) -> Identity | None:
        """Raises IdentityError."""
        return accounts.resolve(
            self.spec.agent_user,
            self.place.default_task,
            allow_root=self.place.allow_root,
            agent_id=self.place.agent_id,
        )

    def _hold_compiled(self, account: Identity | None, image: str) -> Path | None:
        """What compilers keep for this leg, until it has ended. ``image``: its id."""
        return self._held.enter_context(
            compiled_code.used(
                self.place.work_dir, self.spec, account, self.place.compiled_bytes, image
            )
        )

    def _begin(self, client: APIClient) -> list[str] | LegResult:
        """Prepares and starts the container; its command, or the end."""
        service = self._link()
        account = self._account()
        rights.require(
            self.spec,
            self.settings.rights,
            agent_id=self.place.agent_id,
            is_root=accounts.is_root(account),
            storage=self.place.checkpoint_dir,
        )
        found: list[dict[str, Any] | Exception | None] = []
        puller = threading.Thread(target=self._get_image, args=(client, found), daemon=True)
        puller.start()
        context_dir.lay_out(
            self.root,
            self.place.work_dir,
            self.spec.model_def_hash,
            lambda hash_: fetch_model_def(service, hash_),
        )
        run_dir = self.root / context_dir.RUN_DIR
        # The engine would make it as root.
        (run_dir / "workdir").mkdir()
        (run_dir / "compiled").mkdir()
        chosen = restore_point.choose(
            self.spec,
            service,
            self.reporter.say,
            lambda: self.stopped is not None,
            run_dir,
        )
        if isinstance(chosen, LegResult):
            return self.stopped or chosen
        self.spec = chosen
        task_environment.write_info_files(self.spec, self._inside(), run_dir)
        self._hand_over(account)
        if returning.wanted(self.spec):
            returning.remember(self.root, self.root / context_dir.WORKDIR)
        self._wait_for("prepared")
        if self.stopped is not None:
            return self.stopped
        image = found[0]
        if isinstance(image, Exception):
            raise image
        assert image is not None
        hooks = entrypoint.hooks_of(self.root / context_dir.WORKDIR, run_dir)
        self._reserve_ports()
        command = entrypoint.in_container(self.spec.entrypoint, hooks=hooks)
        if self.spec.nodes > 1:
            command = entrypoint.after_meeting(command)
        compiled = self._hold_compiled(account, image["Id"])
        body = plan.request(
            self.spec,
            self.place,
            self.settings,
            root=self.root,
            image=image["Id"],
            command=command,
            env=plan.environment(
                self.spec,
                self._inside(),
                self.settings,
                (image.get("Config") or {}).get("Env") or (),
                account,
                compiled is not None,
            )
            | self.ports.environment(self._listen_host()),
            user=accounts.user(account),
            account=account,
            compiled=compiled,
        )
        begun = self.root / BEGUN
        begun.touch()
        starting.patiently(lambda: starting.start(client, self.name, body), self._warn, self._rest)
        begun.write_text(STARTED)
        return command

    def _is_bridge(self) -> bool:
        """Whether the container has a network of its own."""
        return plan.network_mode(self.spec, self.settings) != "host"

    def _listen_host(self) -> str:
        return "0.0.0.0" if self._is_bridge() else ports.LOOPBACK

    def _reserve_ports(self) -> None:
        """Raises PortsError."""
        self.ports = ports.reserve(ports.ports_of(self.spec))
        if not self.ports.ports:
            return
        self.address = ports.own_address(self.place.master)
        # For a supervisor that takes over: the container keeps its ports.
        kept = {"ports": [port.to_json() for port in self.ports.ports], "address": self.address}
        _write(self.root / PORTS, orjson.dumps(kept))

    def _watch_ports(self, pid: int | None, container: Mapping[str, Any] | None) -> None:
        """Reports the process as running, and then when its ports can be reached."""
        if not self.ports.ports and (self.root / PORTS).exists():
            kept = orjson.loads((self.root / PORTS).read_bytes())
            # Those of the release before have published theirs, and stay as they were reported.
            if isinstance(kept, dict):
                self.ports = ports.reserve([Port.from_json(one) for one in kept["ports"]])
                self.address = kept["address"]
        wanted, inside = self.ports.ports, ports.LOOPBACK
        is_bridge = self._is_bridge() and container is not None
        if wanted and is_bridge and container is not None:
            inside = plan.own_address(container)
        token, allocation_id = self.place.agent_token, self.spec.allocation_id
        self._gates = ports.gates_before(wanted, self.address, inside, token, allocation_id)
        if self._gates is None:
            self.reporter.running(self._link(), pid, wanted, inside)
        else:
            self.reporter.running(self._link(), pid, self._gates.ports, self.address)
        if not wanted:
            return
        link = self._link()
        self._watch = ports.Watch(
            wanted,
            inside,
            lambda state: self.reporter.port(link, state),
            self.reporter.say,
            # In a network of its own everything that listens is the container's.
            None if is_bridge or pid is None else lambda: [pid],
        )
        self._watch.start()

    def _inside(self) -> Place:
        """The place as the container sees it."""
        return replace(self.place, master=self.settings.master_url)

    def _get_image(self, client: APIClient, found: list[dict[str, Any] | Exception | None]) -> None:
        """Beside the rest of the preparation, which does not use ``client``, and so that a pull can be
        interrupted.
        """
        given = self.spec.config.get("environment") or {}
        try:
            found.append(
                images.ensure(
                    client,
                    self.image,
                    force=bool(given.get("force_pull_image")),
                    registry_auth=given.get("registry_auth"),
                    say=lambda text: self.reporter.say(text, "INFO"),
                    is_stopped=lambda: self.stopped is not None,
                )
            )
        except Exception as error:
            found.append(error)
        self.events.put("prepared")

    def _hand_over(self, account: Identity | None) -> None:
        if account is None:
            return
        for folder in (context_dir.WORKDIR, context_dir.RUN_DIR):
            identity.give(account, self.root / folder)
        if self.place.checkpoint_dir is not None:
            identity.let_store(self.place.checkpoint_dir, self.spec.cluster_id)

    def _wait_for(self, wanted: Event) -> None:
        """Returns at the event, or when the leg is stopped."""
        while self.stopped is None and self.events.get() not in (wanted, "stop"):
            pass

    def _follow(self, client: APIClient, command: list[str]) -> LegResult:
        """From the container's start to the end of its log."""
        owner: LogOwner = {
            "task_id": self.spec.task_id,
            "allocation_id": self.spec.allocation_id,
            "agent_id": self.place.agent_id,
        }
        pump = LogPump(
            self._link(),
            owner,
            frames.mend(frames.follow(self._insist(self._connect), self.name)),
            self.root / PLACE_IN_LOG,
            plan.work_dir(self.spec),
        )
        pump.start()
        interrupted: list[bool] = []
        threading.Thread(target=self._wait, args=(interrupted,), daemon=True).start()
        found = self._insist(lambda: engine.inspect(client, self.name))
        pid = found["State"]["Pid"] if found else None
        self._watch_ports(pid or None, found)
        self._wait_for("ended")
        if self._watch is not None:
            self._watch.end()
        if self._gates is not None:
            self._gates.end()
        if self.stopped is not None:
            self._insist(lambda: engine.kill(client, self.name))
        pump.join()
        ended = self._end(client)
        if self.stopped is not None:
            return self.stopped
        if ended is None:
            return infrastructure("its container was removed by somebody else")
        state: Mapping[str, Any] = ended["State"]
        if self._ended_with_engine(ended, bool(interrupted)):
            return infrastructure("the Docker engine was stopped, and the container with it")
        run_dir, pending = self.root / context_dir.RUN_DIR, None
        if task_environment.has_met(run_dir, self.spec.nodes):
            pending = entrypoint.pending_hook(self.root / context_dir.WORKDIR, run_dir)
        return ends.describe(
            state,
            image=self.image,
            command=command,
            memory=self.settings.memory,
            hook_pending=pending,
            init_error=pump.init_error,
            machine_is_full=self._has_oom() and not state.get("OOMKilled"),
            told=pump.why.text,
        )

    def _wait(self, interrupted: list[bool]) -> None:
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
        self.events.put("ended")

    def _ended_with_engine(self, container: Mapping[str, Any], interrupted: bool) -> bool:
        """``interrupted``: whether the engine was away since the supervisor waits."""
        state = container["State"]
        if int(state["ExitCode"]) not in ENDED_FROM_OUTSIDE or state.get("OOMKilled"):
            return False
        found: bool | None = self._insist(
            # With a connection of its own: an engine that stops answers on those that it has.
            lambda: engine.ended_with_engine(self._connect(), container)
        )
        return interrupted if found is None else found

    def _end(self, client: APIClient) -> Mapping[str, Any] | None:
        """The container after its end; None when it is gone."""
        deadline = time.monotonic() + OOM_SECONDS
        while True:
            found = self._insist(lambda: engine.inspect(client, self.name))
            if found is None:
                return None
            state = found["State"]
            waits = state["Running"] or (
                state["ExitCode"] == 137 and not state["OOMKilled"] and self._has_oom()
            )
            if not waits or time.monotonic() > deadline:
                return cast("Mapping[str, Any]", found)
            time.sleep(0.05)

    def _has_oom(self) -> bool:
        now = exit_reason.oom_kills().machine
        return self._oom_before is not None and now is not None and now > self._oom_before

    def _insist(self, ask: Callable[[], Any]) -> Any:
        """The answer, when the engine is there."""
        while True:
            try:
                return ask()
            except EngineUnavailable as error:
                logger.info("%s", error)
                time.sleep(ENGINE_RETRY_SECONDS)

    def _clean_up(self) -> None:
        self._insist(lambda: engine.remove(self._connect(), self.name))
        self._held.close()
        if self.spec.config.get("debug"):
            # The record last: without it nobody looks here again.
            for name in (ORDER, PLACE_IN_LOG, BEGUN, PORTS, returning.RECORD, "leg.json"):
                (self.root / name).unlink(missing_ok=True)
        else:
            # The record last: a supervisor that takes over here ends at once.
            for name in (context_dir.WORKDIR, context_dir.RUN_DIR):
                shutil.rmtree(self.root / name, ignore_errors=True)
            shutil.rmtree(self.root, ignore_errors=True)

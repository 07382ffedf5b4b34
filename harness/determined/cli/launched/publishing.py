"""``--publish``: ports of this machine that are ports of a task, while `det` runs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from determined.cli.errors import CliError, talk

if TYPE_CHECKING:
    from determined.cli.state import State
    from determined.common.tunnel import Listener, Tunnel

MOST = 100


def with_ports(config: Mapping[str, Any], ports: Sequence[int]) -> dict[str, Any]:
    """The configuration of a task or an experiment with these ports, to be reached by tunnels."""
    environment = config.get("environment") or {}
    known = environment.get("proxy_ports") or [] if isinstance(environment, dict) else None
    if not isinstance(known, list):
        return dict(config)  # wrong, as the check says
    named = {one.get("proxy_port") for one in known if isinstance(one, dict)}
    more = [{"proxy_port": port, "proxy_tcp": True} for port in ports if port not in named]
    return {**config, "environment": {**environment, "proxy_ports": [*known, *more]}}


class Published:
    """The ports of this machine, taken at once: what cannot be had is said before a task is launched.

    A context manager that gives them back. Where an agent of the cluster runs on this machine, a task may
    need the very port: it is left to the task then, and another one leads there. Raises CliError for words
    that name no ports, and for a port that another program has.
    """

    def __init__(self, given: Iterable[str], shared: State) -> None:
        self.ports: list[int] = []
        """The task's."""
        self._listeners: list[Listener] = []
        self._left: set[int] = set()
        self._shared = shared
        self._task_id = ""
        self._told: set[str] = set()
        try:
            for words in given:
                self._take(words)
        except BaseException:
            self.close()
            raise

    def _take(self, words: str) -> None:
        from determined.common import tunnel

        try:
            local, remote = tunnel.published(words)
        except ValueError:
            raise CliError(
                f"--publish {words!r}: write PORT, or LOCAL_PORT:PORT, each from 1 to 65535"
            ) from None
        if remote in self.ports:
            raise CliError(f"--publish: port {remote} of the task is there twice")
        if len(self.ports) >= MOST:
            raise CliError(f"--publish: at most {MOST} ports")
        try:
            found = tunnel.Listener(local, lambda: self._opened(remote), self._failed)
            if local == remote and self._shares_this_machine:
                # Only now it is known to be free for the task.
                found.close()
                found = tunnel.Listener(0, lambda: self._opened(remote), self._failed)
                self._left.add(remote)
        except OSError as error:
            raise CliError(
                f"--publish {words}: port {local} of this machine cannot be had ({error.strerror or error});"
                f" another one: --publish {local + 1 if local < 65535 else 8000}:{remote}"
            ) from None
        self.ports.append(remote)
        self._listeners.append(found)

    @cached_property
    def _shares_this_machine(self) -> bool:
        agents = self._shared.cluster.list_agents()
        return any(socket.gethostname() in agent.document["addresses"] for agent in agents)

    def __enter__(self) -> Published:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, task_id: str) -> None:
        """From now on they lead to the task."""
        self._task_id = task_id
        for listener, remote in zip(self._listeners, self.ports, strict=True):
            listener.start()
            why = f" ({remote} itself is left to the task: an agent runs on this machine)"
            left = why if remote in self._left else ""
            talk(f"localhost:{listener.port} is port {remote} of {task_id}{left}")

    def hold(self, what: str) -> None:
        """Waits for Ctrl-C, if there are any."""
        if not self.ports:
            return
        talk(f"Ctrl-C gives the ports back; {what} goes on")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            talk("")

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def _opened(self, remote: int) -> Tunnel:
        from determined.common import tunnel

        key = f"{self._task_id}:{remote}"
        session = self._shared.session
        return tunnel.connect(session.master, session.token, key)

    def _failed(self, error: Exception) -> None:
        # A browser asks again and again.
        if str(error) not in self._told:
            self._told.add(str(error))
            talk(f"--publish: {error}")

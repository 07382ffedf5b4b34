"""Starting a leg's container: again, after growing waits, while the engine is away or fails at it.

A leg that goes back to the service is placed again at once, mostly on the same machine. So waits for the
engine belong here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from determined_tasks.containers import ends, engine
from determined_tasks.containers.engine import EngineUnavailable

if TYPE_CHECKING:
    from docker.api.client import APIClient
    from docker.errors import APIError

T = TypeVar("T")

# A list, not a Backoff: its length is the number of tries.
RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0)

CONFLICT = 409

Say = Callable[[str], None]
Rest = Callable[[float], bool]


class CannotStart(Exception):
    """The engine failed at the container each time; the message is meant for the user."""


def patiently(ask: Callable[[], T], say: Say, rest: Rest) -> T:
    """The answer of ``ask``. After EngineUnavailable and CannotStart it is asked again, in all of
    RETRY_SECONDS; then its last error is raised.

    ``say`` gets the reason for the task's log. ``rest`` waits that number of seconds; it returns False when
    the leg is stopped meanwhile, and then the error is raised at once.
    """
    for delay in RETRY_SECONDS:
        try:
            return ask()
        except (EngineUnavailable, CannotStart) as error:
            say(f"{error}; it is tried again in {delay:g} s")
            if not rest(delay):
                raise
    return ask()


def start(client: APIClient, name: str, body: dict[str, Any]) -> None:
    """Create and start the container, replacing the remains of an earlier try.

    Raises APIError for what another try cannot help; CannotStart, EngineUnavailable.
    """
    from docker.errors import APIError

    def create() -> None:
        engine.call(client, "POST", "/containers/create", params={"name": name}, json=body)

    try:
        try:
            create()
        except APIError as error:
            if answer(error)[0] != CONFLICT:
                raise
            engine.remove(client, name)
            create()
        engine.call(client, "POST", f"/containers/{name}/start")
    except APIError as error:
        words = ends.of_engine(*answer(error))
        if words is None:
            raise
        raise CannotStart(words) from error


def answer(error: APIError) -> tuple[int | None, str]:
    """The HTTP status of the engine's refusal, and its words."""
    response = error.response
    return None if response is None else response.status_code, str(error.explanation or error)

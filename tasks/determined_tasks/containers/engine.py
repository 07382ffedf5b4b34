"""The connection to the Docker engine."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from determined_tasks.containers.settings import LABEL_AGENT, LABEL_WORK_DIR

if TYPE_CHECKING:
    from docker.api.client import APIClient

SECONDS = 60.0
EVENTS_KEPT = 256
"""So many of its latest events an engine tells of."""
UNKNOWN_CODE = 255
"""The exit code of a container whose end no engine saw."""
_MOMENT = re.compile(r"(.*?T[\d:]+)(?:\.(\d+))?(.*)")


class EngineUnavailable(Exception):
    """The engine cannot be reached, or broke off, or failed at what may go well later; the message says where
    it was looked for, or at what."""


def connect(api_version: str | None = None) -> APIClient:
    """A client for one thread, by ``DOCKER_HOST`` and its companions. Raises EngineUnavailable.

    ``api_version``: the engine's, if it is known; else the engine is asked.
    """
    import docker
    from docker.errors import DockerException
    from docker.utils import kwargs_from_env

    try:
        return docker.APIClient(
            version=api_version or "auto", timeout=int(SECONDS), **kwargs_from_env()
        )
    except DockerException as error:
        raise EngineUnavailable(away(error)) from error


def away(error: object) -> str:
    return (
        f"the Docker engine does not answer: {error}; check that dockerd runs, that this user may use its"
        " socket (group docker), and DOCKER_HOST"
    )


def call(client: APIClient, method: str, path: str, *, lines: bool = False, **options: Any) -> Any:
    """One request of the engine's API; the decoded answer, or its ``lines`` as they are.

    Raises docker.errors.APIError with the engine's words, and EngineUnavailable.
    """
    import requests

    options.setdefault("timeout", SECONDS)
    url = f"{client.base_url}/v{client.api_version}{path}"
    try:
        response = client.request(method, url, **options)
    except requests.RequestException as error:  # also in the midst of its answer
        raise EngineUnavailable(away(error)) from error
    client._raise_for_status(response)
    if lines:
        return response.text.splitlines()
    return response.json() if response.content else None


def maps_users(client: APIClient) -> bool:
    """True if the users of its containers are mapped to other users of the machine (``userns-remap``). Raises
    EngineUnavailable."""
    options = call(client, "GET", "/info").get("SecurityOptions") or ()
    return any("name=userns" in one for one in options)


def inspect(client: APIClient, name: str) -> dict[str, Any] | None:
    """The container, or None. Raises EngineUnavailable."""
    from docker.errors import NotFound

    try:
        found: dict[str, Any] = call(client, "GET", f"/containers/{name}/json")
    except NotFound:
        return None
    return found


def remove(client: APIClient, name: str) -> None:
    """Kills and removes the container with the volumes of its image; nothing if there is none.

    Raises EngineUnavailable.
    """
    from docker.errors import APIError, NotFound

    try:
        call(client, "DELETE", f"/containers/{name}", params={"force": "1", "v": "1"})
    except NotFound:
        return
    except APIError as error:
        status = None if error.response is None else error.response.status_code
        if status is not None and status >= 500:
            # Its files are in use for a moment (a busy mount): it stays, Dead, until it is asked again.
            raise EngineUnavailable(f"the Docker engine did not remove {name}: {error}") from error
        # Somebody else removes it at this moment.
        if status != 409:
            raise


def kill(client: APIClient, name: str, number: signal.Signals = signal.SIGKILL) -> None:
    """The signal to the container's first process, SIGKILL to all; nothing if it does not run. Raises
    EngineUnavailable."""
    from docker.errors import APIError

    try:
        call(client, "POST", f"/containers/{name}/kill", params={"signal": number.name})
    except APIError as error:
        if error.response is None or error.response.status_code not in (404, 409):
            raise


def ended_with_engine(client: APIClient, container: Mapping[str, Any]) -> bool | None:
    """True if a container that was killed, or ended by SIGTERM, was ended by the stop of the engine or of its
    machine; None when the engine does not know. ``container``: as :func:`inspect` has it.

    An engine that is stopped in good order tells whoever waits of the container's end as of any other, before
    it ends itself. But its memory of events goes with it: the next one does not know that it made this
    container. Raises EngineUnavailable.
    """
    import json

    facts = call(client, "GET", "/info")
    if facts.get("LiveRestoreEnabled") and int(container["State"]["ExitCode"]) != UNKNOWN_CODE:
        return False
    params = {"since": "1", "until": _seconds(facts["SystemTime"])}
    told = call(client, "GET", "/events", params=params, lines=True)
    events = [json.loads(line) for line in told]
    if any(
        event.get("Action") == "create" and event["Actor"].get("ID") == container["Id"]
        for event in events
    ):
        return False
    return True if len(events) < EVENTS_KEPT else None


def _seconds(moment: str) -> str:
    """Since the epoch, of an engine's time, such as ``2026-11-23T09:04:08.274514221Z``."""
    match = _MOMENT.fullmatch(moment)
    assert match is not None, moment
    whole, fraction, zone = match.groups()
    seconds = int(datetime.fromisoformat(whole + zone).timestamp())
    return f"{seconds}.{(fraction or '').ljust(9, '0')}"


def of_agent(client: APIClient, agent_id: str, work_dir: str) -> Iterator[dict[str, Any]]:
    """The containers of this agent, whether they run or not. Raises EngineUnavailable."""
    import json

    labels = [f"{LABEL_AGENT}={agent_id}", f"{LABEL_WORK_DIR}={work_dir}"]
    params = {"all": "1", "filters": json.dumps({"label": labels})}
    yield from call(client, "GET", "/containers/json", params=params)

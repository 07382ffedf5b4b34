"""The image of a container: found on the machine or pulled, with progress and with errors in words."""

from __future__ import annotations

import base64
import binascii
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from determined.common.backoff import Backoff
from determined_tasks.containers.engine import EngineUnavailable, away, call

if TYPE_CHECKING:
    from docker.api.client import APIClient

PROGRESS_SECONDS = 5.0
TRIES = 3
RETRY_SECONDS = (1.0, 5.0)

_NO_ENTRY = re.compile(
    r"unauthorized|authentication required|no basic auth|denied|forbidden|incorrect username|login",
    re.IGNORECASE,
)
_NO_IMAGE = re.compile(
    r"manifest .*(unknown|not found)|not found|name unknown|does not exist|no matching manifest"
    r"|invalid reference|invalid repository|must be lowercase|no such image",
    re.IGNORECASE,
)


class ImageError(Exception):
    """The image cannot be had, and another try cannot help; the message is meant for the user."""


class RegistryAway(Exception):
    """The registry could not be reached, in several tries."""


def split(image: str) -> tuple[str, str]:
    """Repository, and tag or digest, ``latest`` if neither is given."""
    if "@" in image:
        repository, _, digest = image.partition("@")
        return repository, digest
    head, slash, last = image.rpartition("/")
    name, _, tag = last.partition(":")
    return f"{head}{slash}{name}", tag or "latest"


def credentials(registry_auth: Mapping[str, Any] | None) -> dict[str, str] | None:
    """``environment.registry_auth`` as the engine wants it. Raises ImageError."""
    given = {key: str(value) for key, value in (registry_auth or {}).items() if value}
    encoded = given.pop("auth", None)
    if encoded and "username" not in given:
        try:
            user, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            colon = ""
        if not colon:
            raise ImageError(
                "environment.registry_auth.auth: expected base64 of user:password, found something else"
            )
        given.update(username=user, password=password)
    return given or None


def refused(image: str, words: str, has_credentials: bool) -> ImageError | None:
    """Explain the registry's or the engine's ``words`` to the user; None: another try may help."""
    said = words.strip()
    # Docker's hub answers both for an image that does not exist, so as not to reveal private names.
    if _NO_ENTRY.search(said):
        what = (
            "does not accept environment.registry_auth"
            if has_credentials
            else "asks for a login: set environment.registry_auth"
        )
        return ImageError(
            f"image {image} cannot be pulled: either there is no such image, or its registry {what} ({said})"
        )
    if _NO_IMAGE.search(said):
        return ImageError(
            f"image {image} does not exist: check environment.image ({said}); an image that only this"
            " machine has must be built or loaded on each agent"
        )
    return None


class PullProgress:
    """Sums up the layers of a pull. ``say`` gets a line at most each :data:`PROGRESS_SECONDS`."""

    def __init__(
        self, image: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._image = image
        self._say = say
        self._clock = clock
        self._next = clock() + PROGRESS_SECONDS
        self._layers: dict[str, tuple[int, int]] = {}

    def feed(self, event: Mapping[str, Any]) -> None:
        """One line of the engine's answer."""
        detail = event.get("progressDetail") or {}
        if event.get("status") == "Downloading" and detail.get("total"):
            self._layers[str(event.get("id"))] = (detail.get("current", 0), detail["total"])
        elif event.get("status") in ("Download complete", "Pull complete"):
            _, total = self._layers.get(str(event.get("id")), (0, 0))
            self._layers[str(event.get("id"))] = (total, total)
        now = self._clock()
        if now >= self._next:
            self._next = now + PROGRESS_SECONDS
            done = sum(done for done, _ in self._layers.values())
            total = sum(total for _, total in self._layers.values())
            self._say(f"pulling image {self._image}: {_mb(done)} of {_mb(total)} MB downloaded")


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f}"


def ensure(
    client: APIClient,
    image: str,
    *,
    force: bool,
    registry_auth: Mapping[str, Any] | None,
    say: Callable[[str], None],
    is_stopped: Callable[[], bool],
) -> dict[str, Any] | None:
    """The image's description by the engine, after a pull if it is missing or ``force``.

    None: stopped meanwhile. Raises ImageError, RegistryAway, EngineUnavailable.
    """
    from docker.errors import APIError, NotFound

    found = None
    try:
        found = call(client, "GET", f"/images/{image}/json")
    except NotFound:
        pass
    except APIError as error:  # not a name at all
        raise ImageError(f"image {image!r}: {error.explanation or error}") from error
    if found is not None and not force:
        return dict(found)
    auth = credentials(registry_auth)
    backoff = Backoff(*RETRY_SECONDS)
    began = time.monotonic()
    say(f"pulling image {image}")
    for left in reversed(range(TRIES)):
        failure = _pull(client, image, auth, PullProgress(image, say), is_stopped)
        if is_stopped():
            return None
        if failure is None:
            say(f"pulled image {image} in {time.monotonic() - began:.1f} s")
            return dict(call(client, "GET", f"/images/{image}/json"))
        refusal = refused(image, failure, auth is not None)
        if refusal is not None:
            raise refusal
        if left:
            say(f"image {image} cannot be pulled yet, trying again: {failure}")
            time.sleep(backoff.next_delay())
    raise RegistryAway(f"image {image} cannot be pulled: {failure}")


def _pull(
    client: APIClient,
    image: str,
    auth: dict[str, str] | None,
    progress: PullProgress,
    is_stopped: Callable[[], bool],
) -> str | None:
    """Pull the image. Returns the reason of a failure in the engine's words, or None."""
    import requests
    from docker.errors import APIError

    repository, tag = split(image)
    try:
        events = client.pull(repository, tag=tag, auth_config=auth, stream=True, decode=True)
        for event in events:
            if is_stopped():
                events.close()
                return None
            if event.get("error"):
                return str(event["error"])
            progress.feed(event)
    except APIError as error:
        return str(error.explanation or error)
    except requests.ConnectionError as error:
        raise EngineUnavailable(away(error)) from error
    except requests.Timeout:
        return f"the registry of {repository} did not answer in time"
    return None

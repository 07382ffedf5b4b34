"""All objects, with resource versions, and the history of changes that watches read.

Objects are never changed in place: each change makes a copy with the next resource version.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from tests.kubernetes.standin.objects import (
    KINDS,
    Matches,
    Object,
    Refused,
    conflict,
    is_ending,
    not_found,
    now,
    too_old,
)

HISTORY = 20_000


@dataclass(frozen=True)
class Change:
    """``before`` is None of a new object, ``after`` of one that is gone; ``last``: as it was or is."""

    version: int
    plural: str
    before: Object | None
    after: Object | None
    last: Object


class Store:
    def __init__(self) -> None:
        self._objects: dict[str, dict[tuple[str, str], Object]] = {name: {} for name in KINDS}
        self._history: deque[Change] = deque(maxlen=HISTORY)
        self._version = 100
        self.oldest = 100
        """From which version on changes are known."""
        self._news = asyncio.Event()
        self._cut = asyncio.Event()
        self.listeners: list[Callable[[Change], None]] = []
        self.watches: Counter[str] = Counter()
        """The open watches, by kind."""

    @property
    def version(self) -> int:
        return self._version

    def get(self, plural: str, namespace: str, name: str) -> Object:
        """Raises Refused (404)."""
        found = self._objects[plural].get((namespace, name))
        if found is None:
            raise not_found(plural, name)
        return found

    def find(self, plural: str, namespace: str, name: str) -> Object | None:
        return self._objects[plural].get((namespace, name))

    def select(
        self, plural: str, namespace: str | None = None, matches: Matches | None = None
    ) -> list[Object]:
        """``namespace`` None: of all namespaces."""
        return [
            thing
            for (where, _), thing in self._objects[plural].items()
            if namespace in (None, where) and (matches is None or matches(thing))
        ]

    def create(self, plural: str, thing: Object) -> Object:
        kind, new = KINDS[plural], copy.deepcopy(thing)
        metadata = new["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        if (namespace, name) in self._objects[plural]:
            raise Refused(409, "AlreadyExists", f'{plural} "{name}" already exists')
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
        self._put(plural, None, {"kind": kind.name, "apiVersion": kind.group, **new})
        return self.get(plural, namespace, name)

    def change(
        self,
        plural: str,
        thing: Object,
        change: Callable[[Object], Any],
        expected: str | None = None,
    ) -> Object:
        """Applies ``change`` to a copy of the newest version of ``thing``. ``expected``: refuse if that is
        not the newest resource version.
        """
        metadata = thing["metadata"]
        old = self.get(plural, metadata.get("namespace", ""), metadata["name"])
        if expected and expected != old["metadata"]["resourceVersion"]:
            raise conflict(plural, metadata["name"])
        new = copy.deepcopy(old)
        change(new)
        if new == old:
            return old
        self._put(plural, old, new)
        if is_ending(new) and not new["metadata"].get("finalizers") and plural != "pods":
            self.remove(plural, new)
        return new

    def remove(self, plural: str, thing: Object) -> None:
        metadata = thing["metadata"]
        old = self._objects[plural].pop((metadata.get("namespace", ""), metadata["name"]), None)
        if old is not None:
            self._version += 1
            last = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self._version)}}
            self._tell(Change(self._version, plural, old, None, last))

    def _put(self, plural: str, before: Object | None, after: Object) -> None:
        self._version += 1
        metadata = after["metadata"]
        metadata["resourceVersion"] = str(self._version)
        self._objects[plural][metadata.get("namespace", ""), metadata["name"]] = after
        self._tell(Change(self._version, plural, before, after, after))

    def _tell(self, change: Change) -> None:
        if len(self._history) == HISTORY:
            self.oldest = self._history[0].version
        self._history.append(change)
        news, self._news = self._news, asyncio.Event()
        news.set()
        for listener in self.listeners:
            listener(change)

    def forget(self) -> None:
        """Compacts the history: whoever watches from an older version gets 410."""
        self._history.clear()
        self.oldest = self._version

    def break_watches(self) -> None:
        cut, self._cut = self._cut, asyncio.Event()
        cut.set()

    async def watch(
        self,
        plural: str,
        namespace: str | None,
        matches: Matches,
        since: int,
        bookmark_seconds: float,
    ) -> AsyncIterator[tuple[str, Object] | None]:
        """Events after the version ``since``; None where a bookmark belongs. Ends when watches are broken.

        Raises Refused (410).
        """
        cut = self._cut
        self.watches[plural] += 1
        try:
            while not cut.is_set():
                news, until = self._news, self._version
                if since < self.oldest:
                    raise too_old(since, self.oldest)
                for change in self._after(since):
                    event = _event(change, plural, namespace, matches)
                    if event is not None:
                        yield event
                since = until
                if not await _either(news, cut, bookmark_seconds):
                    yield None
        finally:
            self.watches[plural] -= 1

    def _after(self, version: int) -> list[Change]:
        found = []
        for change in reversed(self._history):
            if change.version <= version:
                break
            found.append(change)
        return found[::-1]


def _event(
    change: Change, plural: str, namespace: str | None, matches: Matches
) -> tuple[str, Object] | None:
    if change.plural != plural or namespace not in (None, change.last["metadata"].get("namespace")):
        return None
    was = change.before is not None and matches(change.before)
    is_ = change.after is not None and matches(change.after)
    if not was and not is_:
        return None
    return ("ADDED" if not was else "MODIFIED" if is_ else "DELETED"), change.last


async def _either(one: asyncio.Event, other: asyncio.Event, seconds: float) -> bool:
    """Waits for either; False after that many seconds."""
    waiting = [asyncio.ensure_future(event.wait()) for event in (one, other)]
    try:
        done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiting:
            waiter.cancel()
    return bool(done)

"""The names of tasks' ports in addresses: `/proxy/<task>[:<port>]/…`, and separate host names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

from determined.common.wire.pages import HOME
from determined_service.base import hosts

PREFIX = b"/proxy/"
TERMINALS = f"{HOME}/terminals/".encode()
"""Below it a page of the service's own finds the door of a task: `/det/terminals/<task>:<port>`."""
_KEY = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,199})(?::([A-Za-z0-9][A-Za-z0-9_-]{0,62}))?")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PORT = "---"
_DOT = "--"


@dataclass(frozen=True, slots=True)
class Key:
    """A port of a task. ``port``: its name; empty: the task's default one."""

    task_id: str
    port: str = ""

    def __str__(self) -> str:
        return f"{self.task_id}:{self.port}" if self.port else self.task_id

    @property
    def path(self) -> str:
        """Its path below the service's address, without a slash at the end."""
        return f"/proxy/{quote(str(self), safe=':')}"

    @property
    def label(self) -> str | None:
        """The first part of its host name. A browser takes each such name for a separate site. None: the
        task's id makes no host name."""
        label = self.task_id.replace(".", _DOT) + (f"{_PORT}{self.port}" if self.port else "")
        return label if of_label(label) == self else None


def of_label(label: str) -> Key | None:
    """The port that a host name's first part means; None: it means none."""
    if not _LABEL.fullmatch(label) or label in hosts.PAGES:
        return None
    task, _, port = label.partition(_PORT)
    return _read(task.replace(_DOT, ".") + (f":{port}" if port else ""))


def _read(text: str) -> Key | None:
    found = _KEY.fullmatch(text)
    return None if found is None else Key(found[1], found[2] or "")


def of_path(path: bytes, prefix: bytes = PREFIX) -> tuple[Key, bytes] | None:
    """The port that an address below ``prefix`` means, and what comes after it: empty, or with a slash at its
    beginning."""
    rest = path.removeprefix(prefix)
    if len(rest) == len(path):
        return None
    first, slash, after = rest.partition(b"/")
    try:
        key = _read(unquote_to_bytes(first).decode("ascii"))
    except UnicodeDecodeError:
        return None
    return None if key is None else (key, slash + after)


def own_address(key: Key, own_host: str, own_base: str, host: bytes) -> str | None:
    """As :func:`determined_service.base.hosts.address`, of the port's host name."""
    label = key.label
    return None if label is None else hosts.address(label, own_host, own_base, host)

"""The tokens kept between commands: ``auth.json``, one entry per service, in upstream's format."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

VERSION = 2
LOCK_S = 30.0
"""So long a command waits for another one that changes the file."""


def config_dir() -> Path:
    """The folder of the tokens: ``$DET_DEBUG_CONFIG_PATH``, else ``~/.config/determined``, which upstream's
    tools use too.
    """
    given = os.environ.get("DET_DEBUG_CONFIG_PATH")
    return Path(given) if given else Path.home() / ".config" / "determined"


class TokenStore:
    """``{"version": 2, "masters": {url: {"active_user": name, "tokens": {name: token}}}}``.

    The file is made with mode 0600 and replaced as a whole; commands that log in at the same moment come one
    after the other. A file that cannot be understood is treated as empty and overwritten by the next login.
    ``user=None`` means the active user.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or config_dir() / "auth.json"

    def active_user(self, url: str) -> str | None:
        """The user who logged in to ``url`` last."""
        found = self._entry(url).get("active_user")
        return found if isinstance(found, str) and found else None

    def token(self, url: str, user: str | None = None) -> str | None:
        """The token kept for ``user`` at ``url``."""
        name = user or self.active_user(url)
        found = self._tokens(url).get(name) if name else None
        return found if isinstance(found, str) else None

    def users(self, url: str) -> list[str]:
        """The users whose tokens are kept for ``url``."""
        return sorted(self._tokens(url))

    def set_token(self, url: str, user: str, token: str, *, activate: bool = True) -> None:
        """Keeps ``token``. ``activate`` makes ``user`` the one whose token later commands use."""
        with self._changing():
            tokens = {**self._tokens(url), user: token}
            active = user if activate else self.active_user(url)
            self._write(url, {"tokens": tokens, **({"active_user": active} if active else {})})

    def drop(self, url: str, user: str | None = None) -> None:
        """Forgets a token."""
        with self._changing():
            active = self.active_user(url)
            name = user or active
            tokens = {n: t for n, t in self._tokens(url).items() if n != name}
            entry: dict[str, Any] = {"tokens": tokens}
            if active is not None and active != name:
                entry["active_user"] = active
            self._write(url, entry)

    def _changing(self) -> AbstractContextManager[object]:
        """From the reading of the file to its replacement nobody else changes it."""
        from filelock import FileLock

        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return FileLock(f"{self.path}.lock", timeout=LOCK_S)

    def _masters(self) -> dict[str, Any]:
        try:
            stored = json.loads(self.path.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        masters = stored.get("masters") if isinstance(stored, dict) else None
        return masters if isinstance(masters, dict) else {}

    def _entry(self, url: str) -> dict[str, Any]:
        found = self._masters().get(url)
        return found if isinstance(found, dict) else {}

    def _tokens(self, url: str) -> dict[str, str]:
        found = self._entry(url).get("tokens")
        return found if isinstance(found, dict) else {}

    def _write(self, url: str, entry: dict[str, Any]) -> None:
        masters = {**self._masters(), url: entry}
        # mkstemp makes the file readable for its owner only.
        handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=".auth-")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump({"version": VERSION, "masters": masters}, file, indent=2)
            Path(temporary).replace(self.path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

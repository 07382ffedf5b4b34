"""Logs one line when a server is away and one when it is back, however many tries fail in between."""

from __future__ import annotations

import logging
import time


class Outage:
    """The state of the connection to ``name``."""

    def __init__(self, name: str, logger: logging.Logger) -> None:
        self._name = name
        self._logger = logger
        self._since: float | None = None

    def failed(self, error: object) -> None:
        """A try failed."""
        if self._since is None:
            self._since = time.monotonic()
            self._logger.info("waiting for %s: %s", self._name, error)

    def over(self) -> None:
        """A try succeeded."""
        if self._since is not None:
            away = time.monotonic() - self._since
            self._logger.info("%s is back after %.1f s", self._name, away)
            self._since = None

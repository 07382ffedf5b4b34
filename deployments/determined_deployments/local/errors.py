"""Errors of a local cluster, in words for the person at the terminal."""

from __future__ import annotations


class ClusterError(Exception):
    """The command cannot go on; the message gives the reason and the remedy. Exit code 1."""


class ComponentFailed(ClusterError):
    """A component died or did not become ready; ``log_tail`` holds its last lines."""

    def __init__(self, message: str, log_tail: str = "") -> None:
        super().__init__(message)
        self.log_tail = log_tail

"""Processes, as tests look at them."""

from __future__ import annotations

import psutil


def is_alive(pid: int) -> bool:
    """True if the process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

"""The connection to the service, at the place of early releases."""

from __future__ import annotations

from determined.common.api import Session
from determined.common.util import get_max_retries_config

__all__ = [
    "Session",
    "get_max_retries_config",
]

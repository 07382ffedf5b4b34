"""The client side of the REST API: :class:`Session` and its errors."""

from __future__ import annotations

import importlib
from typing import Any

from determined._absent import absent
from determined.common.api import errors
from determined.common.api.session import Session

__all__ = ["Session", "canonicalize_master_url", "errors", "get_default_master_url"]

_LOGS = "client.get_trial(id).logs() and client.get_experiment(id).logs() read logs"
_ONE = "determined.common.api.Session is the one class of sessions"
_CALLS = "session = authentication.login_with_cache(address), then session.get(path) and the others"

_MODULES = ("authentication", "bindings", "certs")
_absent = absent(
    __name__,
    {
        **dict.fromkeys(("logs", "pprint_logs", "task_logs", "trial_logs"), _LOGS),
        **dict.fromkeys(("BaseSession", "TaskSession", "UnauthSession"), _ONE),
        **dict.fromkeys(
            ("delete", "do_request", "get", "make_url", "patch", "post", "put"), _CALLS
        ),
        "metric": "Trial.iter_metrics() gives the metrics",
        "PageOpts": "determined.common.api.pages.read(session, path, key) reads all pages",
        "read_paginated": "determined.common.api.pages.read(session, path, key) reads all pages",
    },
)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    return _absent(name)


def canonicalize_master_url(url: str) -> str:
    """``host`` → ``http://host:8080``, without a slash at the end. Raises ValueError."""
    from determined.common import master

    return master.canonical(url)


def get_default_master_url() -> str:
    """The service's address, as `det` finds it: $DET_MASTER, the local cluster, http://localhost:8080."""
    from determined.common import master

    return master.find().url

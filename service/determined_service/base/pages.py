"""Where people find the service's pages, and whether MLflow's are among them."""

from __future__ import annotations

import functools
import importlib.util
from urllib.parse import urlsplit

from determined_service.base import hosts
from determined_service.base.settings import Settings

_ANY_HOST = ("0.0.0.0", "::", "")


def of_service(settings: Settings) -> str:
    """The service's address for browsers, without a slash at its end."""
    base = settings.public_url
    if base is None:
        host = "127.0.0.1" if settings.host in _ANY_HOST else settings.host
        base = f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"
    return base.rstrip("/")


def task_base(settings: Settings) -> str:
    """The address of a task's host name, with a star; empty: names below ``localhost``, or none."""
    return settings.proxy_host or ""


def task_host(settings: Settings) -> str:
    """With a dot and this the host names of tasks end; empty: they have none."""
    if settings.proxy_host is None:
        return "localhost"
    return (urlsplit(settings.proxy_host.replace("*", "x", 1)).hostname or "").removeprefix("x.")


def mlflow_host(settings: Settings) -> str:
    """The host name of MLflow's pages; empty: they have none of their own."""
    own = task_host(settings)
    return f"{hosts.MLFLOW}.{own}" if own else ""


def mlflow_elsewhere(settings: Settings, host: str) -> str | None:
    """Where a browser that came to ``host`` (of the header) finds MLflow's pages: an address without a path.
    None: there."""
    host = host.lower()
    if host.partition(":")[0] == mlflow_host(settings):
        return None
    given = host.encode("latin-1", "replace")
    return hosts.address(hosts.MLFLOW, task_host(settings), task_base(settings), given)


@functools.cache
def has_mlflow() -> bool:
    """Whether MLflow is installed beside the service; it is not imported."""
    return importlib.util.find_spec("mlflow") is not None

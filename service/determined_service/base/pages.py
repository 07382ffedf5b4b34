"""The addresses of the service's pages, and of MLflow's and Prefect's."""

from __future__ import annotations

import functools
import importlib.util
from urllib.parse import urlsplit

from determined.common.wire.pages import HOME
from determined_service.base import hosts
from determined_service.base.settings import Settings

FRONT_HOME = HOME
"""The path below which the service's own pages are."""
_ANY_HOST = ("0.0.0.0", "::", "")
PREFECT_HOME = "/prefect"
"""The path of the service below which Prefect's server is; at its pages' host name it is the whole of it."""


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


def own_host(settings: Settings, label: str) -> str:
    """The host name of the pages ``label`` (one of ``hosts.PAGES``); empty: they have none."""
    own = task_host(settings)
    return f"{label}.{own}" if own else ""


def is_own_host(settings: Settings, label: str, host: str) -> bool:
    """True if ``host`` (of the header) is the host name of the pages ``label``."""
    return host.lower().partition(":")[0] == own_host(settings, label) != ""


def elsewhere(settings: Settings, label: str, host: str) -> str | None:
    """The address, without a path, at which a browser that came to ``host`` (of the header) finds the pages
    ``label``. None: at ``host`` itself, or they have no host name that leads here."""
    if is_own_host(settings, label, host):
        return None
    given = host.lower().encode("latin-1", "replace")
    return hosts.address(label, task_host(settings), task_base(settings), given)


@functools.cache
def has_mlflow() -> bool:
    """True if MLflow is installed beside the service; it is not imported."""
    return importlib.util.find_spec("mlflow") is not None


def is_front(address: str) -> bool:
    """True if the address, without a host name, leads to one of the service's own pages."""
    return (
        address.startswith(f"{FRONT_HOME}/")
        and "//" not in address.partition("?")[0]
        and "\\" not in address
        and address.isprintable()
    )

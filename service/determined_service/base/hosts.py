"""Host names for pages: a browser takes each for a separate site, and sends its cookies to no other.

Imports no settings: the proxy's process has none.
"""

from __future__ import annotations

import re

FRONT, MLFLOW, PREFECT = "det", "mlflow", "prefect"
"""The first parts of the host names of the service's own pages, MLflow's and Prefect's."""
FRONT_COOKIE = "determined-front"
"""The cookie of a browser that is logged in at the service's own pages."""
SECURE = "__Host-"
"""With this begins a cookie's name where the way to the service is encrypted: no other host name can set one
so named."""
PAGES = (FRONT, MLFLOW, PREFECT)
"""No task's host name begins with these."""
_LOOPBACK = re.compile(rb"(localhost|127\.[0-9.]+|\[::1\]|[a-z0-9-]+\.localhost)(?::([0-9]+))?")


def address(label: str, own_host: str, own_base: str, host: bytes) -> str | None:
    """The address of the host name that begins with ``label``, without a path. None: it has none that leads
    here.

    ``own_base``: what the cluster's settings give, with a star; empty: host names below ``localhost``, which
    browsers take for their own machine without asking anybody. Those are for visitors who came to ``host``, a
    name of that machine.
    """
    if not own_host:
        return None
    if own_base:
        return own_base.replace("*", label, 1)
    found = _LOOPBACK.fullmatch(host)
    if found is None:
        return None
    return f"http://{label}.{own_host}" + (f":{found[2].decode()}" if found[2] else "")

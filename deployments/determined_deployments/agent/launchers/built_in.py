"""The launchers by name."""

from __future__ import annotations

import importlib

from determined.common import installation
from determined_deployments.agent.launchers.base import Launcher

BUILT_IN = {
    "docker": "determined_deployments.agent.launchers.docker.launcher:DockerLauncher",
    "fork_server": "determined_deployments.agent.launchers.fork_server.launcher:ForkServerLauncher",
    "kubernetes": "determined_deployments.agent.launchers.kubernetes.launcher:KubernetesLauncher",
}

EXTRAS = {
    "docker": "docker",
    "prefect_docker": "docker",
    "kubernetes_asyncio": "kubernetes",
    "prefect_kubernetes": "kubernetes",
}
"""What installs a module that a launcher needs."""


def load(name: str) -> type[Launcher]:
    """The launcher of the agent's setting ``launcher``: a name in BUILT_IN, or ``module:Class``.

    Raises ValueError.
    """
    place = BUILT_IN.get(name, name)
    module, _, attribute = place.partition(":")
    if not attribute:
        known = ", ".join(sorted(BUILT_IN))
        raise ValueError(f"launcher: {name!r} is not known; known are {known}, or module:Class")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"launcher: {name!r} cannot be loaded: {error}{_hint(error)}") from error
    if not (isinstance(found, type) and issubclass(found, Launcher)):
        raise ValueError(f"launcher: {name!r} is not a subclass of Launcher")
    return found


def _hint(error: Exception) -> str:
    extra = EXTRAS.get(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    return "" if extra is None else f"; {installation.command(extra)}"

"""Determined: experiments, hyperparameter search and training on a Prefect cluster.

``import determined as det`` is cheap on purpose: each name below is imported when a script first uses it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from determined.__version__ import __version__

if TYPE_CHECKING:
    from determined import core, errors, gpu, util
    from determined._experiment_config import ExperimentConfig
    from determined._import import import_from_path
    from determined._info import (
        ClusterInfo,
        RendezvousInfo,
        ResourcesInfo,
        TrialInfo,
        get_cluster_info,
    )
    from determined._trial import LegacyTrial
    from determined._trial_context import TrialContext
    from determined.errors import InvalidHP

# Log shippers read the level off the start of each line: keep this format for logs of a trial.
LOG_FORMAT = "%(levelname)s: [%(process)s] %(name)s: %(message)s"

_HOMES = {
    "ExperimentConfig": "determined._experiment_config",
    "import_from_path": "determined._import",
    "ClusterInfo": "determined._info",
    "RendezvousInfo": "determined._info",
    "ResourcesInfo": "determined._info",
    "TrialInfo": "determined._info",
    "get_cluster_info": "determined._info",
    "LegacyTrial": "determined._trial",
    "TrialContext": "determined._trial_context",
    "InvalidHP": "determined.errors",
}
_MODULES = ("core", "errors", "gpu", "util")
_ABSENT = {
    "EnvContext": "det.get_cluster_info() says where a task runs",
    "TrialController": "determined.pytorch.Trainer runs trials",
}

__all__ = [
    "LOG_FORMAT",
    "ClusterInfo",
    "ExperimentConfig",
    "InvalidHP",
    "LegacyTrial",
    "RendezvousInfo",
    "ResourcesInfo",
    "TrialContext",
    "TrialInfo",
    "__version__",
    "core",
    "errors",
    "get_cluster_info",
    "gpu",
    "import_from_path",
    "util",
]


def __getattr__(name: str) -> Any:
    value: Any
    if name in _MODULES:
        value = importlib.import_module(f"determined.{name}")
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name == "Trial":  # what early releases call it
        value = __getattr__("LegacyTrial")
    else:
        from determined._absent import absent

        return absent("determined", _ABSENT)(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

"""The Python SDK: ``from determined.experimental import client``.

A name is imported when it is used: `det` needs one of these modules for most commands.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from determined._absent import absent
from determined.experimental import _later

if TYPE_CHECKING:
    from determined.experimental import client
    from determined.experimental._checkpoint import Checkpoint
    from determined.experimental._determined import Determined
    from determined.experimental._enums import (
        ModelOrderBy,
        ModelSortBy,
        OrderBy,
        TrialOrderBy,
        TrialSortBy,
    )
    from determined.experimental._experiment import Experiment, ExperimentReference
    from determined.experimental._model import Model, ModelVersion
    from determined.experimental._one_batch import test_one_batch
    from determined.experimental._trial import Trial, TrialReference
    from determined.experimental._workspace import Project, ResourcePool, Workspace

__all__ = [
    "Checkpoint",
    "Determined",
    "Experiment",
    "ExperimentReference",
    "Model",
    "ModelOrderBy",
    "ModelSortBy",
    "ModelVersion",
    "OrderBy",
    "Project",
    "ResourcePool",
    "Trial",
    "TrialOrderBy",
    "TrialReference",
    "TrialSortBy",
    "Workspace",
    "client",
    "test_one_batch",
]

_MODULES = {
    "Checkpoint": "_checkpoint",
    "Determined": "_determined",
    **dict.fromkeys(
        ("ModelOrderBy", "ModelSortBy", "OrderBy", "TrialOrderBy", "TrialSortBy"), "_enums"
    ),
    **dict.fromkeys(("Experiment", "ExperimentReference"), "_experiment"),
    **dict.fromkeys(("Model", "ModelVersion"), "_model"),
    "test_one_batch": "_one_batch",
    **dict.fromkeys(("Trial", "TrialReference"), "_trial"),
    **dict.fromkeys(("Project", "ResourcePool", "Workspace"), "_workspace"),
}
_absent = absent(__name__, _later.CLASSES)


def __getattr__(name: str) -> Any:
    if name == "client":
        return importlib.import_module(f"{__name__}.client")
    if name not in _MODULES:
        return _absent(name)
    found = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__

"""The Python SDK: ``from determined.experimental import client``."""

from determined._absent import absent
from determined.experimental import _later, client
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
    "Trial",
    "TrialOrderBy",
    "TrialReference",
    "TrialSortBy",
    "client",
    "test_one_batch",
]

__getattr__ = absent(__name__, _later.CLASSES)

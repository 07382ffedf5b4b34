"""Pipelines of experiments: what a user asks for, read, checked and resolved (docs/automate/pipelines.md).

Pure: no clock, no network. ``det``, the SDK and the service use it alike.

* :mod:`.references`: ``${steps.pretrain.best.checkpoint}``
* :mod:`.kinds`: steps that are experiments, and the others
* :mod:`.in_trials`: the experiment of a step that calls a function of the user's
* :mod:`.conditions`: ``when: ${steps.pretrain.best.metrics.accuracy} > 0.9``
* :mod:`.reading`: a document to a :class:`PipelinePlan`, or all of its mistakes
* :mod:`.checking`: the configuration of each step, as far as it is known before the steps have run
* :mod:`.resolving`: the configurations and the items of a step, once the steps before it have completed
"""

from determined.common.pipeline.checking import check, some_examples
from determined.common.pipeline.plan import PipelinePlan, PlannedStep, Result
from determined.common.pipeline.reading import read
from determined.common.pipeline.references import ReferenceError_
from determined.common.pipeline.resolving import (
    best_of,
    configuration,
    items,
    skipped_because,
)

__all__ = [
    "PipelinePlan",
    "PlannedStep",
    "ReferenceError_",
    "Result",
    "best_of",
    "check",
    "configuration",
    "items",
    "read",
    "skipped_because",
    "some_examples",
]

"""The experiment configuration as a whole."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from determined.expconf import legacy
from determined.expconf.base import (
    WHOLE,
    AlsoAccepts,
    Count,
    Natural,
    Positive,
    PositiveCount,
    Section,
    by_shape,
    member,
)
from determined.expconf.environment import Environment
from determined.expconf.hpc import Pbs, Slurm
from determined.expconf.hyperparameters import Hyperparameter
from determined.expconf.integrations import Integrations
from determined.expconf.length import Length
from determined.expconf.logs import LogPolicy, RetentionPolicy
from determined.expconf.mounts import BindMount
from determined.expconf.optimizations import Optimizations, Profiling
from determined.expconf.resources import Resources
from determined.expconf.searcher import Searcher
from determined.expconf.storage import CheckpointStorage

Entrypoint = Annotated[
    Annotated[str, member("text"), Field(min_length=1)]
    | Annotated[list[str], member("argv"), Field(min_length=1)],
    by_shape("a command, as text or as a list of words", text=str, argv=list),
]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1), WHOLE]


class Reproducibility(Section):
    """The ``reproducibility`` section."""

    experiment_seed: Seed = Field(description="seed of the search and of the trials' own seeds")


class Kerberos(Section):
    """No longer used."""

    config_file: str = Field(description="no longer used")


class UnusedSecurity(Section):
    """No longer used."""

    kerberos: Kerberos | None = Field(None, description="no longer used")


def _no_periods() -> Length:
    return Length(batches=0)


class ExperimentConfig(Section):
    """A complete experiment configuration, as the service stores it and all parts read it.

    ``validate`` checks all rules and gives readable errors; ``ExperimentConfig.model_validate`` checks
    only fields and types.
    """

    null_fields: ClassVar[frozenset[str]] = frozenset(legacy.NULLS)

    name: str = Field(min_length=1, description="name of the experiment")
    description: str | None = Field(None, description="description of the experiment")
    labels: Annotated[
        list[str],
        BeforeValidator(legacy.labels),
        AlsoAccepts({"type": "object", "additionalProperties": {"type": ["boolean", "null"]}}),
    ] = Field([], description="labels of the experiment")
    workspace: str = Field("", description="workspace of the experiment")
    project: str = Field("", description="project of the experiment")
    data: dict[str, Any] = Field({}, description="free-form data for the training code")
    entrypoint: Entrypoint | None = Field(
        None, description="what to run: a shell command, a list of words, or module:TrialClass"
    )
    hyperparameters: dict[str, Hyperparameter] = Field(description="the search space")
    searcher: Searcher = Field(description="which trials to create")
    checkpoint_storage: CheckpointStorage = Field(description="where checkpoints are kept")
    checkpoint_policy: Literal["best", "all", "none"] = Field(
        "best", description="when to checkpoint after a validation"
    )
    async_checkpoints: Literal[True, False, "skip"] | None = Field(
        None,
        description="store checkpoints while the training goes on; while the last one is not stored the next "
        "waits (true) or, if it is one of min_checkpoint_period, is left out (skip)",
    )
    min_validation_period: Length = Field(
        default_factory=_no_periods, description="validate at least this often; 0 = at the end"
    )
    min_checkpoint_period: Length = Field(
        default_factory=_no_periods, description="checkpoint at least this often; 0 = at the end"
    )
    perform_initial_validation: bool = Field(False, description="validate before training")
    records_per_epoch: Natural = Field(0, description="records in an epoch")
    scheduling_unit: Positive = Field(100, description="batches between progress reports")
    max_restarts: Count = Field(5, description="how many times a failed trial is restarted")
    max_failures: PositiveCount | None = Field(
        10,
        description="after how many failed trials in a row the experiment ends in error, as long as no "
        "trial has reported a metric; null = never",
    )
    preemption_timeout: PositiveCount | None = Field(
        None, description="seconds that a trial has to save its state before it is killed"
    )
    reproducibility: Reproducibility = Field(description="seeds")
    resources: Resources = Field(default_factory=Resources, description="slots and memory")
    environment: Environment = Field(default_factory=Environment, description="surroundings")
    bind_mounts: list[BindMount] = Field(
        [], description="directories of the machine under other paths"
    )
    optimizations: Optimizations = Field(
        default_factory=Optimizations, description="distributed training (deprecated)"
    )
    profiling: Profiling = Field(default_factory=Profiling, description="system metrics")
    log_policies: list[LogPolicy] = Field(
        [], description="actions on log lines that match a pattern"
    )
    retention_policy: RetentionPolicy | None = Field(None, description="how long logs are kept")
    integrations: Integrations | None = Field(None, description="other systems")
    slurm: Slurm = Field(default_factory=Slurm, description="options for Slurm")
    pbs: Pbs = Field(default_factory=Pbs, description="options for PBS")
    debug: bool = Field(False, description="more log lines from the harness")

    version: Literal[0] = Field(0, exclude=True, description="version of this format: 0")
    data_layer: dict[str, Any] | None = Field(None, exclude=True, description="no longer used")
    security: UnusedSecurity | None = Field(None, exclude=True, description="no longer used")
    tensorboard_storage: dict[str, Any] | None = Field(
        None, exclude=True, description="no longer used"
    )
    internal: None = Field(None, exclude=True, description="no longer used")

"""States and sort keys; the values are the REST API's names."""

from __future__ import annotations

from enum import Enum


class _State(Enum):
    """A state of the REST API; printed without its ``STATE_`` prefix."""

    def __str__(self) -> str:
        return self.name

    @classmethod
    def _missing_(cls, value: object) -> _State | None:
        """A state that only a newer service knows is UNSPECIFIED: what else it says can be read."""
        known = isinstance(value, str) and value.startswith("STATE_")
        return cls.__members__.get("UNSPECIFIED") if known else None


class ExperimentState(_State):
    """An experiment's state. QUEUED, PULLING, STARTING and RUNNING are more precise than ACTIVE."""

    UNSPECIFIED = "STATE_UNSPECIFIED"
    ACTIVE = "STATE_ACTIVE"
    PAUSED = "STATE_PAUSED"
    STOPPING_COMPLETED = "STATE_STOPPING_COMPLETED"
    STOPPING_CANCELED = "STATE_STOPPING_CANCELED"
    STOPPING_ERROR = "STATE_STOPPING_ERROR"
    STOPPING_KILLED = "STATE_STOPPING_KILLED"
    COMPLETED = "STATE_COMPLETED"
    CANCELED = "STATE_CANCELED"
    ERROR = "STATE_ERROR"
    DELETED = "STATE_DELETED"
    DELETING = "STATE_DELETING"
    DELETE_FAILED = "STATE_DELETE_FAILED"
    QUEUED = "STATE_QUEUED"
    PULLING = "STATE_PULLING"
    STARTING = "STATE_STARTING"
    RUNNING = "STATE_RUNNING"

    @property
    def terminal(self) -> bool:
        """Whether the experiment has ended, so that none of its trials will run again."""
        return self in _ENDS


_ENDS = frozenset(
    {
        ExperimentState.COMPLETED,
        ExperimentState.CANCELED,
        ExperimentState.ERROR,
        ExperimentState.DELETED,
        ExperimentState.DELETING,
        ExperimentState.DELETE_FAILED,
    }
)


class TrialState(_State):
    """A trial's state; see :class:`ExperimentState`."""

    UNSPECIFIED = "STATE_UNSPECIFIED"
    ACTIVE = "STATE_ACTIVE"
    PAUSED = "STATE_PAUSED"
    STOPPING_CANCELED = "STATE_STOPPING_CANCELED"
    STOPPING_KILLED = "STATE_STOPPING_KILLED"
    STOPPING_COMPLETED = "STATE_STOPPING_COMPLETED"
    STOPPING_ERROR = "STATE_STOPPING_ERROR"
    CANCELED = "STATE_CANCELED"
    COMPLETED = "STATE_COMPLETED"
    ERROR = "STATE_ERROR"
    QUEUED = "STATE_QUEUED"
    PULLING = "STATE_PULLING"
    STARTING = "STATE_STARTING"
    RUNNING = "STATE_RUNNING"

    @property
    def terminal(self) -> bool:
        """Whether the trial has ended, so that it will not run again."""
        return self in (TrialState.COMPLETED, TrialState.CANCELED, TrialState.ERROR)


class CheckpointState(_State):
    """The state of a checkpoint's files."""

    UNSPECIFIED = "STATE_UNSPECIFIED"
    ACTIVE = "STATE_ACTIVE"
    COMPLETED = "STATE_COMPLETED"
    ERROR = "STATE_ERROR"
    DELETED = "STATE_DELETED"
    PARTIALLY_DELETED = "STATE_PARTIALLY_DELETED"


class OrderBy(Enum):
    """Ascending or descending, with all names of earlier releases."""

    ASCENDING = "ORDER_BY_ASC"
    DESCENDING = "ORDER_BY_DESC"
    ASC = ASCENDING
    DESC = DESCENDING


ExperimentOrderBy = OrderBy
TrialOrderBy = OrderBy
CheckpointOrderBy = OrderBy
ModelOrderBy = OrderBy
ModelVersionOrderBy = OrderBy


class ExperimentSortBy(Enum):
    """The sort keys of lists of experiments."""

    ID = "SORT_BY_ID"
    DESCRIPTION = "SORT_BY_DESCRIPTION"
    START_TIME = "SORT_BY_START_TIME"
    END_TIME = "SORT_BY_END_TIME"
    STATE = "SORT_BY_STATE"
    NUM_TRIALS = "SORT_BY_NUM_TRIALS"
    PROGRESS = "SORT_BY_PROGRESS"
    USER = "SORT_BY_USER"
    NAME = "SORT_BY_NAME"
    FORKED_FROM = "SORT_BY_FORKED_FROM"
    RESOURCE_POOL = "SORT_BY_RESOURCE_POOL"
    PROJECT_ID = "SORT_BY_PROJECT_ID"
    CHECKPOINT_SIZE = "SORT_BY_CHECKPOINT_SIZE"
    CHECKPOINT_COUNT = "SORT_BY_CHECKPOINT_COUNT"
    SEARCHER_METRIC_VAL = "SORT_BY_SEARCHER_METRIC_VAL"


class TrialSortBy(Enum):
    """The sort keys of lists of trials."""

    ID = "SORT_BY_ID"
    START_TIME = "SORT_BY_START_TIME"
    END_TIME = "SORT_BY_END_TIME"
    STATE = "SORT_BY_STATE"
    BEST_VALIDATION_METRIC = "SORT_BY_BEST_VALIDATION_METRIC"
    LATEST_VALIDATION_METRIC = "SORT_BY_LATEST_VALIDATION_METRIC"
    BATCHES_PROCESSED = "SORT_BY_BATCHES_PROCESSED"
    DURATION = "SORT_BY_DURATION"
    RESTARTS = "SORT_BY_RESTARTS"
    CHECKPOINT_SIZE = "SORT_BY_CHECKPOINT_SIZE"
    LOG_RETENTION_DAYS = "SORT_BY_LOG_RETENTION_DAYS"


class CheckpointSortBy(Enum):
    """The sort keys of lists of checkpoints, besides the names of validation metrics."""

    UUID = "SORT_BY_UUID"
    TRIAL_ID = "SORT_BY_TRIAL_ID"
    BATCH_NUMBER = "SORT_BY_BATCH_NUMBER"
    END_TIME = "SORT_BY_END_TIME"
    STATE = "SORT_BY_STATE"
    SEARCHER_METRIC = "SORT_BY_SEARCHER_METRIC"


class ModelSortBy(Enum):
    """The sort keys of lists of models."""

    NAME = "SORT_BY_NAME"
    DESCRIPTION = "SORT_BY_DESCRIPTION"
    CREATION_TIME = "SORT_BY_CREATION_TIME"
    LAST_UPDATED_TIME = "SORT_BY_LAST_UPDATED_TIME"
    NUM_VERSIONS = "SORT_BY_NUM_VERSIONS"
    WORKSPACE = "SORT_BY_WORKSPACE"


class LogLevel(Enum):
    """Levels of task logs, in order."""

    TRACE = "LOG_LEVEL_TRACE"
    DEBUG = "LOG_LEVEL_DEBUG"
    INFO = "LOG_LEVEL_INFO"
    WARNING = "LOG_LEVEL_WARNING"
    ERROR = "LOG_LEVEL_ERROR"
    CRITICAL = "LOG_LEVEL_CRITICAL"


def levels_from(lowest: LogLevel) -> list[str]:
    """The REST names of ``lowest`` and all more severe levels."""
    names = list(LogLevel)
    return [level.value for level in names[names.index(lowest) :]]


class DownloadMode(Enum):
    """How a checkpoint is fetched: from its storage, through the service, or whichever works."""

    DIRECT = "direct"
    MASTER = "master"
    AUTO = "auto"

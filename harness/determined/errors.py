"""Failures a training script or an SDK user can meet.

InvalidExperimentException           (BaseException: not caught by ``except Exception``)
├── InvalidDataTypeException
├── InvalidConfigurationException
└── InvalidModelException
AllocationEnded                      (SystemExit: the service ended this process' allocation)
InvalidHP                            raised by a script whose hyperparameters cannot be trained
ReportRefused                        the service refused metrics that were reported
ReportsLost                          reports were lost because the service stayed away until the process ended
StorageError                         checkpoint storage refused to write or read
├── CheckpointNotFound
├── CheckpointCorrupted              sizes or checksums differ from what was stored
└── CheckpointConflict               workers' parts of a sharded checkpoint do not fit together
CheckpointStateException             the checkpoint's state does not allow it (e.g. DELETED)
NoDirectStorageAccess, ProxiedDownloadFailed, MultipleDownloadsFailed    downloads by the SDK

Failures of calls to the service are in :mod:`determined.common.api.errors`.
"""

from __future__ import annotations

from typing import Any


class InvalidHP(Exception):
    """Raise it when a trial's hyperparameters make no sense together.

    The trial ends early without being an error; random and ASHA searches sample a replacement.
    """

    def __init__(self, msg: str = "these hyperparameters cannot be trained") -> None:
        super().__init__(msg)


class AllocationEnded(SystemExit):
    """The service ended this process' allocation (the trial was killed, or runs in another process now).

    It is a ``SystemExit``, so that a training loop's ``except Exception`` cannot keep the process running:
    the service records nothing of this process any more.
    """


class InvalidExperimentException(BaseException):
    """The experiment cannot run as configured."""


class InvalidDataTypeException(InvalidExperimentException):
    """A value of the wrong type was given to a trial class."""

    def __init__(self, typ: type, message: str) -> None:
        super().__init__(f"{message} (found {typ.__name__})")


class InvalidConfigurationException(InvalidExperimentException):
    """The experiment's configuration does not fit the code."""

    def __init__(self, config: dict[str, Any], message: str) -> None:
        super().__init__(message)
        self.config = config


class InvalidModelException(InvalidExperimentException):
    """The model definition does not do what its trial class asks for."""


class InvalidCheckpointException(Exception):
    """The directory is not a checkpoint of the expected kind."""


class ReportRefused(Exception):
    """The service refused reported metrics; they are not stored."""


class ReportsLost(Exception):
    """The service stayed away until the process ended, so some reports are not stored."""


class StorageError(Exception):
    """Checkpoint storage could not be written or read; the message says where and why."""


class CheckpointNotFound(StorageError):
    """No checkpoint of this id."""


class CheckpointCorrupted(StorageError):
    """Files of the checkpoint are missing, or differ from the stored ones."""


class CheckpointConflict(StorageError, RuntimeError):
    """Workers gave different contents for the same file or key of a sharded checkpoint."""


class CheckpointStateException(Exception):
    """The checkpoint's state does not allow it."""


class NoDirectStorageAccess(Exception):
    """This machine cannot read the checkpoint storage itself."""


class ProxiedDownloadFailed(Exception):
    """Downloading a checkpoint through the service failed."""


class MultipleDownloadsFailed(Exception):
    """Every way to download a checkpoint failed."""


class EnterpriseOnlyError(Exception):
    """A feature of Determined's enterprise edition."""


class WorkerError(Exception):
    """A worker of a distributed trial failed."""


class WorkerLost(WorkerError):
    """Another worker of a distributed trial ended although this worker still needs it."""

"""Finds the checkpoint that a leg starts from: the latest whole one.

Every byte of the checkpoint is read before the training code runs, so that the code only gets a checkpoint
that it can load, in any framework. Files that were copied for this are kept for it.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from determined import errors, storage
from determined.common.api import Session
from determined.common.api.errors import APIException, BadRequestException
from determined.common.backoff import Backoff
from determined.common.wire import paths
from determined.common.wire.legs import CheckpointFacts, DamagedCheckpoint, LegSpec, StartFrom
from determined.storage import copies
from determined_tasks.exit_reason import LegResult, failed_to_start, infrastructure

logger = logging.getLogger(__name__)

# A storage that does not answer is asked again after these seconds, before the leg is given back.
# A list, not a Backoff: its length is the number of tries.
STORAGE_RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0)
SERVICE_RETRY_SECONDS = (0.2, 5.0)

Say = Callable[[str, str], None]


def choose(
    spec: LegSpec, service: Session, say: Say, stop: Callable[[], bool], run_dir: Path
) -> LegSpec | LegResult:
    """``spec`` with a ``latest_checkpoint`` that is whole or None; or the end of the leg.

    A damaged checkpoint is reported to the service, which names the one before it; ``say(text, level)``
    writes the reason to the task's log. The leg ends when the storage cannot be read, and when another trial
    made the damaged checkpoint: without that checkpoint this would be a different training. Waits while the
    service is away, until ``stop()``. Copies go below ``run_dir``.
    """
    while spec.latest_checkpoint is not None and not stop():
        uuid = spec.latest_checkpoint
        try:
            problem = _verify(spec, say, stop, run_dir / copies.FOLDER)
        except errors.StorageError as error:
            return infrastructure(str(error))
        if problem is None:
            return spec
        given = _report(service, spec, problem, stop)
        if given is None:
            return spec
        before = given.latest_checkpoint
        if before == uuid:
            return failed_to_start(f"the checkpoint to start from is not whole: {problem}")
        follows = f"starts from the one before, {before}" if before else "starts from scratch"
        say(f"the latest checkpoint is not whole: {problem}; the trial {follows}", "WARNING")
        spec = dataclasses.replace(
            spec,
            latest_checkpoint=before,
            steps_completed=given.steps_completed,
            checkpoint=given.checkpoint,
        )
    return spec


def _verify(spec: LegSpec, say: Say, stop: Callable[[], bool], copies_dir: Path) -> str | None:
    """Verify the checkpoint and return the problem found, or None. Raises errors.StorageError when it cannot
    be read."""
    known = spec.checkpoint or CheckpointFacts({})
    uuid = spec.latest_checkpoint
    assert uuid is not None
    try:
        manager = storage.build(known.storage or spec.config.get("checkpoint_storage") or {})
    except errors.StorageError as error:
        # Written by a storage manager of the training code's own.
        say(f"checkpoint {uuid} is not verified: {error}", "INFO")
        return None
    manager.copies = copies_dir
    expected = None
    if known.resources:
        expected = storage.Manifest(known.resources, known.checksums or {})
    for delay in (*STORAGE_RETRY_SECONDS, None):
        try:
            manager.verify(uuid, expected, stop)
            return None
        except (errors.CheckpointNotFound, errors.CheckpointCorrupted) as error:
            return str(error)
        except errors.StorageError as error:
            if delay is None or stop():
                raise
            logger.info("cannot read checkpoint %s yet, trying again: %s", uuid, error)
            time.sleep(delay)
    return None


def _report(
    service: Session, spec: LegSpec, problem: str, stop: Callable[[], bool]
) -> StartFrom | None:
    """Report the damage and return the checkpoint to start from instead; None when the leg is stopped
    meanwhile."""
    assert spec.latest_checkpoint is not None
    path = paths.DAMAGED_CHECKPOINT.format(trial_id=spec.trial_id)
    report = DamagedCheckpoint(UUID(spec.latest_checkpoint), problem)
    backoff = Backoff(*SERVICE_RETRY_SECONDS)
    while not stop():
        try:
            return StartFrom.from_json(service.post(path, json=report.to_json()))
        except BadRequestException:
            raise
        except APIException as error:
            logger.info("cannot report a damaged checkpoint yet, trying again: %s", error)
        time.sleep(backoff.next_delay())
    return None

"""Which checkpoint a leg starts from: the latest one that is whole.

Every byte of it is read before the training code runs, so that this code, whatever it is written
with, is only ever given a checkpoint that it can load. What has to be copied to be read is kept for it.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from determined import errors, storage
from determined.common.api.errors import APIException, BadRequestException
from determined.storage import copies
from determined_tasks.exit_reason import LegResult, failed_to_start, infrastructure
from determined_tasks.leg_spec import LegSpec
from determined_tasks.service_link import ServiceLink

logger = logging.getLogger(__name__)

# A storage that does not answer is asked again after these seconds, before the leg is given back.
STORAGE_RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0)
SERVICE_RETRY_SECONDS = (0.2, 5.0)

Say = Callable[[str, str], None]


def choose(
    spec: LegSpec, service: ServiceLink, say: Say, stop: Callable[[], bool], run_dir: Path
) -> LegSpec | LegResult:
    """``spec`` with a ``latest_checkpoint`` that is whole, or None when there is no such; or the end
    of the leg.

    One that is not whole is reported to the service, which names the one before it; ``say(text,
    level)`` tells why in the task's log. The leg ends when the storage cannot be read, and when the
    damaged checkpoint is one that another trial has made: starting without it would be another
    training. Waits while the service is away, until ``stop()``. Copies go below ``run_dir``.
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
        before = given["latest_checkpoint"]
        if before == uuid:
            return failed_to_start(f"the checkpoint to start from is not whole: {problem}")
        follows = f"starts from the one before, {before}" if before else "starts from scratch"
        say(f"the latest checkpoint is not whole: {problem}; the trial {follows}", "WARNING")
        spec = dataclasses.replace(
            spec,
            latest_checkpoint=before,
            steps_completed=given["steps_completed"],
            checkpoint=given["checkpoint"],
        )
    return spec


def _verify(spec: LegSpec, say: Say, stop: Callable[[], bool], copies_dir: Path) -> str | None:
    """What is wrong with the checkpoint. Raises errors.StorageError when it cannot be read."""
    known = spec.checkpoint or {}
    uuid = spec.latest_checkpoint
    assert uuid is not None
    try:
        manager = storage.build(known.get("storage") or spec.config.get("checkpoint_storage") or {})
    except errors.StorageError as error:
        # Written by a storage manager of the training code's own.
        say(f"checkpoint {uuid} is not verified: {error}", "INFO")
        return None
    manager.copies = copies_dir
    expected = None
    if known.get("resources"):
        expected = storage.Manifest(known["resources"], known.get("checksums") or {})
    for delay in (*STORAGE_RETRY_SECONDS, None):
        try:
            manager.verify(uuid, expected, stop)
            return None
        except (errors.CheckpointNotFound, errors.CheckpointCorrupted) as error:
            return str(error)
        except errors.StorageError as error:
            if delay is None or stop():
                raise
            logger.info("checkpoint %s waits: %s", uuid, error)
            time.sleep(delay)
    return None


def _report(
    service: ServiceLink, spec: LegSpec, problem: str, stop: Callable[[], bool]
) -> dict[str, Any] | None:
    """What to start from instead; None when the leg is stopped meanwhile."""
    path = f"/internal/v1/trials/{spec.trial_id}/damaged_checkpoint"
    body = {"uuid": spec.latest_checkpoint, "reason": problem}
    delay, longest = SERVICE_RETRY_SECONDS
    while not stop():
        try:
            answer: dict[str, Any] = orjson.loads(service.post(path, body))
            return answer
        except BadRequestException:
            raise
        except APIException as error:
            logger.info("the report of a damaged checkpoint waits: %s", error)
        time.sleep(delay)
        delay = min(delay * 2, longest)
    return None

"""The id of a leg's start, by which the service knows two starts of one leg apart.

Where supervisors share a directory, its lock lets one of them run the leg. In pods they share none: there the
launcher names the start in a variable, and the supervisor asks the service before it runs the user's code.
"""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from determined.common.api import Session, errors
from determined.common.backoff import Backoff
from determined.common.wire import paths
from determined.common.wire.legs import LegSpec, Starting
from determined_tasks import exit_reason
from determined_tasks.carrier import NotStarted
from determined_tasks.supervision import write_private

VARIABLE = "DET_START_ID"
"""A pod's uid, by the downward API."""
MACHINE = "DET_MACHINE"
"""The name of a pod's node, likewise."""
FILE = "start"
"""In the allocation's directory: a supervisor that takes over goes on with the same start."""
TRIES = 10
RETRY_SECONDS = (0.2, 20.0)


def of_leg(root: Path) -> str:
    """The id of the start whose directory this is. Raises OSError."""
    file = root / FILE
    given = os.environ.get(VARIABLE)
    if given is None and file.exists():
        return file.read_text()
    start_id = given or str(uuid.uuid4())
    write_private(file, start_id.encode())
    return start_id


def claim(service: Session, spec: LegSpec, start_id: str) -> None:
    """Returns when the service knows this start as the one that counts; at once where a lock sees to that.

    Raises NotStarted when another start was there before, APIException after some tries.
    """
    if VARIABLE not in os.environ:
        return
    path = paths.STARTING.format(allocation_id=spec.allocation_id)
    body = Starting(start_id, spec.node if spec.nodes > 1 else None).to_json()
    backoff = Backoff(*RETRY_SECONDS)
    for attempt in range(TRIES):
        try:
            service.post(path, json=body)
            return
        except errors.ConflictException as error:
            raise NotStarted(exit_reason.infrastructure(str(error))) from error
        except errors.NotFoundException:
            return  # A service of the release before; it refuses the report that the process runs.
        except errors.BadRequestException:
            raise
        except errors.APIException:
            if attempt == TRIES - 1:
                raise
        time.sleep(backoff.next_delay())

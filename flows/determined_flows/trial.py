"""The flow of one trial, for workers that run flows through Prefect's engine.

Our own agents do not come here: they run the same leg (:func:`determined_tasks.leg.run_leg`) without
the engine, whose import alone takes longer than a whole short trial. Any stock Prefect worker can
execute this flow; it claims the trial's waiting allocation, so that a leg is run once, also when
workers execute the same run twice at the same time.
"""

from __future__ import annotations

import os
import socket
import tempfile
import uuid
from pathlib import Path

import prefect
from prefect.logging import get_run_logger
from prefect.runtime import flow_run as current_flow_run

from determined.common.api import errors
from determined.common.wire import paths
from determined.common.wire.agents import TrialClaim
from determined.common.wire.legs import LegSpec
from determined.common.wire.prefect import TRIAL_FLOW
from determined_tasks.leg import run_leg

from .service import open_session


@prefect.flow(
    name=TRIAL_FLOW,
    description="One trial, from its first leg to its last; each leg executes the same flow run again.",
    persist_result=False,
)
def run_trial(trial_id: int) -> None:
    """Runs the next leg of ``trial_id`` to its end.

    When no leg waits, or another process runs it, this process ends at once and leaves the run's state
    to the service. Raises :class:`determined.common.api.errors.BadRequestException` when
    ``trial_id`` is another run's trial.
    """
    # One name per process: a claim that is sent again is answered again, another process' is not.
    worker = f"prefect-worker@{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    claim = TrialClaim(uuid.UUID(str(current_flow_run.get_id())), worker)
    path = paths.CLAIM.format(trial_id=trial_id)
    with open_session() as session:
        try:
            spec = LegSpec.from_json(session.post(path, json=claim.to_json()))
        except errors.ConflictException as error:
            get_run_logger().warning("there is nothing to run here: %s", error)
            # Without the engine's last word: any state set from here would be set on a run that is
            # alive elsewhere, or has ended.
            os._exit(0)
    work_dir = Path(os.environ.get("DET_WORK_DIR") or tempfile.mkdtemp(prefix="determined-"))
    run_leg(spec, work_dir=work_dir)

"""The flow of one trial, for workers that run flows through Prefect's engine.

Our own agents do not come here: they run the same leg (:func:`determined_tasks.leg.run_leg`) without
the engine, whose import alone takes longer than a whole short trial. Any stock Prefect worker can
execute this flow; it claims the trial's waiting allocation, so that a leg is run once.
"""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import prefect
from prefect.runtime import flow_run as current_flow_run

from determined_tasks.leg import run_leg

from .service import open_session


@prefect.flow(
    name="trial",
    description="One trial for life; each leg is the next run of the same flow run.",
    persist_result=False,
)
def run_trial(trial_id: int) -> None:
    """Runs the next leg of ``trial_id`` to its end.

    Raises :class:`determined.common.api.errors.ConflictException` when no leg of the trial waits.
    """
    flow_run_id = str(current_flow_run.get_id())
    with open_session() as session:
        spec = session.post(
            f"/internal/v1/trials/{trial_id}/claim",
            json={"flow_run_id": flow_run_id, "agent_id": f"prefect-worker@{socket.gethostname()}"},
        )
    work_dir = Path(os.environ.get("DET_WORK_DIR") or tempfile.mkdtemp(prefix="determined-"))
    run_leg(spec, work_dir=work_dir)

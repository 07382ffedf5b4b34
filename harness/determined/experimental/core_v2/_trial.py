"""Creating the unmanaged experiment and trial of a script outside of the cluster."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from determined import RendezvousInfo, TrialInfo
from determined._info import ClusterInfo
from determined.common.api.session import Session
from determined.experimental.core_v2._config import Config


def begin(session: Session, config: Config, experiment: dict[str, Any]) -> tuple[ClusterInfo, str]:
    """Creates or finds experiment and trial, and starts the trial. Returns its facts and its plot's URL.

    Raises ValueError for an external trial id without an experiment id, TypeError for external ids that
    are not strings, and the errors of calls to the service.
    """
    for field in ("external_experiment_id", "external_trial_id"):
        value = getattr(config, field)
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{field} must be a string, found {value!r}")
    if config.external_trial_id and not config.external_experiment_id:
        raise ValueError("external_trial_id needs external_experiment_id")
    # JSON is YAML, and keeps "1e-3" a string.
    body = {"config": json.dumps(experiment), "unmanaged": True}
    name = config.external_experiment_id
    if name:
        found = session.put(f"/api/v1/experiments/by-external-id/{quote(name, safe='')}", json=body)
    else:
        found = session.post("/api/v1/experiments", json=body, max_retries=0)
    experiment_id = found["experiment"]["id"]
    trial = _put_trial(session, experiment_id, config)
    started = session.post(f"/api/v1/trials/{trial['id']}/start", json={"resume": True})
    info = TrialInfo(
        trial_id=trial["id"],
        experiment_id=experiment_id,
        trial_seed=trial["seed"],
        hparams=config.hparams or {},
        config=found["config"],
        steps_completed=started["stepsCompleted"],
        trial_run_id=started["trialRunId"],
    )
    cluster = ClusterInfo(
        master_url=session.master,
        cluster_id=session.get("/api/v1/master")["clusterId"],
        agent_id="unmanaged",
        slot_ids=[],
        task_id=trial["taskId"],
        # There is no allocation, so the run's name takes the form of one.
        allocation_id=f"{trial['taskId']}.{started['trialRunId']}",
        session_token=session.token or "",
        task_type="TRIAL",
        latest_checkpoint=started.get("latestCheckpoint"),
        trial_info=info,
        rendezvous_info=RendezvousInfo(["127.0.0.1"], 0, [0]),
    )
    return cluster, found.get("plotUrl") or ""


def _put_trial(session: Session, experiment_id: int, config: Config) -> dict[str, Any]:
    hparams = config.hparams or {}
    new = {"experimentId": experiment_id, "hparams": hparams, "unmanaged": True}
    name = config.external_trial_id
    if name:
        body = {"createTrialRequest": new, "externalTrialId": name}
        trial: dict[str, Any] = session.put("/api/v1/trials", json=body)["trial"]
    else:
        trial = session.post("/api/v1/trials", json=new, max_retries=0)["trial"]
    return trial

"""Legs for the tests of Kubernetes' manifests."""

from __future__ import annotations

from typing import Any

from determined.common.wire.legs import Granted, LegSpec
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.base import Call, Job

OWNER = {
    "metadata": {"name": "det-job", "namespace": "ours", "uid": "0f3a", "labels": {"a": "b"}},
}
"""A Job, as an API server returns it."""


def agent(slot_type: str = "cpu", **sections: Any) -> AgentConfig:
    return AgentConfig.model_validate(
        {
            "agent_id": "agent-k",
            "launcher": "kubernetes",
            "master_url": "http://determined.ours:8080",
            "agent_token": "secret-of-agents",
            "work_dir": "/w",
            "slot_type": slot_type,
            "kubernetes": {},
            **sections,
        }
    )


def leg(slots: int = 1, config: dict[str, Any] | None = None, **fields: Any) -> LegSpec:
    return LegSpec(
        allocation_id="7.b2c1.1",
        task_id="7.b2c1",
        entrypoint="python3 train.py",
        session_token="secret-of-session",
        cluster_id="11111111-2222",
        experiment_id=7,
        trial_id=9,
        slot_ids=list(range(slots)),
        config=config or {},
        **{"owner": "ada", "granted": Granted(), **fields},
    )


def job_of(spec: LegSpec, **place: Any) -> Job:
    argument = {"spec": spec.to_json(), "place": {"token": "secret-of-leg", **place}}
    call = Call("determined_tasks.leg:supervise", argument)
    return Job("leg", spec.name, call, note={"a": 1}, leg=spec)

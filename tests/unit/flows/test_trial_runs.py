"""The runs of an experiment's trials, on a cluster whose deployments are being registered."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.exceptions import ObjectNotFound

from determined_flows import trial_runs


class Prefect:
    """Knows the deployment from the question number ``after`` on."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.questions = 0
        self.deployment = SimpleNamespace(id=uuid.uuid4())

    async def read_deployment_by_name(self, name: str) -> Any:
        assert name == "trial/trial"
        self.questions += 1
        if self.questions <= self.after:
            raise ObjectNotFound(http_exc=Exception("no such deployment"))
        return self.deployment


def test_the_deployment_of_trials_may_come_after_the_experiments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial_runs, "DEPLOYED_SECONDS", (0.0, 0.0))
    client = Prefect(after=trial_runs.DEPLOYED_TRIES - 1)
    factory = asyncio.run(trial_runs._open(client, 1, uuid.uuid4()))  # type: ignore[arg-type]
    assert factory.deployment is client.deployment
    never = Prefect(after=trial_runs.DEPLOYED_TRIES)
    with pytest.raises(ObjectNotFound):
        asyncio.run(trial_runs._open(never, 1, uuid.uuid4()))  # type: ignore[arg-type]
    assert never.questions == trial_runs.DEPLOYED_TRIES

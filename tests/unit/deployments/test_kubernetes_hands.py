"""What is done to pods: how often one that is not reached is asked."""

from __future__ import annotations

import signal
from typing import Any, cast

import pytest

from determined.expconf.pod_spec import TRIAL_CONTAINER
from determined_deployments.agent.launchers.kubernetes import hands
from determined_deployments.agent.launchers.kubernetes.client import Client, Unreachable
from determined_deployments.agent.launchers.kubernetes.placed import Placed
from tests.unit.deployments.kubernetes_legs import agent


class Closed:
    """A client that runs nothing in any container."""

    asked = 0

    async def run(self, *given: Any) -> tuple[int, str]:
        self.asked += 1
        raise Unreachable("container not found")


def placed(is_ending: bool) -> Placed:
    leg = Placed("leg", "7.a.1", "det-7", {}, "7.a.1", [0])
    metadata = {"name": "det-7-x", "uid": "u"}
    if is_ending:
        metadata["deletionTimestamp"] = "2026-11-28T00:00:00Z"
    running = {"name": TRIAL_CONTAINER, "state": {"running": {}}}
    leg.pod = {
        "metadata": metadata,
        "spec": {"nodeName": "node-a", "containers": [{"name": TRIAL_CONTAINER}]},
        "status": {"containerStatuses": [running]},
    }
    return leg


@pytest.mark.parametrize(
    ("is_ending", "tries", "rings"),
    [(True, hands.ENDING_FAILURES, 1), (False, hands.NOTIFY_FAILURES, hands.RING_TRIES)],
)
async def test_a_pod_that_ends_anyway_is_not_asked_for_long(
    monkeypatch: pytest.MonkeyPatch, is_ending: bool, tries: int, rings: int
) -> None:
    monkeypatch.setattr(hands, "NOTIFY_SECONDS", 0.0)
    client = Closed()
    ours = hands.Hands(cast(Client, client), agent())
    assert await ours.notify(placed(is_ending), signal.SIGUSR1) is False
    assert client.asked == tries
    client.asked = 0
    assert await ours.ring(placed(is_ending)) is False
    assert client.asked == rings

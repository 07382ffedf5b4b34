"""An agent's imports before it knows any trial."""

from __future__ import annotations

import pytest

from determined_deployments.agent.launchers.fork_server import plans
from determined_deployments.agent.launchers.fork_server.launcher import ForkServerLauncher


def test_torch_is_imported_beforehand_unless_the_agents_environment_says_no(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def imported() -> set[str]:
        return set(ForkServerLauncher.leg_zygote().optional)

    monkeypatch.delenv(plans.WITHOUT_TORCH, raising=False)
    everything = imported()
    monkeypatch.setenv(plans.WITHOUT_TORCH, "1")
    left_out = everything - imported()
    assert {"torch", "torch.nn", "torch.utils.data"} < left_out
    assert all("torch" in entry for entry in left_out)

"""Containers of a real engine keep the contract of carriers."""

from __future__ import annotations

from determined_deployments.agent.held import Held
from tests.programs.legs.contract import CarrierContract
from tests.programs.legs.launched import lose


class TestContainers(CarrierContract):
    outlives = True

    def lose(self, held: Held) -> None:
        lose(held)

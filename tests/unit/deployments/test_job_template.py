"""The template that the service gives a new work pool is the agents' own."""

from __future__ import annotations

from determined_deployments.agent.launchers.fork_server.worker import DeterminedProcessWorker
from determined_service.prefect import job_template


def test_the_template_is_that_of_the_agents_worker() -> None:
    assert DeterminedProcessWorker.type == job_template.TYPE
    assert DeterminedProcessWorker.get_default_base_job_template() == job_template.TEMPLATE

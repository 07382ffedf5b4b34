"""Agents, the job queue, accounting and the service itself through the SDK."""

from __future__ import annotations

from determined.experimental import Determined
from tests.unit.sdk.fake_service import FakeService, job


def test_agents_and_their_slots_are_enabled_and_disabled(
    client: Determined, service: FakeService
) -> None:
    service.agents = [{"id": "a b", "slots": {}}]
    (agent,) = client.list_agents()
    assert (agent.id, agent.document) == ("a b", {"id": "a b", "slots": {}})
    agent.disable(drain=True)
    assert (service.calls[-1][1].endswith("/disable"), service.bodies[-1]) == (
        True,
        {"drain": True},
    )
    agent.enable_slot(3)
    assert service.calls[-1][1].endswith("/slots/3/enable")
    agent.remove()
    assert service.calls[-1][0] == "DELETE"


def test_jobs_are_listed_with_the_number_of_all(client: Determined, service: FakeService) -> None:
    service.jobs = [job(number) for number in range(1, 4)]
    found = client.iter_jobs(max_results=2)
    assert [one["entityId"] for one in found] == ["1", "2"]
    assert found.total == 3
    service.remarks = ["it has no slots"]
    assert client.update_jobs([{"jobId": "j", "priority": 3}]) == ["it has no slots"]
    assert client.explain_job("j")["job"]["entityId"] == "1"


def test_accounting_is_json_or_csv(client: Determined, service: FakeService) -> None:
    service.usage, service.usage_csv = [{"a": 1}], "a\n1\n"
    assert client.accounting("raw", {"timestamp_after": "2026-01-01"}) == [{"a": 1}]
    assert "".join(client.accounting_csv("raw", {})) == "a\n1\n"


def test_the_services_own_log(client: Determined, service: FakeService) -> None:
    service.own_log = [{"logEntry": {"message": "x"}}]
    assert [one for batch in client.iter_service_log(tail=5) for one in batch] == [{"message": "x"}]
    assert service.params[-1]["offset"] == "-5"

"""The waiting rows that are delivered to Prefect."""

from __future__ import annotations

from typing import Any

from determined_service.prefect.mirror import HOLD_S, OutboxRow, plan_deliveries

STATES: dict[str, tuple[str, str]] = {
    "pending": ("PENDING", "Pending"),
    "awaiting": ("SCHEDULED", "AwaitingSlots"),
    "paused": ("PAUSED", "Paused"),
    "running": ("RUNNING", "Running"),
    "completed": ("COMPLETED", "Completed"),
}
REASON = {"type": "SCHEDULED", "name": "AwaitingSlots: needs 2, 1 free", "message": ""}


def rows(*names: str, age_s: float = 100.0) -> list[OutboxRow]:
    made = []
    for number, name in enumerate(names, 1):
        payload: dict[str, Any] = {}
        if name in STATES:
            type_, label = STATES[name]
            payload = {"type": type_, "name": label, "message": ""}
        if name == "show_reason":
            payload = REASON
        kind = "set_state" if name in STATES else name
        made.append(OutboxRow(number, "trial:1", kind, payload, 0, age_s, None))
    return made


def told(*names: str, age_s: float = 100.0) -> list[str]:
    return [
        delivery.row.payload.get("name", delivery.row.kind)
        for delivery in plan_deliveries(rows(*names, age_s=age_s))[0]
    ]


def test_passing_states_are_not_delivered() -> None:
    assert told("pending", "running", "completed") == ["Running", "Completed"]


def test_legs_are_all_told() -> None:
    found = told("pending", "running", "awaiting", "pending", "running", "completed")
    assert found == ["Running", "Running", "Completed"]


def test_rows_that_are_replaced_go_with_the_row_that_replaces_them() -> None:
    deliveries, _ = plan_deliveries(rows("awaiting", "pending", "running", "completed"))
    assert [delivery.ids for delivery in deliveries] == [(1, 2, 3), (4,)]


def test_a_passing_state_is_told_once_it_lasts() -> None:
    for name in ("pending", "awaiting", "paused"):
        deliveries, later = plan_deliveries(rows("running", name, age_s=HOLD_S / 4))
        assert [delivery.row.id for delivery in deliveries] == [1]
        assert later == HOLD_S * 3 / 4
        assert len(told("running", name)) == 2


def test_a_run_is_created_before_its_states() -> None:
    assert told("create_task_run", "completed") == ["create_task_run", "Completed"]
    assert told("create_task_run", age_s=0) == ["create_task_run"]


def test_a_reason_replaces_no_state_and_goes_with_the_next_one() -> None:
    assert told("awaiting", "show_reason") == ["AwaitingSlots", REASON["name"]]
    found, _ = plan_deliveries(rows("awaiting", "show_reason", "show_reason", "running"))
    assert [delivery.ids for delivery in found] == [(1, 2, 3, 4)]
    deliveries, later = plan_deliveries(rows("show_reason", age_s=HOLD_S / 4))
    assert (deliveries, later) == ([], HOLD_S * 3 / 4)


def test_a_page_replaces_no_state_and_the_last_page_is_written() -> None:
    assert told("create_task_run", "show_page") == ["create_task_run", "show_page"]
    assert told("paused", "show_page") == ["Paused", "show_page"]
    assert told("paused", "show_page", "running") == ["show_page", "Running"]
    found, _ = plan_deliveries(rows("show_page", "running", "completed", "show_page"))
    assert [delivery.ids for delivery in found] == [(1, 2), (3,), (4,)]

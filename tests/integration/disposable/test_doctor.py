"""`det cluster doctor` of a cluster that is broken, component by component."""

from __future__ import annotations

import json

from tests.integration.agent.test_recovery import process_of
from tests.local_cluster import LocalCluster
from tests.waiting import until


def findings(cluster: LocalCluster) -> dict[str, str]:
    """The findings that are not OK, by check."""
    done = cluster.det("cluster", "doctor", "--json", check=False)
    found = {each["check"]: each for each in json.loads(done.stdout)}
    failed = [each for each in found.values() if each["status"] == "FAILED"]
    assert done.returncode == (1 if failed else 0)
    assert all(each["advice"] for each in failed)
    return {check: each["status"] for check, each in found.items() if each["status"] != "OK"}


def test_the_doctor_names_a_postgres_that_was_killed(disposable: LocalCluster) -> None:
    process_of(disposable, "postgres").kill()
    found = until("a finding", lambda: findings(disposable))
    # A component that only waits for the failed one does not count as failed.
    assert [check for check, status in found.items() if status == "FAILED"] == ["postgres"], found
    disposable.up()
    until("nothing that failed", lambda: "FAILED" not in findings(disposable).values())


def test_the_doctor_tries_the_checkpoint_storage(disposable: LocalCluster) -> None:
    store = disposable.data_dir / "checkpoints"
    aside = store.with_name("aside")
    store.rename(aside)
    store.write_text("not a folder")
    try:
        assert findings(disposable)["checkpoint storage"] == "FAILED"
    finally:
        store.unlink()
        aside.rename(store)
    assert "checkpoint storage" not in findings(disposable)


def test_the_doctor_without_the_service_and_without_any_component(disposable: LocalCluster) -> None:
    process_of(disposable, "service").kill()
    found = until("a finding", lambda: findings(disposable))
    assert found["service"] == "FAILED"
    assert not {"postgres", "prefect"} & set(found)
    disposable.down()
    found = findings(disposable)
    assert {found[name] for name in ("postgres", "prefect", "service", "agent")} == {"FAILED"}

"""`det cluster doctor`: the findings, the exit code, and the checks when a component is down."""

from __future__ import annotations

import dataclasses
import datetime
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from determined.cli.doctor import examine
from determined.cli.doctor.facts import Facts, Local
from determined.cli.doctor.judge import Diagnosis, judge
from determined.common.local_cluster import LocalCluster
from tests.unit.cli.conftest import Det
from tests.unit.sdk.fake_service import FakeService

GIB = 2**30
VERSION = "1.2.3"


def report() -> dict[str, Any]:
    """Of a cluster that nothing ails."""
    disk = {"path": "/data", "freeBytes": 50 * GIB, "totalBytes": 100 * GIB}
    return {
        "version": VERSION,
        "agentTimeoutS": 30.0,
        "postgres": {
            "version": "18.1",
            "aheadS": 0.001,
            "sizeBytes": 10_000_000,
            "revision": "0003",
            "revisionWanted": "0003",
            "isLed": True,
        },
        "prefect": {"url": "http://p/api", "version": "3.8.8", "problem": None},
        "checkpointStorage": {
            "type": "shared_fs",
            "path": "/ckpt",
            "tried": True,
            "problem": None,
            "disk": disk,
        },
        "disk": disk,
        "agents": [
            {
                "id": "a1",
                "resourcePool": "default",
                "version": VERSION,
                "enabled": True,
                "draining": False,
                "state": "STATE_ALIVE",
                "silentS": 1.0,
                "slots": 2,
                "allocations": 1,
            }
        ],
        "pools": [{"name": "default", "agents": 1, "waiting": 0}],
        "outbox": {"waiting": 1, "oldestS": 0.5, "attempts": 0, "lastError": None},
        "stuck": {
            "searches": [],
            "notStarted": [],
            "unplaced": [],
            "notEnded": [],
            "notDeleted": [],
        },
        "time": "2026-01-02T03:04:05Z",
    }


def healthy(**changes: Any) -> Facts:
    facts = Facts("http://m", VERSION, {"version": VERSION}, report=report(), service_ahead_s=0.1)
    return dataclasses.replace(facts, **changes)


def changed(*path: Any, to: Any) -> Facts:
    """Healthy except for one field of the report."""
    found = report()
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return healthy(report=found)


def local(**states: str) -> Local:
    components = [
        {
            "component": name,
            "state": states.get(name, "running"),
            "pid": 7,
            "log": f"/data/logs/{name}.log",
        }
        for name in ("postgres", "prefect", "service", "agent")
    ]
    return Local("/data", components, prefect_url="http://p")


def bad(facts: Facts) -> dict[str, Diagnosis]:
    """The findings that are not OK, by their subject."""
    return {found.check: found for found in judge(facts) if found.status != "OK"}


def test_nothing_ails_it() -> None:
    assert bad(healthy()) == {}
    checks = [found.check for found in judge(healthy())]
    for expected in ("postgres", "prefect", "service", "agent a1", "checkpoint storage", "clocks"):
        assert expected in checks
    assert all(found.advice is None for found in judge(healthy()))


@pytest.mark.parametrize(
    ("path", "value", "check", "status", "words"),
    [
        (["postgres", "revision"], "0002", "postgres", "FAILED", "the service needs 0003"),
        (["postgres", "isLed"], False, "service", "FAILED", "nothing is scheduled"),
        (["postgres", "aheadS"], -3600.0, "clocks", "WARNING", "Postgres' clock is 1h00m behind"),
        (["prefect", "problem"], "refused", "prefect", "FAILED", "http://p/api: refused"),
        (["agents"], [], "agent", "FAILED", "there is no agent"),
        (["agents", 0, "state"], "STATE_SILENT", "agent a1", "WARNING", "nothing is heard of it"),
        (["agents", 0, "draining"], True, "agent a1", "WARNING", "draining"),
        (["agents", 0, "version"], "1.0", "versions", "WARNING", "agent a1 1.0"),
        (
            ["checkpointStorage", "problem"],
            "No space left on device",
            "checkpoint storage",
            "FAILED",
            "/ckpt: No space left on device",
        ),
        (
            ["checkpointStorage", "disk", "freeBytes"],
            GIB,
            "checkpoint storage space",
            "WARNING",
            "1.0 GiB free",
        ),
        (["disk", "freeBytes"], 1000, "data directory", "FAILED", "1000 B free"),
        (["disk"], {"problem": "/data: gone"}, "data directory", "FAILED", "/data: gone"),
        (
            ["outbox"],
            {"waiting": 5, "oldestS": 90.0, "attempts": 3, "lastError": "refused"},
            "outbox",
            "WARNING",
            "5 changes have not reached Prefect yet, the oldest waits for 1m30s: refused",
        ),
        (
            ["stuck", "searches"],
            [{"experimentId": 7, "forS": 90.0}],
            "experiment 7",
            "WARNING",
            "no flow has driven its search for 1m30s",
        ),
        (
            ["stuck", "notStarted"],
            [{"allocationId": "7.x.1", "trialId": 3, "agentId": "a1", "forS": 90.0}],
            "allocation 7.x.1",
            "WARNING",
            "got slots on a1 1m30s ago",
        ),
        (
            ["stuck", "notStarted"],
            [
                {
                    "allocationId": "7.x.1",
                    "trialId": 3,
                    "agentId": "k",
                    "forS": 90.0,
                    "waitsFor": "0/3 nodes are available",
                }
            ],
            "allocation 7.x.1",
            "WARNING",
            "is not running yet: 0/3 nodes are available",
        ),
        (
            ["stuck", "unplaced"],
            [
                {
                    "allocationId": "7.x.2",
                    "trialId": 3,
                    "resourcePool": "gpus",
                    "times": 2,
                    "reason": "0/3 nodes are available",
                }
            ],
            "allocation 7.x.2",
            "WARNING",
            "resource pool gpus did not place it 2 times in a row: 0/3 nodes are available",
        ),
        (
            ["stuck", "notDeleted"],
            [{"experimentId": 7, "reason": "/ckpt: read-only"}],
            "experiment 7",
            "WARNING",
            "could not be deleted: /ckpt: read-only",
        ),
        (
            ["stuck", "notEnded"],
            [{"allocationId": "7.x.1", "trialId": 3, "agentId": "a1", "forS": 90.0}],
            "allocation 7.x.1",
            "WARNING",
            "should have been killed on a1 1m30s ago",
        ),
    ],
)
def test_the_named_problem(
    path: list[Any], value: Any, check: str, status: str, words: str
) -> None:
    found = bad(changed(*path, to=value))
    assert (found[check].status, words in found[check].found) == (status, True), found
    assert found[check].advice or check.startswith("agent a1")


def test_a_pool_without_an_agent_is_spoken_of() -> None:
    pools = [*report()["pools"], {"name": "the small", "agents": 0, "waiting": 2}]
    (found,) = [
        one for one in judge(changed("pools", to=pools)) if one.check.startswith("resource")
    ]
    assert (found.check, found.status) == ("resource pool the small", "WARNING")
    assert found.found == "it has no agent: what is sent there waits (2 wait now)"
    assert found.advice == "start one: det agent start --pool 'the small'"


def test_an_agent_that_is_gone_for_good_is_not_spoken_of() -> None:
    here = report()["agents"][0]
    gone = {**here, "id": "a2", "state": "STATE_SILENT", "silentS": 90_000.0}
    ended = {**here, "id": "a3", "state": "STATE_ENDED"}
    facts = changed("agents", to=[here, gone, ended])
    assert {"agent a2", "agent a3"}.isdisjoint(found.check for found in judge(facts))
    assert bad(facts) == {}


def test_the_clock_of_this_machine() -> None:
    assert "ahead of this machine's" in bad(healthy(service_ahead_s=5.0))["clocks"].found
    # A slow answer proves nothing.
    assert bad(healthy(service_ahead_s=5.0, uncertainty_s=4.0)) == {}


def test_the_service_is_down() -> None:
    down = Facts("http://m", VERSION, service_problem="no answer", local=local(service="dead"))
    found = bad(down)
    assert set(found) == {"service"}
    assert found["service"].status == "FAILED"
    assert "/data/logs/service.log" in (found["service"].advice or "")
    remote = bad(Facts("http://m", VERSION, service_problem="no answer from http://m"))
    assert "DET_MASTER" in (remote["service"].advice or "")


def test_postgres_is_down() -> None:
    facts = healthy(
        report=None,
        service_ahead_s=None,
        not_ready={"database": "it does not answer: refused"},
    )
    remote = bad(facts)
    assert remote["postgres"].status == "FAILED"
    assert remote["service"].status == "WARNING"
    here = bad(
        dataclasses.replace(
            facts,
            local=dataclasses.replace(
                local(postgres="dead", agent="starting"), prefect_problem="HTTP 503"
            ),
        )
    )
    assert {name: found.status for name, found in here.items()} == {
        "postgres": "FAILED",
        "prefect": "WARNING",
        "service": "WARNING",
        "agent": "WARNING",
    }
    # The doctor does not advise killing a process that only waits.
    assert "waits for postgres" in (here["agent"].advice or "")


def test_prefect_is_down() -> None:
    not_ready = {"prefect": "Prefect at http://p/api does not answer: refused"}
    found = bad(changed("prefect", "problem", to="refused"))
    assert found["prefect"].status == "FAILED"
    found = bad(healthy(report=None, not_ready=not_ready))
    assert "refused" in found["prefect"].found
    found = bad(healthy(local=local(prefect="stopped"), not_ready=not_ready))
    assert "cluster-up" in (found["prefect"].advice or "")


def test_a_process_that_hangs() -> None:
    found = bad(healthy(local=local(agent="starting")))
    assert "kill -9 7" in (found["agent"].advice or "")


def test_another_users_cluster() -> None:
    facts = Facts("http://m", VERSION, {"version": "9"}, is_meant=False)
    assert "another cluster" in bad(facts)["service"].found


# The command.


@pytest.fixture
def health(service: FakeService) -> dict[str, Any]:
    """The service's report; it is ready."""
    found = report()

    def now(request: httpx.Request) -> Any:
        return {**found, "time": datetime.datetime.now(datetime.UTC).isoformat()}

    service.routes = [
        ("GET", r"/ready", lambda request: {"status": "ready"}),
        ("GET", r"/api/v1/cluster/health-report", now),
        *service.routes,
    ]
    return found


def test_the_command(det: Det, health: dict[str, Any]) -> None:
    result = det("cluster", "doctor")
    assert result.exit_code == 0, result.stderr
    assert all(line.split()[0] in ("OK", "WARNING", "->") for line in result.stdout.splitlines())
    assert "0 failed" in result.stderr
    findings = json.loads(det("cluster", "doctor", "--json").stdout)
    assert {"check", "status", "found", "advice"} == set(findings[0])
    health["postgres"]["isLed"] = False
    failed = det("cluster", "doctor")
    assert failed.exit_code == 1
    assert "FAILED   service" in failed.stdout


def test_the_command_without_a_service(det: Det, service: FakeService) -> None:
    service.away = True
    result = det("cluster", "doctor")
    assert result.exit_code == 1
    assert "FAILED   service" in result.stdout
    assert "no answer from the service" in result.stdout


def test_the_command_without_postgres(
    det: Det, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    problems = {"database": "the database does not answer: refused"}
    body = {"status": "not ready", "problems": problems}
    away = {"error": {"error": "the database does not answer; try again"}}
    service.routes = [
        ("GET", r"/ready", lambda request: httpx.Response(503, json=body)),
        ("POST", r"/api/v1/auth/login", lambda request: httpx.Response(503, json=away)),
        *service.routes,
    ]
    result = det("cluster", "doctor")
    assert result.exit_code == 1
    assert "FAILED   postgres  the database does not answer: refused" in result.stdout
    assert "WARNING  service" in result.stdout


def test_a_service_that_hangs_is_not_waited_for(det: Det, service: FakeService) -> None:
    def hang(request: httpx.Request) -> Any:
        raise httpx.ReadTimeout("timed out", request=request) from TimeoutError()

    service.routes.insert(0, ("GET", r"/ready", hang))
    result = det("cluster", "doctor")
    words = " ".join(result.stdout.split())
    assert "asked whether it is ready: no answer from the service at http" in words
    assert "it may be busy or starting: try again in a moment" in words
    assert service.called("POST", "/api/v1/auth/login") == 0


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (r"/api/v1/master", "asked for its version"),
        (r"/api/v1/cluster/health-report", "asked for its report of the cluster"),
    ],
)
def test_a_busy_service_is_said_to_be_busy(
    det: Det, service: FakeService, health: dict[str, Any], path: str, asked: str
) -> None:
    def hang(request: httpx.Request) -> Any:
        raise httpx.ReadTimeout("timed out", request=request) from TimeoutError()

    service.routes.insert(0, ("GET", path, hang))
    words = " ".join(det("cluster", "doctor").stdout.split())
    assert f"{asked}: no answer from the service at http" in words
    assert "timeout: it does not answer" in words
    assert "it may be busy or starting: try again in a moment" in words
    assert "det user login" not in words


def test_not_logged_in_is_a_warning(
    det: Det, health: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DET_PASS", "wrong")
    result = det("cluster", "doctor")
    assert result.exit_code == 0
    assert "WARNING  service" in result.stdout
    assert "det user login" in result.stdout


def test_prefects_own_word(tmp_path: Path) -> None:
    record = LocalCluster(tmp_path, "c", "n", "http://m", "http://p", {}, "user:secret")

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url == "http://p/api/ready"
        assert request.headers["Authorization"].startswith("Basic ")
        return httpx.Response(503)

    problem = examine.prefect_problem(record, httpx.MockTransport(answer))
    assert problem == "it says that it is not ready (HTTP 503)"
    ready = httpx.MockTransport(lambda request: httpx.Response(200))
    assert examine.prefect_problem(record, ready) is None

    def hang(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("timed out", request=request) from TimeoutError()

    problem = examine.prefect_problem(record, httpx.MockTransport(hang))
    assert problem == "timeout: it does not answer"


def test_programs_that_agents_lack_are_not_a_fault() -> None:
    lacks = {"sshd": "install openssh-server", "jupyterlab": "pip install x[notebook]"}
    found = {one.check: one for one in judge(changed("agents", 0, "lacks", to=lacks))}
    assert found["programs"] == Diagnosis(
        "programs",
        "OK",
        "agent a1 has no JupyterLab for det notebook (pip install x[notebook]), no sshd for scp, rsync and "
        "VS Code in shells (install openssh-server)",
    )
    assert "programs" not in {one.check for one in judge(healthy())}

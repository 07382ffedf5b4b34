"""`det trial`, `checkpoint`, `user`, `agent`, `slot`, `master`, `version`."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
import typer
import yaml

from determined import storage
from determined.__version__ import __version__
from determined.cli import printing
from determined.cli.errors import CliError
from determined.cli.state import State
from determined.cli.user import _new_password
from determined.common.api.authentication import salt_and_hash
from determined.common.api.token_store import TokenStore
from tests.unit.cli.conftest import Det
from tests.unit.sdk.fake_service import (
    URL,
    FakeService,
    Refused,
    checkpoint,
    experiment,
    log_line,
    model_version,
    trial,
)


def test_trial_describe(det: Det, service: FakeService) -> None:
    # Where an agent's cluster chose the machine it is named.
    ran = {"agentId": "k", "machine": "n1", "nodes": []}
    nodes = [{"agentId": "k", "machine": one, "slotIds": [1]} for one in ("n1", "n2")]
    legs = [
        {
            "runId": 1,
            "state": "STATE_ERROR",
            "exitCode": 3,
            "reason": "process exited with 3",
            **ran,
        },
        {"runId": 2, "state": "STATE_LOST", "agentId": "k", "nodes": nodes},
        {"runId": 3, "state": "STATE_RUNNING", "agentId": "a1", "machine": None, "nodes": []},
    ]
    service.trials[1] = [trial(3, "ERROR", legs=legs)]
    shown = det("t", "describe", 3, "--csv").stdout
    for words in (",k/n1,", ',"k/n1, k/n2",', ",a1,"):
        assert words in shown
    service.workloads[3] = [{"training": {"totalBatches": 5, "metrics": {"avgMetrics": {"l": 1}}}}]
    table = det("t", "describe", 3)
    assert table.exit_code == 0, table.stderr
    assert "process exited with 3" in table.stdout
    assert '{"l":1}' in table.stdout
    document = json.loads(det("t", "describe", 3, "--json", "--metrics").stdout)
    assert (document["id"], document["workloads"][0]["kind"]) == (3, "training")
    assert service.params[-1]["includeBatchMetrics"] == "true"
    summary = det("t", "describe", 3, "--metrics-summary", "--csv").stdout.split("\n\n")[-1]
    (row,) = csv.DictReader(io.StringIO(summary))
    assert (row["Group"], row["Metric"], row["Max"]) == (
        "validation_metrics",
        "accuracy",
        "Infinity",
    )


def test_trial_logs_and_kill(det: Det, service: FakeService) -> None:
    service.trials[1] = [trial(3)]
    service.logs[3] = [log_line(1, "x"), log_line(2, "y")]
    assert det("t", "logs", 3, "--head", 1).stdout == "[1] x\n"
    assert det("trial", "kill", 3).exit_code == 0
    assert service.calls[-1] == ("POST", "/api/v1/trials/3/kill")
    service.trials[1] = [trial(3, "ERROR")]
    again = det("t", "kill", 3)
    assert (again.exit_code, service.called("POST", "/api/v1/trials/3/kill")) == (0, 1)
    assert again.stderr == "trial 3 had ended already (ERROR); nothing was done\n"
    missing = det("t", "describe", 4)
    assert (missing.exit_code, missing.stderr) == (1, "error: trial 4 does not exist\n")


@pytest.fixture
def stored(service: FakeService, tmp_path: Path) -> dict[str, Any]:
    """Two checkpoints with files; the JSON of the better one."""
    section = {"type": "directory", "container_path": str(tmp_path / "store")}
    (tmp_path / "store").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "w").write_bytes(b"abc")
    for uuid, metric, steps in (("good", 0.9, 5), ("late", 0.1, 9)):
        manifest = storage.build(section).upload(tmp_path / "src", uuid)
        found = checkpoint(uuid, 3, metric, resources={"w": "3"}, checksums=manifest.checksums)
        found["metadata"]["steps_completed"] = steps
        found["training"]["experimentConfig"]["checkpoint_storage"] = section
        service.checkpoints.append(found)
    service.experiments[1] = experiment()
    service.trials[1] = [trial(3)]
    good, late = service.checkpoints
    service.versions = [model_version(2, checkpoint=late), model_version(1, checkpoint=good)]
    return dict(good)


@pytest.mark.parametrize(
    ("args", "uuid"),
    [
        (["c", "download", "good"], "good"),
        (["m", "download", "digits"], "late"),
        (["m", "download", "digits", 1, "--mode", "direct"], "good"),
        (["t", "download", 3, "--best"], "good"),
        (["t", "download", 3, "--latest"], "late"),
        (["t", "download", 3, "--uuid", "late"], "late"),
        (
            ["t", "download", 3, "--best", "--sort-by", "accuracy", "--smaller-is-better", "true"],
            "late",
        ),
    ],
)
def test_downloads(
    det: Det,
    stored: dict[str, Any],
    args: list[Any],
    uuid: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = det(*args, "-q")
    assert (result.exit_code, result.stdout) == (0, f"checkpoints/{uuid}\n"), result.stderr
    assert (tmp_path / "checkpoints" / uuid / "w").read_bytes() == b"abc"
    other = det(*args, "-o", tmp_path / "there")
    assert str(tmp_path / "there") in other.stdout
    assert (tmp_path / "there" / "w").is_file()


def test_experiment_download(det: Det, stored: dict[str, Any], tmp_path: Path) -> None:
    result = det("e", "download", 1, "-o", tmp_path / "best", "-q")
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path}/best/good\n")
    assert det("e", "download", 1, "--sort-by", "loss").exit_code == 2


def test_a_download_that_fails_is_one_line(
    det: Det, stored: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "store" / "good" / "w").write_bytes(b"abX")
    result = det("c", "download", "good", "-o", tmp_path / "out")
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1
    assert "good" in result.stderr


def test_wrong_choices_are_usage_errors(det: Det, stored: dict[str, Any]) -> None:
    for args in (
        ["t", "download", 3],
        ["t", "download", 3, "--best", "--latest"],
        ["t", "download", 3, "--latest", "--sort-by", "x", "--smaller-is-better", "true"],
        ["t", "download", 3, "--best", "--sort-by", "x", "--smaller-is-better", "maybe"],
        ["c", "download", "good", "--mode", "sideways"],
        ["m", "download", "digits", 1, "--mode", "sideways"],
    ):
        assert det(*args).exit_code == 2, args


def test_checkpoint_describe(det: Det, stored: dict[str, Any]) -> None:
    table = det("c", "describe", "good").stdout
    assert "Files" in table
    assert "sha256:" in table
    assert json.loads(det("c", "describe", "good", "--json").stdout) == stored


def test_user_login_and_logout(
    det: Det, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DET_USER")
    monkeypatch.delenv("DET_PASS")
    assert "not logged in" in det("user", "whoami").stderr
    result = det("user", "login", "ann", input="ann's\n")
    assert (result.exit_code, result.stdout) == (0, ""), result.stderr
    assert det("user", "whoami").stdout == "ann\n"
    assert json.loads(det("u", "whoami", "--json").stdout)["username"] == "ann"
    assert det("u", "logout").exit_code == 0
    assert TokenStore().token(URL, "ann") is None
    again = det("u", "logout")
    assert (again.exit_code, again.stderr) == (1, f"error: not logged in to {URL}\n")
    wrong = det("u", "login", "ann", input="no\n")
    assert wrong.exit_code == 1
    assert "cannot log in" in wrong.stderr


def test_everybody_is_logged_out(
    det: Det, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DET_USER")
    monkeypatch.delenv("DET_PASS")
    for name, word in (("ann", "ann's"), ("determined", "secret")):
        assert det("user", "login", name, input=f"{word}\n").exit_code == 0
    assert det("-u", "ann", "user", "logout", "--all").exit_code == 2

    result = det("user", "logout", "--all")

    assert result.stderr.splitlines() == [
        f"logged out ann from {URL}",
        f"logged out determined from {URL}",
    ]
    assert TokenStore().users(URL) == []
    assert det("user", "logout", "-a").exit_code == 1


def test_all_agents(det: Det, service: FakeService) -> None:
    service.agents = [{"id": "one", "slots": {}}, {"id": "two", "slots": {}}]
    result = det("a", "disable", "--all", "--drain")
    assert result.stderr == (
        "agent one is disabled, and drains\nagent two is disabled, and drains\n"
    ), result.stdout
    assert det("a", "enable", "--all").stderr == "agent one is enabled\nagent two is enabled\n"
    assert det("a", "enable").exit_code == det("a", "enable", "one", "--all").exit_code == 2


def test_agents_are_removed(det: Det, service: FakeService) -> None:
    result = det("agent", "remove", "one", "t/o")
    assert result.stderr == "agent one is removed\nagent t/o is removed\n", result.stdout
    assert service.calls[-1] == ("DELETE", "/api/v1/agents/t%2Fo")
    assert det("agent", "remove").exit_code == 2


def test_other_users_learn_how_to_ask_as_administrator(
    det: Det, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "only an administrator may change the cluster"

    def refuse(request: httpx.Request) -> None:
        raise Refused(403, words)

    service.routes.insert(0, ("DELETE", r"/api/v1/agents/[^/]+", refuse))
    assert det("agent", "remove", "a").stderr == f"error: {words}\n"
    (tmp_path / "data").mkdir()
    passwords = {"determined": "secret", "admin": "a"}
    record = {
        "cluster_id": "c-1",
        "cluster_name": "n",
        "master_url": URL,
        "prefect_url": "http://p",
    }
    (tmp_path / "data/cluster.json").write_text(
        json.dumps({**record, "passwords": passwords, "prefect_auth": "u:p"})
    )
    hint = f"error: {words}: `det -u admin …` asks as one, without a login\n"
    assert det("agent", "remove", "a").stderr == hint
    service.passwords["admin"] = "a"
    assert det("-u", "admin", "agent", "remove", "a").stderr == f"error: {words}\n"
    monkeypatch.setenv("DET_PASS", "a")
    login = det("user", "login", "admin")
    assert login.exit_code == 0
    assert (
        "no login is needed for admin of the local cluster: `det -u admin …` takes" in login.stderr
    )


def test_users_of_variables_and_of_the_option_are_not_kept(
    det: Det, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DET_USER")
    assert det("u", "login", "determined").exit_code == 0
    monkeypatch.setenv("DET_USER", "ann")
    monkeypatch.setenv("DET_PASS", "ann's")
    assert det("u", "whoami").stdout == "ann\n"
    assert det("-u", "ann", "u", "whoami").stdout == "ann\n"
    monkeypatch.delenv("DET_USER")
    monkeypatch.delenv("DET_PASS")
    assert det("u", "whoami").stdout == "determined\n"
    assert TokenStore().users(URL) == ["determined"]


def test_a_user_is_linked_with_an_account(det: Det, service: FakeService) -> None:
    account = ["--agent-uid", 1200, "--agent-user", "trials", "--agent-gid", 1300]
    result = det("user", "link-with-agent-user", "ann", *account, "--agent-group", "staff")
    assert result.exit_code == 0, result.stderr
    assert service.bodies[-1] == {
        "agentUserGroup": {
            "agentUid": 1200,
            "agentGid": 1300,
            "agentUser": "trials",
            "agentGroup": "staff",
        }
    }
    assert "linked ann with trials (1200), group staff (1300)" in result.stderr
    missing = det("user", "link-with-agent-user", "ann", *account)
    assert missing.exit_code == 2
    assert "--agent-group" in missing.stderr
    nobody = det("u", "link-with-agent-user", "bob", *account, "--agent-group", "staff")
    assert (nobody.exit_code, nobody.stderr) == (1, "error: user 'bob' does not exist\n")


def test_a_user_is_created(det: Det, service: FakeService) -> None:
    made = det("user", "create", "eve", "--admin", input="eve's\n")
    assert (made.exit_code, made.stdout) == (0, ""), made.stderr
    assert made.stderr == "created eve, an administrator\n"
    assert service.bodies[-1] == {
        "user": {"username": "eve", "admin": True, "active": True, "remote": False},
        "password": salt_and_hash("eve's"),
        "isHashed": True,
    }
    # Empty input does not set a blank password.
    nothing = det("user", "create", "bob", input="")
    assert (nothing.exit_code, service.bodies[-1]) == (1, {"user": {}})
    assert "no new password" in nothing.stderr
    assert det("user", "create", "bob", "--password", "b").stderr == "created bob\n"


def test_a_short_password_is_refused_before_it_is_repeated(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.password_min_chars = 8
    asked: list[str] = []
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    ctx = typer.Context(click.Command("create"), obj=State(transport=service.transport))
    typed = {"New": "1234567", "The": "never"}

    def getpass(prompt: str) -> str:
        asked.append(prompt)
        return typed[prompt.split()[0]]

    monkeypatch.setattr("getpass.getpass", getpass)
    with pytest.raises(CliError, match="7 characters, and a new one needs at least 8"):
        _new_password(ctx, "eve")
    assert asked == ["New password for user 'eve', at least 8 characters: "]
    typed |= {"New": "12345678", "The": "12345678"}
    assert _new_password(ctx, "eve") == "12345678"


@pytest.mark.parametrize("password", ["1234567", ""])
def test_a_short_password_is_not_sent(det: Det, service: FakeService, password: str) -> None:
    service.password_min_chars = 8
    asked = service.called("POST", "/api/v1/users")
    refused = det("user", "create", "eve", "--password", password)
    assert (refused.exit_code, service.called("POST", "/api/v1/users")) == (1, asked)
    assert f"{len(password)} characters, and a new one needs at least 8" in refused.stderr
    changed = det("user", "change-password", "ann", input=f"{password}\n")
    assert changed.exit_code == 1
    assert "needs at least 8" in changed.stderr
    service.password_min_chars = 0
    assert det("user", "create", "eve", "--password", "b").exit_code == 0


def test_a_user_is_changed(det: Det, service: FakeService) -> None:
    done = det("u", "edit", "ann", "--display-name", "Ann", "--admin", "True", "--active", "false")
    assert done.exit_code == 0, done.stderr
    assert service.bodies[-1] == {"displayName": "Ann", "admin": True, "active": False}
    assert done.stderr.splitlines() == [
        'changed ann: displayName is now "Ann", admin is now true, active is now false',
        "note: experiments of ann go on until somebody ends them: det e kill 3 5",
    ]
    for args, body in (
        (("rename", "ann", "anna"), {"username": "anna"}),
        (("activate", "ann"), {"active": True}),
        (("deactivate", "ann"), {"active": False}),
    ):
        assert det("user", *args).exit_code == 0
        assert service.bodies[-1] == body
    assert det("user", "edit", "ann").exit_code == 2
    assert det("user", "edit", "ann", "--admin", "perhaps").exit_code == 2
    assert "user 'bob' does not exist" in det("user", "edit", "bob", "--active", "true").stderr


def test_user_list(det: Det, service: FakeService) -> None:
    listed = json.loads(det("user", "list", "--json").stdout)
    assert [user["username"] for user in listed] == ["determined", "ann"]
    assert service.params[-1]["active"] == "true"
    assert det("u").stdout.splitlines()[1].startswith("determined")


@pytest.fixture
def agents(service: FakeService) -> None:
    def slot(number: int, container: Any = None) -> Any:
        device = {"type": "TYPE_CPU", "brand": "Some CPU", "uuid": ""}
        return {"id": str(number), "enabled": True, "device": device, "container": container}

    slots = {str(n): slot(n) for n in (10, 2)}
    slots["2"]["container"] = {"id": "a-1", "parent": "a-1"}
    service.agents = [
        {
            "id": "agent",
            "state": "STATE_SILENT",
            "lastHeartbeat": "2026-01-02T03:04:05Z",
            "enabled": True,
            "slots": slots,
            "resourcePools": ["default"],
        }
    ]


@pytest.mark.usefixtures("agents")
def test_agents_and_slots(det: Det) -> None:
    (row,) = csv.DictReader(io.StringIO(det("agent", "list", "--csv").stdout))
    assert (row["Agent ID"], row["Slots Used"], row["Resource Pool"]) == (
        "agent",
        "1/2",
        "default",
    )
    assert (row["State"], row["Last Heartbeat"]) == ("SILENT", "2026-01-02 03:04:05+0000")
    rows = list(csv.DictReader(io.StringIO(det("s", "ls", "--csv").stdout)))
    assert {r["Agent State"] for r in rows} == {"SILENT"}
    assert [(r["Slot ID"], r["Allocation ID"], r["Type"]) for r in rows] == [
        ("2", "a-1", "cpu"),
        ("10", "FREE", "cpu"),
    ]


def test_each_machine_of_an_agent_is_a_line(det: Det, service: FakeService) -> None:
    def slot(number: int, machine: str, draining: bool, busy: bool) -> dict[str, Any]:
        container = {"id": "a-1", "parent": "a-1"} if busy else None
        more = {"draining": draining, "container": container, "device": {}}
        return {"id": str(number), "machine": machine, "enabled": True, **more}

    slots = [slot(0, "n1", False, True), slot(1, "n1", False, False), slot(2, "n2", True, False)]
    service.agents = [
        {
            "id": "k",
            "state": "STATE_ALIVE",
            "enabled": True,
            "draining": False,
            "slots": {one["id"]: one for one in slots},
            "machines": {
                "n1": {"enabled": True, "draining": False},
                "n2": {"enabled": True, "draining": False},
                "n3": {"enabled": False, "draining": True},
            },
        }
    ]
    rows = list(csv.DictReader(io.StringIO(det("agent", "list", "--csv").stdout)))
    names = ("Agent ID", "Slots Used", "Enabled", "Draining")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("k/n1", "1/2", "True", "False"),
        # Cordoned in its own cluster.
        ("k/n2", "0/1", "True", "True"),
        ("k/n3", "0/0", "False", "True"),
    ]
    assert json.loads(det("agent", "list", "--json").stdout) == service.agents
    rows = list(csv.DictReader(io.StringIO(det("slot", "list", "--csv").stdout)))
    assert [row["Machine"] for row in rows] == ["n1", "n1", "n2"]
    # The cluster of the agent has placed what has the slot of n1 on n2.
    slots[0]["container"] = {"id": "a-1", "machine": "n2"}
    rows = list(csv.DictReader(io.StringIO(det("agent", "list", "--csv").stdout)))
    assert [row["Slots Used"] for row in rows] == ["0/2", "1/1", "0/0"]
    for wrong in ("k/", "/n1"):
        assert det("agent", "disable", wrong).exit_code == 2


@pytest.fixture
def pools(service: FakeService) -> None:
    details = {"priorityScheduler": {"preemption": True, "defaultPriority": 50}}
    service.pools = [
        {
            "name": "gpus",
            "description": "the big ones",
            "numAgents": 2,
            "slotsUsed": 3,
            "slotsAvailable": 8,
            "slotsPerAgent": 4,
            "auxContainersRunning": 1,
            "auxContainerCapacityPerAgent": 9,
            "defaultComputePool": True,
            "defaultAuxPool": False,
            "schedulerType": "SCHEDULER_TYPE_PRIORITY",
            "schedulerFittingPolicy": "FITTING_POLICY_WORST",
            "details": details,
        },
        {"name": "aux", "defaultAuxPool": True, "schedulerType": "SCHEDULER_TYPE_UNSPECIFIED"},
    ]


@pytest.mark.usefixtures("pools")
def test_resource_pools(det: Det) -> None:
    gpus, aux = csv.DictReader(io.StringIO(det("rp", "ls", "--csv").stdout))
    assert (gpus["Default For"], gpus["Slots Used"], gpus["Scheduler"]) == (
        "compute",
        "3/8",
        "priority",
    )
    assert (aux["Default For"], aux["Scheduler"]) == ("aux", "first_in_first_out")
    (row,) = csv.DictReader(io.StringIO(det("rp", "describe", "gpus", "--csv").stdout))
    assert (row["Preemption"], row["Default Priority"], row["Fitting Policy"]) == (
        "True",
        "50",
        "worst",
    )
    assert json.loads(det("rp", "describe", "aux", "--json").stdout)["defaultAuxPool"] is True
    result = det("rp", "describe", "gpu")
    assert result.exit_code == 1
    assert "no resource pool 'gpu'; did you mean 'gpus'? (allowed: gpus, aux)" in result.stderr


def test_the_cluster_configuration(det: Det, service: FakeService) -> None:
    service.cluster_config["config"] = {"resource_pools": [{"pool_name": "gpus"}]}
    assert yaml.safe_load(det("master", "config").stdout) == service.cluster_config["config"]
    service.cluster_config["refusal"] = "resource_pools: still in use"
    result = det("master", "config", "show", "--json")
    assert json.loads(result.stdout) == service.cluster_config["config"]
    assert "not in force:\nresource_pools: still in use" in result.stderr


@pytest.mark.parametrize(
    ("typed", "path", "said"),
    [
        ("agent enable x", "x/enable", "agent x is enabled"),
        ("a disable x", "x/disable", "agent x is disabled"),
        ("a disable x --drain", "x/disable", "agent x is disabled, and drains"),
        ("a enable x/n1", "x/machines/n1/enable", "machine x/n1 is enabled"),
        (
            "a disable x/n1 --drain",
            "x/machines/n1/disable",
            "machine x/n1 is disabled, and drains",
        ),
        ("slot enable x 2", "x/slots/2/enable", "slot 2 of agent x is enabled"),
        ("s disable x 2 --drain", "x/slots/2/disable", "slot 2 of agent x is disabled"),
    ],
)
def test_agents_and_slots_are_taken_out_of_use(
    det: Det, service: FakeService, typed: str, path: str, said: str
) -> None:
    result = det(*typed.split())
    assert (result.exit_code, result.stderr) == (0, f"{said}\n")
    assert service.calls[-1] == ("POST", f"/api/v1/agents/{path}")


def test_master_info(det: Det, service: FakeService) -> None:
    assert json.loads(det("master", "info", "--json").stdout)["clusterId"] == "c-1"
    assert yaml.safe_load(det("master", "info", "--yaml").stdout)["clusterName"] == "fake"
    assert "c-1" in det("master", "info").stdout
    assert service.called("POST", "/api/v1/auth/login") == 0


def test_master_logs(det: Det, service: FakeService) -> None:
    entry = {"id": 7, "timestamp": "2026-11-27T08:00:00Z", "level": "LOG_LEVEL_WARNING"}
    service.own_log = [{"logEntry": {**entry, "message": "said\x1b[2J"}}]
    found = det("master", "logs", "--tail", 5)
    assert found.exit_code == 0, found.stderr
    assert found.stdout == "2026-11-27T08:00:00Z [WARNING]: said\\x1b[2J\n"
    assert (service.params[-1]["offset"], service.params[-1]["follow"]) == ("-5", "false")
    assert json.loads(det("master", "logs", "-f", "--json").stdout)["id"] == 7
    assert (service.params[-1]["offset"], service.params[-1]["follow"]) == ("0", "true")


def test_the_cluster_message(det: Det, service: FakeService) -> None:
    said = det("master", "cluster-message", "set", "-m", "going\ndown", "-s", "T", "-d", "5d")
    assert (said.exit_code, said.stderr) == (0, "set the message\n")
    assert service.bodies[-1] == {"message": "going\ndown", "startTime": "T", "duration": "5d"}
    both = det("master", "cluster-message", "set", "-m", "x", "-e", "T", "-d", "5d")
    assert (both.exit_code, "--end or --duration" in both.stderr) == (2, True)
    assert det("master", "cluster-message", "get").stderr == "0 messages\n"
    begins, ends = "2026-11-28T04:00:00.000000Z", "2026-11-28T06:00:00.000000Z"
    service.message = {"message": "going\ndown", "startTime": begins, "endTime": ends}
    shown = det("master", "cluster-message", "get").stdout
    assert "2026-11-28 06:00:00+0000" in shown
    found = json.loads(det("master", "cluster-message", "get", "--json").stdout)
    assert found == {"clusterMessage": service.message}
    said = det("master", "cluster-message", "clear", "--clear")
    assert (said.exit_code, said.stderr) == (0, "cleared the message\n")
    assert service.calls[-1] == ("DELETE", "/api/v1/master/cluster_message")


def test_the_cluster_message_is_said_at_a_terminal(
    det: Det, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.message = {"message": "going\n\x1bdown", "endTime": "2026-11-28T06:00:00.000000Z"}
    assert "going" not in det("e", "list").stderr
    monkeypatch.setattr(printing, "is_terminal", lambda out: out is sys.stderr)
    line = "message to all users (until 2026-11-28 06:00 UTC): going \\x1bdown\n"
    said = det("e", "list", "--json")
    assert said.stderr == line
    assert "going" not in said.stdout
    service.message = {}
    assert "message" not in det("e", "list").stderr
    # Whoever is asked for his master's version only, is not logged in and hears nothing.
    assert det("version").stderr == ""


def test_a_master_that_does_not_tell_its_message_delays_nothing(
    det: Det, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "is_terminal", lambda out: out is sys.stderr)

    def refuse(request: httpx.Request) -> Any:
        raise Refused(503, "not now")

    service.routes.insert(0, ("GET", r"/api/v1/master", refuse))
    said = det("e", "list", "--json")
    assert (said.exit_code, said.stderr) == (0, "")
    assert service.called("GET", "/api/v1/master") == 1


def test_version(det: Det, service: FakeService) -> None:
    assert det("version").stdout == f"client: {__version__}\nmaster: {__version__} ({URL})\n"
    service.away = True
    result = det("version", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["master"] == {"url": URL, "version": None}
    assert det("--version").stdout == f"det {__version__}\n"
    assert det("-v").stdout == f"det {__version__}\n"


def test_accounting(det: Det, service: FakeService) -> None:
    service.usage_csv = 'labels,seconds\n"a,b",3.5\n'
    service.usage = [{"username": "ann", "seconds": 3.5}]
    shown = det("res", "raw", "2026-01-01", "2026-02-01T12:00:00Z")
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout == service.usage_csv
    assert service.calls[-1] == ("GET", "/resources/allocation/raw")
    assert dict(service.params[-1]) == {
        "timestamp_after": "2026-01-01",
        "timestamp_before": "2026-02-01T12:00:00Z",
    }
    assert det("resources", "alloc", "2026-01-01", "2026-02-01").stdout == service.usage_csv
    assert service.calls[-1][1] == "/resources/allocation/allocations-csv"
    months = det("res", "agg", "2026-01", "2026-03", "--monthly", "--json")
    assert json.loads(months.stdout) == service.usage
    assert service.calls[-1][1] == "/api/v1/resources/allocation/aggregated"
    assert service.params[-1]["period"] == "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_MONTHLY"
    assert service.params[-1]["end_date"] == "2026-03"
    assert det("res", "agg", "2026-01-01", "2026-01-02").stdout == service.usage_csv
    assert service.params[-1]["period"] == "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_DAILY"


def test_logs_of_an_allocation(det: Det, service: FakeService) -> None:
    asked: list[str] = []

    def logs(request: httpx.Request) -> httpx.Response:
        asked.extend(request.url.params.get_list("allocationIds"))
        return httpx.Response(200, content=b"")

    service.routes.insert(0, ("GET", r"/api/v1/tasks/[^/]+/logs", logs))
    task = "6f1d4c1e-3f0f-4f0e-9d57-6f5a1c7e9a11"
    assert det("task", "logs", task, "--allocation-id", f"{task}.1").exit_code == 0
    assert asked == [f"{task}.1"]


def test_the_token_of_ones_login_for_other_programs(
    det: Det, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert det("user", "login").exit_code == 0
    monkeypatch.delenv("DET_PASS")
    stored = TokenStore().token(URL, "determined")
    printed = det("dev", "auth-token")
    assert (printed.exit_code, printed.stdout, printed.stderr) == (0, f"{stored}\n", "")
    assert stored

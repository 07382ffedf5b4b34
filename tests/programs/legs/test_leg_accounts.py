"""A task under a separate account cannot read the cluster's files, and the cluster keeps control of the
task."""

from __future__ import annotations

import json
import os
import pwd
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from determined.common.wire.legs import AgentUser
from determined_tasks import identity
from determined_tasks.identity import IdentityError
from tests import accounts
from tests.programs.legs.conftest import LegRunner
from tests.programs.legs.fake_service import FakeService
from tests.waiting import until


@pytest.fixture(scope="module")
def people() -> Iterator[list[pwd.struct_passwd]]:
    with accounts.made(2) as made:
        yield made


@pytest.fixture
def open_legs(service: FakeService) -> Iterator[LegRunner]:
    """Legs whose directories other accounts can reach."""
    with accounts.passable_folder() as folder:
        runner = LegRunner(service, folder / "agent")
        yield runner
        runner.close()


LOOK = """
import json, os, signal, socket, subprocess, sys, tempfile
def tried(action):
    try:
        action()
        return "yes"
    except OSError as error:
        return error.strerror
def secret():
    # Backwards, or the program would find itself.
    wanted, found = b"terces-tnega", 0
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            area, mode = line.split()[:2]
            if mode[0] != "r" or "[v" in line:
                continue
            begin, end = (int(number, 16) for number in area.split("-"))
            try:
                memory.seek(begin)
                found += wanted in memory.read(end - begin)[::-1]
            except OSError:
                pass
    return found
work = os.path.dirname(os.path.dirname(os.path.dirname(os.getcwd())))
parent = os.getppid()
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
import numpy
from determined import get_cluster_info
print(json.dumps({
    "ids": [os.getresuid(), os.getresgid(), sorted(os.getgroups())],
    "umask": status["Umask"].strip(),
    "no_new_privileges": status["NoNewPrivs"].strip(),
    "capabilities": int(status["CapEff"], 16),
    "home": os.environ["HOME"] == os.getcwd(), "user": os.environ.get("USER"),
    "left_over": [key for key in os.environ if key.startswith(("XDG", "AWS", "SSH"))],
    "info": get_cluster_info().trial.trial_id,
    "memory": secret(),
    "stdout": tried(lambda: open("/dev/stdout", "w").close()),
    "tmp": tried(lambda: open(os.environ["TMPDIR"] + "/new", "w").close()),
    "own": tried(lambda: open("new", "w").close()),
    "executable": sys.executable.startswith(work),
    "work_dir": tried(lambda: os.listdir(work)),
    "allocations": tried(lambda: os.listdir(work + "/allocations")),
    "record": tried(lambda: open("../leg.json").read()),
    "model_definitions": tried(lambda: os.listdir(work + "/model_defs")),
    "beside": tried(lambda: open("../new", "w").close()),
    "environ": tried(lambda: open(f"/proc/{parent}/environ").read()),
    "descriptors": tried(lambda: os.listdir(f"/proc/{parent}/fd")),
    "mem": tried(lambda: open(f"/proc/{parent}/mem", "rb")),
    "signal": tried(lambda: os.kill(parent, 0)),
}), flush=True)
"""


def test_the_account_and_environment_of_the_process(
    open_legs: LegRunner,
    service: FakeService,
    people: list[pwd.struct_passwd],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    me, other = people
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of root")
    monkeypatch.setenv("XDG_CACHE_HOME", "/root/.cache")
    ended = open_legs.run(
        {"train.py": LOOK, "data/file": "x"},
        agent_user={"uid": me.pw_uid},
        # The account of the owner goes before the agent's.
        place={"default_task": {"user": other.pw_name}},
    )
    assert ended["exit_code"] == 0, service.logs
    no = "Permission denied"
    assert json.loads(service.text("stdout")) == {
        "ids": [[me.pw_uid] * 3, [me.pw_gid] * 3, [me.pw_gid]],
        "umask": "0077",
        "no_new_privileges": "1",
        "capabilities": 0,
        "home": True,
        "user": me.pw_name,
        "left_over": [],
        "info": 21,
        "memory": 0,
        "stdout": "yes",
        "tmp": "yes",
        "own": "yes",
        "executable": True,
        **dict.fromkeys(("work_dir", "allocations", "record", "model_definitions"), no),
        **dict.fromkeys(("beside", "environ", "descriptors", "mem"), no),
        "signal": "Operation not permitted",
    }
    assert list(open_legs.work_dir.glob("allocations/*")) == []


def test_the_look_finds_a_forks_descriptors(legs: LegRunner, service: FakeService) -> None:
    """Without a separate account a task is the agent's, and its memory has the agents' secret."""
    if os.geteuid() != 0:
        pytest.skip("without root every task is the agent's")
    ended = legs.run({"train.py": LOOK})
    assert ended["exit_code"] == 0, service.text("stderr")
    seen = json.loads(service.text("stdout"))
    assert seen["memory"] > 0
    assert seen["signal"] == "yes"


def test_a_hook_and_a_shell_and_the_agents_account(
    open_legs: LegRunner, service: FakeService, people: list[pwd.struct_passwd]
) -> None:
    other = people[1]
    ended = open_legs.run(
        {"startup-hook.sh": "id -u; echo to stderr > /dev/stderr; umask"},
        entrypoint="id -un && touch made && ls -l made | cut -c1-10",
        place={"default_task": {"user": other.pw_name}},
    )
    assert ended["exit_code"] == 0, service.logs
    lines = service.text("stdout").split()
    assert lines == [str(other.pw_uid), "0077", other.pw_name, "-rw-------"]
    assert service.text("stderr") == "to stderr\n"


def test_it_dies_with_its_supervisor_and_the_next_clears_up(
    open_legs: LegRunner, service: FakeService, people: list[pwd.struct_passwd]
) -> None:
    script = """
import os, time
print(os.getpid(), os.environ["TMPDIR"], flush=True)
time.sleep(0 if "AGAIN" in os.environ else 600)
"""
    place = {"default_task": {"uid": people[0].pw_uid}}
    first = open_legs.start({"train.py": script}, place=place)
    service.wait(lambda: service.text("stdout").endswith("\n"))
    pid, tmp = service.text("stdout").split()
    assert psutil.Process(int(pid)).uids().real == people[0].pw_uid
    os.kill(first.pid, signal.SIGKILL)
    until("the training process is dead", lambda: not psutil.pid_exists(int(pid)))
    assert Path(tmp).exists()
    ended = open_legs.run({"train.py": script}, place=place, environment_variables=["AGAIN"])
    assert ended["exit_code"] == 0
    assert not Path(tmp).exists()


def test_links_of_the_task_lead_the_supervisor_nowhere(
    open_legs: LegRunner, service: FakeService, people: list[pwd.struct_passwd]
) -> None:
    """Links that an attempt leaves in its directories are not followed by root's next one."""
    target = open_legs.work_dir.parent / "roots"
    target.write_text("untouched")
    script = f"""
import os, shutil, time
info = os.environ["DET_RUN_DIR"] + "/info"
shutil.rmtree(info)
os.mkdir(info)
os.symlink("{target}", info + "/cluster_info.json")
print("laid", flush=True)
time.sleep(0 if "AGAIN" in os.environ else 600)
"""
    place = {"default_task": {"uid": people[0].pw_uid}}
    first = open_legs.start({"train.py": script}, place=place)
    service.wait(lambda: "laid" in service.text("stdout"))
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    ended = open_legs.run({"train.py": script}, place=place, environment_variables=["AGAIN"])
    assert ended["exit_code"] == 0
    assert target.read_text() == "untouched"


def test_accounts_that_are_refused(
    open_legs: LegRunner, service: FakeService, people: list[pwd.struct_passwd]
) -> None:
    def reason(**wanted: object) -> str:
        service.exits.clear()
        ended = open_legs.run({"train.py": "print('ran')"}, agent_user=wanted)
        assert ended["kind"] == "failed_to_start"
        return str(ended["reason"])

    me = people[0]
    assert "does not know: add the account there (useradd -u 4000000000" in reason(uid=4000000000)
    assert "agent agent-1 starts no task as root" in reason(uid=0)
    assert "starts no task as root" in reason(uid=me.pw_uid, gid=0)
    assert f"uid {me.pw_uid} is {me.pw_name}" in reason(uid=me.pw_uid, user="somebody")
    assert "no user is named" in reason(gid=me.pw_gid)
    assert "a group that the machine of agent agent-1 does not know" in (
        reason(uid=me.pw_uid, group="no-such-group")
    )
    open_legs.work_dir.parent.chmod(0o700)
    closed = reason(uid=me.pw_uid)
    assert f"{open_legs.work_dir.parent} is closed to others" in closed
    assert "chmod o+x" in closed
    assert service.text("stdout") == ""


def test_an_agent_that_is_not_root_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    nobody = pwd.getpwnam("nobody")
    with pytest.raises(IdentityError, match="only root may start processes of another user"):
        identity.resolve(AgentUser(user="nobody"), None, allow_root=False, agent_id="a")
    monkeypatch.setattr(os, "getuid", lambda: nobody.pw_uid)
    monkeypatch.setattr(os, "getgid", lambda: nobody.pw_gid)
    same = identity.resolve(AgentUser(user="nobody"), None, allow_root=False, agent_id="a")
    assert same is None


def test_root_when_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    told = identity.resolve(AgentUser(uid=0), None, allow_root=True, agent_id="a")
    assert told is None, "the agent's own account"
    assert identity.resolve(None, None, allow_root=False, agent_id="a") is None


@pytest.mark.parametrize("at", ["closed", "closed/inner"])
def test_the_closed_folder_behind_a_link_is_named(people: list[pwd.struct_passwd], at: str) -> None:
    """An attempt to open the link's folder by the earlier path fails."""
    me = people[0]
    account = identity.Identity(me.pw_name, me.pw_uid, me.pw_gid, (me.pw_gid,), Path("/"))
    with accounts.passable_folder() as folder:
        (folder / "closed" / "inner").mkdir(parents=True, mode=0o755)
        (folder / at / "file").touch()
        (folder / "closed").chmod(0o700)
        (folder / "link").symlink_to(folder / at)
        with pytest.raises(IdentityError, match=rf"chmod o\+x {folder / 'closed'}\)"):
            identity.require_reach(account, folder / "link" / "file")

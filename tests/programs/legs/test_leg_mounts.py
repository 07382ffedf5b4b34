"""The files that a leg's process sees under the paths of ``bind_mounts``, and that no other process sees
there."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from determined.common.wire.legs import AgentUser
from determined_tasks import enter, identity, mounts
from determined_tasks.leg_groups import LegGroup
from determined_tasks.limits import Limits
from tests import accounts
from tests.programs.legs.conftest import LegRunner
from tests.programs.legs.fake_service import FakeService

REFUSED = mounts.refused()
pytestmark = pytest.mark.skipif(REFUSED is not None, reason=f"nothing can be mounted: {REFUSED}")

LOOK = """
import json, os, sys
def tried(action):
    try:
        return action()
    except OSError as error:
        return error.strerror
def written(path):
    with open(path, "w") as file:
        return file.write("x")
seen = {path: tried(lambda: sorted(os.listdir(path))) for path in sys.argv[1:]}
space = os.statvfs("/dev/shm")
print(json.dumps({
    "seen": seen,
    "written": {path: tried(lambda: written(path + "/new")) for path in sys.argv[1:]},
    "shm": space.f_blocks * space.f_frsize,
    "cwd": os.getcwd(), "file": __file__,
    "ids": [os.getuid(), os.getgid()],
    "capabilities": [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")],
}), flush=True)
"""


def names(folder: str | Path) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def lines(service: FakeService) -> list[str]:
    return [line["log"].rstrip("\n") for line in service.logs]


def looked(service: FakeService) -> dict[str, Any]:
    (found,) = [line for line in lines(service) if line.startswith('{"seen"')]
    return dict(json.loads(found))


@pytest.fixture
def team(tmp_path: Path) -> Path:
    folder = tmp_path / "team"
    folder.mkdir()
    (folder / "x.csv").write_text("1\n")
    return folder


def given(folder: Path, *places: str, **more: Any) -> dict[str, Any]:
    return {
        "name": "test",
        "bind_mounts": [
            {"host_path": str(folder), "container_path": place, **more} for place in places
        ],
    }


PLACES = [
    "/det-test-absent/deep/data",
    "/mnt/det-test-absent",
    "/det-test-absent/deep",
    "below/work",
    "/run/determined/workdir/absolute",
    "/opt",
]


def test_directories_are_where_the_configuration_says(
    legs: LegRunner, service: FakeService, team: Path, fork: bool
) -> None:
    before = {folder: names(folder) for folder in ("/", "/mnt", "/opt", "/run")}
    config = given(team, *PLACES) | {"resources": {"shm_size": "8M"}}
    words = ["python3", "/run/determined/workdir/train.py", *PLACES]
    ended = legs.run({"train.py": LOOK}, config=config, entrypoint=words, fork=fork)
    assert ended["exit_code"] == 0, lines(service)
    found = looked(service)
    # The place of the inner one is made in the directory that is mounted around it.
    assert found["seen"] == {place: ["data", "x.csv"] for place in PLACES}
    assert set(found["written"].values()) == {1}
    assert found["shm"] == 8 << 20
    assert found["ids"] == [os.getuid(), os.getgid()]
    assert (team / "new").read_text() == "x"
    assert {folder: names(folder) for folder in before} == before
    assert not list((legs.work_dir / "allocations").iterdir())


def test_read_only_mounts_cannot_be_written(
    legs: LegRunner, service: FakeService, team: Path
) -> None:
    config = given(team, "/mnt/data", read_only=True)
    legs.run({"train.py": LOOK}, config=config, entrypoint="python3 train.py /mnt/data")
    assert looked(service)["seen"] == {"/mnt/data": ["x.csv"]}
    assert looked(service)["written"] == {"/mnt/data": "Read-only file system"}
    assert names(team) == ["x.csv"]


def test_a_file_can_be_mounted(legs: LegRunner, service: FakeService, team: Path) -> None:
    config = given(team / "x.csv", "/etc/det-test/one.csv")
    ended = legs.run({}, config=config, entrypoint="cat /etc/det-test/one.csv /etc/hostname")
    assert ended["exit_code"] == 0
    assert "1" in lines(service)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("/proc/x", "nothing can be mounted at '/proc/x'"),
        ("/", "nothing can be mounted at '/'"),
        ("/mnt/data", "'/det-test-nowhere' cannot be mounted on agent agent-1: No such file"),
    ],
)
def test_impossible_mounts_get_a_remark(legs: LegRunner, place: str, words: str) -> None:
    host = "/det-test-nowhere" if place == "/mnt/data" else "/mnt"
    ended = legs.run({"train.py": ""}, config=given(Path(host), place))
    assert ended["kind"] == "failed_to_start"
    assert words in ended["reason"]
    assert "bind_mounts[0]." in ended["reason"]


def test_a_worker_of_prefects_own_says_that_it_mounts_nothing(
    legs: LegRunner, service: FakeService, team: Path
) -> None:
    ended = legs.run({"train.py": "print('ran')"}, config=given(team, "/mnt/data"), stock=True)
    assert ended["exit_code"] == 0
    assert any("bind_mounts and resources.shm_size are ignored" in one for one in lines(service))


def test_a_program_beside_the_task_sees_the_same(
    legs: LegRunner, service: FakeService, team: Path
) -> None:
    script = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n"
    process = legs.start({"train.py": script}, config=given(team, "/det-test-absent/data"))
    service.wait(lambda: any(line.isdigit() for line in lines(service)))
    (pid,) = [int(line) for line in lines(service) if line.isdigit()]
    descriptor = enter.order(
        ["/bin/ls", "/det-test-absent/data"],
        dict(os.environ),
        Limits(),
        LegGroup([]),
        (),
        Path("/"),
        pid,
    )
    command = [sys.executable, "-I", "-m", enter.MODULE, str(descriptor)]
    found = subprocess.run(
        command, pass_fds=[descriptor], capture_output=True, text=True, check=True
    )
    os.close(descriptor)
    assert found.stdout == "x.csv\n"
    process.terminate()
    process.wait()


# Under an account.


@pytest.fixture(scope="module")
def people() -> Iterator[list[pwd.struct_passwd]]:
    with accounts.made(2) as made:
        yield made


@pytest.fixture
def open_folder() -> Iterator[Path]:
    with accounts.passable_folder() as folder:
        yield folder


def under(account: pwd.struct_passwd) -> dict[str, Any]:
    user = AgentUser(uid=account.pw_uid, user=account.pw_name, gid=None, group=None)
    return {"agent_user": user.to_json()}


def test_an_account_sees_its_mounts_and_has_no_more_rights(
    open_folder: Path, service: FakeService, people: list[pwd.struct_passwd]
) -> None:
    account = people[0]
    legs = LegRunner(service, open_folder / "agent")
    mine = open_folder / "mine"
    mine.mkdir(mode=0o700)
    os.chown(mine, account.pw_uid, account.pw_gid)
    places = ["/det-test-absent/mine", "/mnt/mine"]
    ended = legs.run(
        {"train.py": LOOK},
        config=given(mine, *places),
        entrypoint=["python3", "/run/determined/workdir/train.py", *places],
        **under(account),
    )
    assert ended["exit_code"] == 0, lines(service)
    found = looked(service)
    assert set(found["written"].values()) == {1}
    assert found["ids"] == [account.pw_uid, account.pw_gid]
    assert int(found["capabilities"][0], 16) == 0
    assert (mine / "new").stat().st_uid == account.pw_uid


def test_a_mount_opens_no_folder_that_is_closed_to_the_account(
    open_folder: Path, service: FakeService, people: list[pwd.struct_passwd]
) -> None:
    """The attack: another's folder lies in a closed one, and is itself open to all."""
    account, other = people
    legs = LegRunner(service, open_folder / "agent")
    closed = open_folder / "closed"
    inside = closed / "inside"
    inside.mkdir(parents=True)
    (inside / "secret").write_text("s")
    closed.chmod(0o700)
    os.chown(closed, other.pw_uid, other.pw_gid)
    ended = legs.run({"train.py": ""}, config=given(inside, "/mnt/data"), **under(account))
    assert ended["kind"] == "failed_to_start"
    assert ended["reason"].endswith("cannot be mounted on agent agent-1: Permission denied")
    # Nor is a directory made beside entries that the account may not list.
    mine = open_folder / "mine"
    mine.mkdir()
    os.chown(mine, account.pw_uid, account.pw_gid)
    other_leg = {"allocation_id": "8.abc.1", **under(account)}
    ended = legs.run({"train.py": ""}, config=given(mine, str(closed / "place")), **other_leg)
    # It would fail again, so it is not tried again.
    assert ended["kind"] == "failed_to_start"
    assert "bind_mounts[0].container_path" in ended["reason"]
    assert "Permission denied" in ended["reason"]


def test_a_link_in_the_working_directory_makes_nothing_elsewhere(
    open_folder: Path, people: list[pwd.struct_passwd]
) -> None:
    """The attack: root makes the place of a relative path, and a link leads it into root's directory."""
    account = people[0]
    roots, mine = open_folder / "roots", open_folder / "mine"
    roots.mkdir(mode=0o755)
    work = mine / "work"
    work.mkdir(parents=True)
    (work / "out").symlink_to(roots)
    for folder in (mine, work):
        os.chown(folder, account.pw_uid, account.pw_gid)
    linked = AgentUser(uid=account.pw_uid, user=None, gid=None, group=None)
    user = identity.resolve(linked, None, allow_root=False, agent_id="agent-1")
    found = mounts.of(given(mine, "out/place"), "", work, open_folder / "stage")
    assert found is not None
    found.require(user, "agent-1")
    child = os.fork()
    if child == 0:
        found.enter(user, work)
        os._exit(17 if Path("out/place/work").is_dir() else 18)
    # It is mounted over a separate layer of the process instead.
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    assert names(roots) == []


RACER = """
import ctypes, sys
libc = ctypes.CDLL(None)
pairs = [(f"{n}".encode(), f"{n}.link".encode()) for n in range(int(sys.argv[1]))]
print("races", flush=True)
while True:
    for one, other in pairs:
        libc.renameat2(-100, one, -100, other, 2)  # RENAME_EXCHANGE
"""


def test_a_link_exchanged_while_root_mounts_shows_no_closed_folder(
    open_folder: Path, people: list[pwd.struct_passwd]
) -> None:
    """The attack: a place beside entries of the account's, which it exchanges for links into another's closed
    folder between root's look at them and their mount."""
    account, other = people
    inside = open_folder / "closed" / "inside"
    inside.mkdir(parents=True)
    (inside / "secret").write_text("s")
    inside.parent.chmod(0o700)
    os.chown(inside.parent, other.pw_uid, other.pw_gid)
    mine, work = open_folder / "mine", open_folder / "work"
    for folder in (mine, work):
        folder.mkdir()
        os.chown(folder, account.pw_uid, account.pw_gid)
    count = 20
    for number in range(count):
        (mine / f"{number}").mkdir()
        (mine / f"{number}.link").symlink_to(inside)
    linked = AgentUser(uid=account.pw_uid, user=None, gid=None, group=None)
    user = identity.resolve(linked, None, allow_root=False, agent_id="agent-1")
    racer = subprocess.Popen(
        [sys.executable, "-c", RACER, str(count)],
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=[],
        cwd=mine,
        stdout=subprocess.PIPE,
    )
    codes = set()
    try:
        assert racer.stdout is not None and racer.stdout.readline()
        for attempt in range(20):
            found = mounts.of(
                given(work, str(mine / "place")), "", work, open_folder / f"stage-{attempt}"
            )
            assert found is not None
            found.require(user, "agent-1")
            child = os.fork()
            if child == 0:
                found.enter(user, work)
                os.setgroups([])
                os.setgid(account.pw_gid)
                os.setuid(account.pw_uid)
                seen = [entry for entry in mine.iterdir() if os.access(entry / "secret", os.F_OK)]
                os._exit(18 if seen else 17)
            codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    finally:
        racer.kill()
        racer.wait()
        assert racer.stdout is not None
        racer.stdout.close()
    assert codes == {17}


@pytest.mark.parametrize("place", ["out", "/run/determined"])
def test_a_link_leads_no_mount_to_the_kernels_files(
    open_folder: Path, people: list[pwd.struct_passwd], place: str
) -> None:
    """The attack: root would read the next mount from a directory of the account instead of /proc."""
    account = people[0]
    mine = open_folder / "mine"
    work = mine / "work"
    work.mkdir(parents=True)
    (work / "out").symlink_to("/proc")
    (mine / "workdir").symlink_to("/proc")
    for folder in (mine, work):
        os.chown(folder, account.pw_uid, account.pw_gid)
    linked = AgentUser(uid=account.pw_uid, user=None, gid=None, group=None)
    user = identity.resolve(linked, None, allow_root=False, agent_id="agent-1")
    found = mounts.of(given(mine, place), "", work, open_folder / "stage")
    assert found is not None
    found.require(user, "agent-1")
    child = os.fork()
    if child == 0:
        found.enter(user, work)
        os._exit(17)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert "nothing can be mounted at '/proc'" in (found.failure() or "")


# As an ordinary user: the agent is not root.

AS_USER = """
import json, os, sys
from pathlib import Path
from determined_tasks import mounts
given = json.load(sys.stdin)
found = mounts.of(given["config"], "", Path(given["workdir"]), Path(given["stage"]))
found.require(None, "agent-1")
found.enter(None, Path(given["workdir"]))
sys.argv[1:] = given["places"]
exec(given["look"])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
def test_an_ordinary_user_mounts_in_a_user_namespace(
    open_folder: Path, people: list[pwd.struct_passwd]
) -> None:
    account = people[0]
    mine = open_folder / "mine"
    for folder in (mine, mine / "data", mine / "work"):
        folder.mkdir()
        os.chown(folder, account.pw_uid, account.pw_gid)
    places = ["/det-test-absent/data", "below", "/home/det-test-absent/x"]
    order = {
        "config": given(mine / "data", *places) | {"resources": {"shm_size": 1 << 20}},
        "workdir": str(mine / "work"),
        "stage": str(mine / "stage"),
        "places": places,
        "look": LOOK.replace("__file__", "''"),
    }
    done = subprocess.run(
        [sys.executable, "-c", AS_USER],
        input=json.dumps(order),
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["written"].values()) == {1}
    assert found["shm"] == 1 << 20
    assert found["ids"] == [account.pw_uid, account.pw_gid]
    assert int(found["capabilities"][0], 16) == 0
    assert names(mine / "data") == ["new"]


def test_a_pod_has_its_mounts_already(legs: LegRunner, service: FakeService) -> None:
    # The folder is the node's, and the pod sees no such path.
    config = given(Path("/det-test-nowhere"), "/mnt/data") | {"resources": {"shm_size": "8M"}}
    ended = legs.run({"train.py": "print('runs')"}, config=config, place={"in_pod": True})
    assert ended["exit_code"] == 0, lines(service)
    assert "runs" in lines(service)

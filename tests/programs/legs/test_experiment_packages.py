"""The trials of one experiment on one machine share installed packages, which are removed with the
experiment."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from determined_tasks import experiment_dir, install_lock, packages
from tests import accounts
from tests.programs.legs.conftest import LegRunner
from tests.programs.legs.fake_service import FakeService
from tests.waiting import until
from tests.wheels import wheel

PYTHON = Path(sys.executable).parent
# psutil is imported in every fork server.
WHEELS: dict[str, str | bytes] = {
    f"{name}-{version}-py3-none-any.whl": wheel(name, version)
    for name in ("tiny", "psutil")
    for version in ("1.0", "2.0")
}
# Whether all of the agent's packages go together, pip would look up for seconds.
HOOK = (
    "pip install --no-index --no-warn-conflicts"
    " ./tiny-{0}-py3-none-any.whl ./psutil-{0}-py3-none-any.whl\ntiny"
)
LOOK = """
import os, subprocess, sys
print("fork" if "determined_tasks.leg" in sys.modules else "program")
import psutil, tiny
print(tiny.__version__, psutil.__version__)
ask = "import psutil, tiny; print('child', tiny.__version__, psutil.__version__)"
for python in (sys.executable, "python3", "PYTHON/python3"):
    subprocess.run([python, "-c", ask])
"""
SEEN = """
try:
    import tiny
    print("tiny", tiny.__version__)
except ImportError:
    print("none")
"""


def run(legs: LegRunner, files: dict[str, str | bytes], **fields: Any) -> dict[str, Any]:
    """A leg with these files, without the earlier leg's downloads and log."""
    shutil.rmtree(legs.work_dir / "model_defs", ignore_errors=True)
    legs.service.logs.clear()
    return legs.run(files, **fields)


def shared(legs: LegRunner, experiment: int = 7) -> Path:
    (found,) = legs.work_dir.glob(f"experiments/{experiment}.c/packages-????????????")
    return found


def test_later_trials_find_the_firsts_packages(legs: LegRunner, service: FakeService) -> None:
    look = LOOK.replace("PYTHON", str(PYTHON))
    hook = HOOK.format("1.0")
    assert run(legs, {"train.py": "", "startup-hook.sh": hook, **WHEELS})["exit_code"] == 0
    assert service.text("stdout").splitlines()[-1] == "1.0", "the installed program is on the PATH"
    # Another trial, whose code contains no installation, and which could be a fork.
    ended = run(legs, {"train.py": look}, allocation_id="7.abd.1", trial_id=22)
    assert ended["exit_code"] == 0, service.logs
    assert service.text("stdout").splitlines() == [
        "program",
        "1.0 1.0",
        "child 1.0 1.0",
        "child 1.0 1.0",
        "child 1.0 1.0",
    ]
    assert "the experiment has installed psutil, so the program starts in a new interpreter" in (
        service.text("stderr", "agent")
    )
    # A trial that installs the same package.
    files = {"train.py": SEEN, "startup-hook.sh": hook, **WHEELS}
    assert run(legs, files, allocation_id="7.abe.1")["exit_code"] == 0
    assert service.text("stdout").count("is already installed with the same version") == 2
    assert service.text("stdout").endswith("tiny 1.0\n")


def test_two_experiments_have_two_versions(legs: LegRunner, service: FakeService) -> None:
    files = {"train.py": SEEN, "startup-hook.sh": HOOK.format("1.0"), **WHEELS}
    assert run(legs, files)["exit_code"] == 0
    files["startup-hook.sh"] = HOOK.format("2.0")
    assert run(legs, files, experiment_id=8, allocation_id="8.abc.1")["exit_code"] == 0
    for experiment, seen in ((7, "tiny 1.0"), (8, "tiny 2.0"), (9, "none")):
        run(legs, {"train.py": SEEN}, experiment_id=experiment, allocation_id=f"{experiment}.abd.1")
        assert service.text("stdout") == f"{seen}\n"


def test_one_pip_at_a_time(legs: LegRunner, service: FakeService) -> None:
    with experiment_dir.used(legs.work_dir, 7, "c") as root:
        lock = experiment_dir.shared_packages(root, None).root / ".lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # another trial's pip, or its uv
        files = {"train.py": SEEN, "startup-hook.sh": "pip list -q\n" + HOOK.format("1.0")}
        process = legs.start({**files, **WHEELS})
        service.wait(lambda: install_lock.WAITING in service.text("stderr"))
        assert not list(shared(legs).glob("lib/*/site-packages/tiny"))
        fcntl.flock(file, fcntl.LOCK_UN)
    assert process.wait() == 0
    assert service.text("stdout").endswith("tiny 1.0\n")


def test_files_destroyed_by_the_code_are_made_again(legs: LegRunner, service: FakeService) -> None:
    run(legs, {"train.py": "import os, shutil; shutil.rmtree(os.environ['VIRTUAL_ENV'])"})
    ended = run(legs, {"train.py": LOOK.partition("import psutil")[0]}, allocation_id="7.abd.1")
    assert ended["exit_code"] == 0, service.logs


def test_it_is_removed_when_unused(legs: LegRunner, service: FakeService) -> None:
    script = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
    leg = legs.start({"train.py": script})
    service.wait(lambda: "begun" in service.text("stdout"))
    assert experiment_dir.known(legs.work_dir, "c") == [7]
    assert experiment_dir.known(legs.work_dir, "another") == []
    assert not experiment_dir.remove(legs.work_dir, 7, "c")
    assert shared(legs).exists()
    os.kill(leg.pid, signal.SIGKILL)
    until("it can be removed", lambda: experiment_dir.remove(legs.work_dir, 7, "c"))
    assert list((legs.work_dir / "experiments").iterdir()) == []
    assert experiment_dir.remove(legs.work_dir, 7, "c"), "again does no harm"


def test_leftovers_of_a_removal_and_of_another_cluster(tmp_path: Path) -> None:
    for number, cluster in ((7, "c"), (8, "c"), (7, "before")):
        with experiment_dir.used(tmp_path, number, cluster) as root:
            experiment_dir.shared_packages(root, None)
    (tmp_path / "experiments" / "8.c").rename(tmp_path / "experiments" / ".gone-8")
    with experiment_dir.used(tmp_path, 3, "before"):
        experiment_dir.remove_leftovers(tmp_path, "c")
        left = sorted(path.name for path in (tmp_path / "experiments").iterdir())
    assert left == ["3.before", "7.c"]


def test_one_that_was_made_by_halves_is_made_again(tmp_path: Path) -> None:
    with experiment_dir.used(tmp_path, 7, "c") as root:
        made = experiment_dir.shared_packages(root, None)
        made.python.unlink()
        (root / f"{made.root.name}.made").unlink()
        assert experiment_dir.shared_packages(root, None).has_interpreter()
        (made.site / "kept").touch()
        assert (experiment_dir.shared_packages(root, None).site / "kept").exists()


def test_accounts_write_to_their_own(service: FakeService) -> None:
    """Two owners' experiments: each account installs, and neither reaches the other's packages."""
    with accounts.made(2) as people, accounts.passable_folder() as folder:
        legs = LegRunner(service, folder / "agent")
        look = """
import glob, os
print(os.getuid())
for root in glob.glob("../../../experiments/*"):
    print("listed", root)
for number in (7, 8):
    try:
        os.listdir(f"../../../experiments/{number}.c")
        print("lists", number)
    except OSError:
        pass
OTHER
"""
        try:
            other = ""
            for number, person in zip((7, 8), people, strict=True):
                files = {
                    "train.py": look.replace("OTHER", other) + SEEN,
                    "startup-hook.sh": f"echo {number}\n" + HOOK.format("1.0"),
                }
                ended = run(
                    legs,
                    {**files, **WHEELS},
                    model_def_hash="d1",
                    experiment_id=number,
                    allocation_id=f"{number}.abc.1",
                    agent_user={"uid": person.pw_uid},
                )
                assert ended["exit_code"] == 0, service.text("stderr")
                lines = service.text("stdout").splitlines()
                assert lines[-1] == "tiny 1.0"
                assert "listed" not in service.text("stdout")
                assert "lists" not in service.text("stdout")
                assert shared(legs, number).stat().st_uid == person.pw_uid
                assert shared(legs, number).stat().st_mode & 0o777 == 0o700
                # The next one knows the name, and cannot enter.
                other = f"""
try:
    print("lists", os.listdir({str(shared(legs, number))!r}))
except PermissionError:
    print("closed")
"""
            assert "closed" in service.text("stdout")
            for number in (7, 8):
                assert experiment_dir.remove(legs.work_dir, number, "c")
            assert list((legs.work_dir / "experiments").iterdir()) == []
        finally:
            legs.close()


def test_sharing_depends_on_account_and_interpreter() -> None:
    assert packages.name_for(None) == packages.name_for(None)
    assert packages.name_for(None) != packages.name_for(1200) != packages.name_for(1201)

"""A killed supervisor's leftovers can be found, and are removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from determined.common.wire.legs import LegSpec
from determined_tasks import context_dir, leg
from determined_tasks.supervision import LegRecord, ProcessName
from tests.programs.legs.conftest import LegRunner
from tests.programs.legs.fake_service import FakeService, archive, spec
from tests.waiting import TIMEOUT_S, until

WAITS = """
import os, tempfile, time
open(os.path.join(tempfile.mkdtemp(prefix="users-"), "file"), "w").close()
print(os.environ["TMPDIR"])
time.sleep(600)
"""


def scratch() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("det-*"))


@pytest.fixture(autouse=True)
def own_tmp(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate folder, so that only this test's scratch counts; short, for sockets."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def killed(legs: LegRunner, service: FakeService) -> Path:
    """A leg whose supervisor was killed while its process runs on; the allocation's directory."""
    supervisor = legs.start({"train.py": WAITS})
    service.wait(lambda: service.text("stdout"))
    (made,) = scratch()
    assert service.text("stdout").strip() == str(made)
    assert list(made.glob("users-*/file"))
    supervisor.kill()
    supervisor.wait()
    return context_dir.allocation_dir(legs.work_dir, "7.abc.1")


def test_the_record_leads_to_it(legs: LegRunner, service: FakeService) -> None:
    record = LegRecord.read(killed(legs, service))
    assert record is not None
    assert record.user is not None
    record.clear_up()
    assert not record.user.is_alive()
    assert scratch() == set()


def test_a_second_attempt_removes_the_first_ones_files(
    legs: LegRunner, service: FakeService
) -> None:
    root = killed(legs, service)
    record = LegRecord.read(root)
    assert record is not None
    assert record.user is not None
    os.kill(record.user.pid, signal.SIGKILL)  # it may hold the lock
    until("the end of the process", lambda: not record.user.is_alive())
    service.model_defs["d2"] = archive({"train.py": "print('again')"})
    legs.run({}, model_def_hash="d2")
    assert "again" in service.text("stdout")
    assert scratch() == set()


def test_nothing_is_left_when_the_leg_cannot_be_prepared(
    legs: LegRunner, service: FakeService
) -> None:
    process = legs.start({}, model_def_hash="d2")
    service.model_defs["d2"] = b"this is not a tar.gz"
    process.wait(TIMEOUT_S)
    assert service.exits["7.abc.1"]["kind"] == "failed_to_start"
    assert scratch() == set()


def test_the_record_comes_before_the_directory(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the supervisor is killed, the record lists the directories made."""
    seen: list[LegRecord | None] = []
    real = Path.mkdir

    def mkdir(path: Path, *args: object, **given: object) -> None:
        if path.name.startswith("det-"):
            seen.append(LegRecord.read(tmp_path / "allocations" / "7.abc.1"))
            raise OSError("the disk is full")
        real(path, *args, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", mkdir)
    place = leg.AgentSide(work_dir=tmp_path, master=service.url, token="t", agent_id="a1")
    result = leg.run_leg(LegSpec.from_json(spec()), work_dir=tmp_path, place=place)
    assert result.kind == "infrastructure"
    (record,) = seen
    assert record is not None
    assert record.tmp is not None
    assert Path(record.tmp).parent == Path(tempfile.gettempdir())


def test_clearing_up_waits_for_the_process_to_be_gone(tmp_path: Path) -> None:
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    code = (
        "import sys, pathlib\nn = 0\nwhile True:\n"
        "    n += 1\n    pathlib.Path(sys.argv[1], f'f{n % 500}').write_bytes(b'x')\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(tmp)], start_new_session=True)
    name = ProcessName.of(writer.pid)
    assert name is not None
    until("a file", lambda: list(tmp.iterdir()))
    LegRecord("1.a.1", 1, name, name, str(tmp)).clear_up()
    assert not tmp.exists()
    writer.wait()

"""Root's actions in directories of a leg that belong to an account, while the account's processes exchange
directories for links. As with storages, each test exchanges right before the step that counts.
"""

from __future__ import annotations

import functools
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from determined_tasks import bell, context_dir, identity, leg, returning, supervision
from determined_tasks import task_environment as environment
from determined_tasks.identity import Identity
from tests.hostile.conftest import SECRET
from tests.hostile.test_storage_races import before, exchange

NOBODY = Identity("nobody", 65534, 65534, (65534,), Path("/"))
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other accounts")


def packed(target: str, _: str) -> bytes:
    """A model definition that holds a link."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        member = tarfile.TarInfo("link")
        member.type, member.linkname = tarfile.SYMTYPE, target
        tar.addfile(member)
    return out.getvalue()


def test_a_directory_exchanged_while_it_is_removed_leads_root_nowhere(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gains: any directory of root's is gone."""
    root = tmp_path / "allocation"
    inner = root / "workdir" / "sub"
    inner.mkdir(parents=True)
    (inner / "file").write_text("the user's")
    real = os.open
    exchanged: list[str] = []

    def late(path: str, *args: Any, **kwargs: Any) -> int:
        # It has been looked at.
        if path == "sub" and not exchanged:
            exchange(inner, victim)()
            exchanged.append(path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", late)
    context_dir.remove(root)
    assert exchanged
    assert (victim / "file").read_text() == SECRET


@as_root
def test_links_are_not_followed_when_files_change_owner(tmp_path: Path, victim: Path) -> None:
    """Gains: any file of root's is the account's."""
    folder = tmp_path / "workdir"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "to-a-file").symlink_to(victim / "file")
    (folder / "to-a-folder").symlink_to(victim)
    identity.give(NOBODY, folder)
    assert (folder / "sub").stat().st_uid == NOBODY.uid
    for path in (victim, victim / "file"):
        assert path.stat().st_uid == 0


def test_a_link_in_a_model_definition_cannot_lead_out(tmp_path: Path, victim: Path) -> None:
    """Gains: writes to root's files, through the copy of the link's target."""
    for target in (str(victim), "../../../victim"):
        with pytest.raises(context_dir.ModelDefinitionError):
            context_dir.unpacked(tmp_path / "work", "abc", functools.partial(packed, target))


def test_the_library_that_removes_trees_goes_by_descriptors() -> None:
    assert shutil.rmtree.avoids_symlink_attacks


@as_root
def test_a_temporary_directory_exchanged_once_it_is_given_leads_root_nowhere(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gains: a directory of root's that others need is closed to them, ``/etc`` say. In ``/tmp`` whoever owns
    a directory may put another in its place."""
    victim.chmod(0o755)
    context = context_dir.prepare(
        tmp_path / "work", "a.1", None, lambda _: b"", tmp_path / "det-0123"
    )
    give = identity.give

    def slowly(account: Identity, root: Path) -> None:
        give(account, root)
        if root == context.tmp:
            exchange(context.tmp, victim)()

    monkeypatch.setattr(identity, "give", slowly)
    monkeypatch.setattr(identity, "require_reach", lambda *_: None)
    context_dir.hand_over(context, tmp_path / "work", NOBODY)
    assert context.tmp.is_symlink()
    assert stat.S_IMODE(victim.stat().st_mode) == 0o755
    assert stat.S_IMODE(context.workdir.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["sub", "sub/file"])
def test_files_that_come_back_are_read_behind_no_link(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Gains: the content or hash of a file of root, as a file of the task."""
    first, second = tmp_path / "first", tmp_path / "second"
    for workdir in (first, second):
        (workdir / "sub").mkdir(parents=True)
        (workdir / "sub" / "file").write_text("the user's")
    target = victim if name == "sub" else victim / "file"
    # It has been looked at.
    before(monkeypatch, stat, "S_ISREG", exchange(first / name, target))
    returning.remember(tmp_path, first)
    assert (first / name).is_symlink()
    assert json.loads((tmp_path / returning.RECORD).read_text()) == {}
    before(monkeypatch, stat, "S_ISREG", exchange(second / name, target))
    out = io.BytesIO()
    (remark,) = returning.pack(second, {}, out)
    assert remark.startswith("these files do not come back: sub/file")
    out.seek(0)
    with tarfile.open(fileobj=out, mode="r:gz") as tar:
        assert "sub/file" not in tar.getnames()


def test_a_gangs_file_is_read_without_links_and_up_to_a_limit(tmp_path: Path, victim: Path) -> None:
    """Gains: all memory of the machine, by a link to ``/dev/zero``."""
    found = json.dumps({"container_addrs": ["a", "b"]})
    (victim / "file").write_text(found)
    info = tmp_path / "info"
    info.mkdir()
    (info / "rendezvous_info.json").write_text(found)
    assert environment.has_met(tmp_path, 2)
    (info / "rendezvous_info.json").write_text(found + " " * environment.MOST_INFO_BYTES + "x")
    assert environment.has_met(tmp_path, 2)  # the rest is not read
    (info / "rendezvous_info.json").unlink()
    (info / "rendezvous_info.json").symlink_to(victim / "file")
    assert not environment.has_met(tmp_path, 2)
    (info / "rendezvous_info.json").unlink()
    os.mkfifo(info / "rendezvous_info.json")
    assert not environment.has_met(tmp_path, 2)
    shutil.rmtree(info)
    (victim / "rendezvous_info.json").write_text(found)
    info.symlink_to(victim)
    assert not environment.has_met(tmp_path, 2)


TRY = """
import os, sys
for name in sys.argv[2:]:
    for attempt in (lambda: os.symlink("/etc/passwd", name + "-new"), lambda: os.rename(name, name + "-old"),
                    lambda: os.open(name, os.O_RDWR), lambda: os.unlink(name)):
        try:
            os.chdir(sys.argv[1])
            attempt()
        except (PermissionError, IsADirectoryError):
            continue
        print("could:", name)
"""


@as_root
def test_the_account_cannot_write_a_legs_logs_pipes_and_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gains: writes to a file of root, by a link that replaces the waiting log, or the pipe that the agent
    uses to ring."""
    monkeypatch.setattr(identity, "require_reach", lambda *_: None)
    for folder in reversed(tmp_path.parents[:-2]):
        folder.chmod(0o711)
    tmp_path.chmod(0o711)
    context = context_dir.prepare(
        tmp_path / "work", "a.1", None, lambda _: b"", tmp_path / "det-0123"
    )
    context_dir.hand_over(context, tmp_path / "work", NOBODY)
    names = [leg.SPOOL, bell.BELL, supervision.LOCK, supervision.RECORD, returning.RECORD]
    for name in names:
        (context.root / name).touch(mode=0o600)
    command = [sys.executable, "-I", "-c", TRY, str(context.root), *names, "workdir", "run"]
    ended = subprocess.run(
        command, user=NOBODY.uid, group=NOBODY.gid, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == ""

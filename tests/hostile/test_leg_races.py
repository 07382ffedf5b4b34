"""What root does in the directories of a leg that belong to an account: the account's processes exchange
directories for links meanwhile. As with storages, each test exchanges right before the step that counts.
"""

from __future__ import annotations

import functools
import io
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from determined_tasks import context_dir, identity
from determined_tasks.identity import Identity
from tests.hostile.conftest import SECRET
from tests.hostile.test_storage_races import exchange

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

    def late(path: str, *args: Any, **kwargs: Any) -> int:
        # It has been looked at.
        if path == "sub" and not inner.is_symlink():
            exchange(inner, victim)()
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", late)
    context_dir.ContextDir(root, tmp_path / "tmp").remove()
    assert inner.is_symlink()
    assert (victim / "file").read_text() == SECRET


@as_root
def test_what_is_handed_over_is_not_what_a_link_in_it_names(tmp_path: Path, victim: Path) -> None:
    """Gains: any file of root's is the account's."""
    folder = tmp_path / "workdir"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "to-a-file").symlink_to(victim / "file")
    (folder / "to-a-folder").symlink_to(victim)
    identity.give(NOBODY, folder)
    assert (folder / "sub").stat().st_uid == NOBODY.uid
    for path in (victim, victim / "file"):
        assert path.stat().st_uid == 0


def test_a_link_in_a_model_definition_leads_nothing_out_of_it(tmp_path: Path, victim: Path) -> None:
    """Gains: files of root's are written, by the copy of what is behind the link."""
    for target in (str(victim), "../../../victim"):
        with pytest.raises(context_dir.ModelDefinitionError):
            context_dir.unpacked(tmp_path / "work", "abc", functools.partial(packed, target))


def test_the_library_that_removes_trees_goes_by_descriptors() -> None:
    assert shutil.rmtree.avoids_symlink_attacks

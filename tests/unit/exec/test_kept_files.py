"""The files of a notebook's working directory, kept and put back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from determined.exec import _kept_files
from determined.exec._kept_files import KeptFiles
from determined.storage import build


def kept(tmp_path: Path, name: str, said: list[str]) -> KeptFiles:
    manager = build({"type": "directory", "container_path": str(tmp_path / "storage")})
    (tmp_path / "storage").mkdir(exist_ok=True)
    directory = tmp_path / name
    directory.mkdir(exist_ok=True)
    return KeptFiles(manager, f"c/notebook/{name}", directory, said.append, lambda size: "")


def test_present_files_come_back_and_removed_ones_do_not(tmp_path: Path) -> None:
    said: list[str] = []
    first = kept(tmp_path, "one", said)
    here = first.directory
    (here / ".git").mkdir()
    (here / ".git/.config").write_text("x")
    (here / "run.sh").write_text("echo")
    (here / "run.sh").chmod(0o755)
    (here / "gone").write_text("y")
    (here / "__pycache__").mkdir()
    (here / "__pycache__/a.pyc").write_text("")
    (here / "link").symlink_to("/etc/passwd")
    first.save()
    (here / "gone").unlink()
    (here / "run.sh").write_text("echo more")
    first.save()
    second = kept(tmp_path, "two", said)
    second.restore(first.key)
    found = {str(path.relative_to(second.directory)) for path in second.directory.rglob("*")}
    assert found == {".git", ".git/.config", "run.sh"}
    assert (second.directory / "run.sh").read_text() == "echo more"
    assert os.access(second.directory / "run.sh", os.X_OK)
    assert said == ["2 files of the earlier notebook are here again"]
    assert not list(tmp_path.glob("tmp*"))


def test_too_much_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_kept_files, "MOST_FILES", 1)
    said: list[str] = []
    files = kept(tmp_path, "many", said)
    for name in "ab":
        (files.directory / name).write_text(name)
    files.save()
    files.save()
    (words,) = said
    assert words.startswith("warning: b and perhaps others are not kept")
    second = kept(tmp_path, "again", said)
    second.restore(files.key)
    assert [path.name for path in second.directory.iterdir()] == ["a"]


def test_a_storage_that_is_away_does_not_end_the_notebook(tmp_path: Path) -> None:
    said: list[str] = []
    files = kept(tmp_path, "away", said)
    (files.directory / "a").write_text("a")
    (tmp_path / "storage").rmdir()
    (tmp_path / "storage").write_text("no directory")
    files.save()
    files.save()
    assert len(said) == 1
    (tmp_path / "storage").unlink()
    (tmp_path / "storage").mkdir()
    files.save()
    assert list((tmp_path / "storage").rglob("index.json"))


def test_refused_files_are_not_copied(tmp_path: Path) -> None:
    said: list[str] = []
    files = kept(tmp_path, "full", said)
    files.refusal = lambda size: f"{size} are too many" if size > 3 else ""
    index = tmp_path / "storage" / files.key / "index.json"
    (files.directory / "a").write_text("abc")
    files.save()
    before = index.read_text()
    (files.directory / "b").write_text("d")
    files.save()
    files.save()
    assert said == ["warning: the files of this notebook are kept as they were: 4 are too many"]
    assert index.read_text() == before
    (files.directory / "a").unlink()
    files.save()
    assert "b" in index.read_text()


def test_the_size_is_told_from_the_first_look_on_until_it_is_heard(tmp_path: Path) -> None:
    files = kept(tmp_path, "counted", [])
    told: list[int] = []
    answers: list[str | None] = [None, "", None, ""]

    def refusal(size: int) -> str | None:
        told.append(size)
        return answers.pop(0)

    files.refusal = refusal
    for _ in range(3):
        files.save()
    # Nothing was written, and no file exists.
    assert told == [0, 0] and not list((tmp_path / "storage").rglob("*"))
    (files.directory / "a").write_text("abc")
    for _ in range(3):
        files.save()
    assert told == [0, 0, 3, 3] and list((tmp_path / "storage").rglob("index.json"))

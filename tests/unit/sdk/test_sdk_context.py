"""Packing a model directory."""

from __future__ import annotations

import base64
import os
import socket
from pathlib import Path

import pytest

from determined.common import context
from determined.common.context import ContextError


def paths(*args: object, **kwargs: object) -> list[str]:
    return [item.path for item in context.pack(*args, **kwargs)]  # type: ignore[arg-type]


def tree(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


def test_a_directory_comes_before_its_contents(tmp_path: Path) -> None:
    tree(tmp_path, "b.py", "a/x.py", "a-b/y.py", "a/c/z.py")
    assert paths(tmp_path) == ["a", "a/c", "a/c/z.py", "a/x.py", "a-b", "a-b/y.py", "b.py"]


def test_the_json_is_the_rest_apis(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_bytes(b"\x00\xff")
    file.chmod(0o755)
    os.utime(file, (5, 1_600_000_000))
    (tmp_path / "empty").mkdir()
    empty, run = context.to_json(context.pack(tmp_path))
    assert (empty["type"], empty["content"]) == (53, "")
    assert run == {
        "path": "run.sh",
        "type": 48,
        "content": base64.b64encode(b"\x00\xff").decode(),
        "mode": 0o100755,
        "mtime": "1600000000",
        "uid": 0,
        "gid": 0,
    }


def test_the_same_tree_gives_the_same_list(tmp_path: Path) -> None:
    names = [f"{letter}/{number}.py" for letter in "zyx" for number in range(5)]
    one, two = tree(tmp_path / "one", *names), tree(tmp_path / "two", *reversed(names))
    for root in (one, two):
        for path in sorted(root.rglob("*")):
            os.utime(path, (0, 0))
    assert context.pack(one) == context.pack(two)


def test_unwanted_items_stay(tmp_path: Path) -> None:
    tree(
        tmp_path,
        "train.py",
        ".git/config",
        "pkg/__pycache__/a.cpython-311.pyc",
        "old.pyc",
        ".idea/x",
        ".vscode/y",
        ".mypy_cache/z",
        "terraform.tfstate",
        "shared_fs/data",
        "sub/shared_fs/kept",
    )
    assert paths(tmp_path) == ["pkg", "sub", "sub/shared_fs", "sub/shared_fs/kept", "train.py"]


def test_detignore_is_gitignore_syntax_for_its_directory(tmp_path: Path) -> None:
    tree(
        tmp_path,
        "data/big.bin",
        "data/keep.txt",
        "sub/data/other.bin",
        "sub/notes.md",
        "sub/deep/notes.md",
        "notes.md",
        "__pycache__/wanted.py",
    )
    (tmp_path / ".detignore").write_text("# large\n*.bin\n!sub/data/other.bin\n/notes.md\n")
    (tmp_path / "sub/.detignore").write_text("/notes.md\n")
    found = [path for path in paths(tmp_path) if not path.endswith(".detignore")]
    assert found == [
        "data",
        "data/keep.txt",
        "sub",
        "sub/data",
        "sub/data/other.bin",
        "sub/deep",
        "sub/deep/notes.md",
    ]


def test_an_inner_detignore_takes_back_in(tmp_path: Path) -> None:
    tree(tmp_path, "a.log", "sub/b.log", "sub/c.log")
    (tmp_path / ".detignore").write_text("*.log\n.detignore\n")
    (tmp_path / "sub/.detignore").write_text("!b.log\n")
    assert paths(tmp_path) == ["sub", "sub/b.log"]


def test_links_are_followed(tmp_path: Path) -> None:
    elsewhere = tree(tmp_path / "elsewhere", "lib/util.py")
    root = tree(tmp_path / "root", "train.py")
    (root / "lib").symlink_to(elsewhere / "lib")
    (root / "alias.py").symlink_to("train.py")
    items = {item.path: item.content for item in context.pack(root)}
    assert items["lib/util.py"] == b"lib/util.py"
    assert items["alias.py"] == b"train.py"
    assert items["lib"] is None


def test_a_circle_of_links_is_named(tmp_path: Path) -> None:
    tree(tmp_path, "a/x.py")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    with pytest.raises(ContextError, match=r"a/up: this link leads in a circle"):
        context.pack(tmp_path)
    (tmp_path / ".detignore").write_text("up\n.detignore\n")
    assert paths(tmp_path) == ["a", "a/x.py"]


def test_a_broken_link_is_named_unless_ignored(tmp_path: Path) -> None:
    (tmp_path / "gone.py").symlink_to("nowhere")
    with pytest.raises(ContextError, match=r"gone\.py: this link leads nowhere"):
        context.pack(tmp_path)
    (tmp_path / ".detignore").write_text("gone.py\n.detignore\n")
    assert paths(tmp_path) == []


LATIN = b"gr\xfc"


def test_a_name_that_is_not_utf_8_is_named_unless_ignored(tmp_path: Path) -> None:
    file = tmp_path / "a" / os.fsdecode(LATIN + b".txt")
    file.parent.mkdir()
    file.touch()
    for packed in (lambda: context.pack(tmp_path), lambda: list(context.regular_files(tmp_path))):
        with pytest.raises(
            ContextError, match=r"/a/gr\\xfc\.txt: its name is not UTF-8; rename it or"
        ):
            packed()
    (tmp_path / ".detignore").write_text("gr?.txt\n.detignore\n")
    assert paths(tmp_path) == ["a"]
    for source in ((file, ()), (None, [file])):
        with pytest.raises(ContextError, match=r"gr\\xfc\.txt: its name is not UTF-8"):
            context.pack(*source)
    file.rename(tmp_path / "a/x")
    folder = tmp_path / os.fsdecode(LATIN)
    folder.mkdir()
    for source in ((tmp_path, ()), (None, [folder])):
        with pytest.raises(ContextError, match=r"/gr\\xfc: its name is not UTF-8"):
            context.pack(*source)
    # Below a directory of such a name everything else has its own.
    tree(folder, "x.py")
    assert paths(folder) == ["x.py"]


def test_a_link_with_such_a_name_and_a_link_to_such_a_name(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(LATIN)).symlink_to("nowhere")
    with pytest.raises(ContextError, match=r"/gr\\xfc: this link leads nowhere"):
        context.pack(tmp_path)
    (tmp_path / os.fsdecode(LATIN)).unlink()
    elsewhere = tmp_path.parent / os.fsdecode(LATIN + b".py")
    elsewhere.touch()
    (tmp_path / "train.py").symlink_to(elsewhere)
    assert paths(tmp_path) == ["train.py"]


def test_an_ignore_file_that_cannot_be_read_as_text(tmp_path: Path) -> None:
    tree(tmp_path, "a/x.py")
    (tmp_path / "a/.detignore").write_bytes(b"x.py\ncaf\xe9/\n")
    with pytest.raises(ContextError, match=r"a/\.detignore: line 2 is not UTF-8; save the file as"):
        context.pack(tmp_path)
    (tmp_path / "a/.detignore").write_bytes(b"!\n")
    with pytest.raises(ContextError, match=r"a/\.detignore: Invalid git pattern: '!'"):
        context.pack(tmp_path)
    (tmp_path / "a/.detignore").write_bytes(b"\xef\xbb\xbfx.py\n.detignore\n")
    assert paths(tmp_path) == ["a"]


def test_sockets_and_pipes_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "a.py")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)  # socket paths are short
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("sock")
        assert paths(tmp_path) == ["a.py"]


def test_more_than_the_limit_names_the_largest(tmp_path: Path) -> None:
    for name, size in {"a": 10, "b": 3000, "c": 2000, "d": 1}.items():
        (tmp_path / name).write_bytes(b"x" * size)
    assert len(context.pack(tmp_path, limit=5011)) == 4
    with pytest.raises(ContextError, match=r"b \(.*c \(.*\.detignore"):
        context.pack(tmp_path, limit=5010)


def test_the_limit_is_95_mib(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(95 * 1024 * 1024 + 1)
    with pytest.raises(ContextError, match=r"at most 95\.0 MiB"):
        context.pack(tmp_path)


def test_a_single_file_and_includes(tmp_path: Path) -> None:
    tree(tmp_path, "model.py", "lib/a.py", "lib/__pycache__/a.py", "extra.txt")
    found = paths(tmp_path / "model.py", [tmp_path / "lib", tmp_path / "extra.txt"])
    assert found == ["extra.txt", "lib", "lib/a.py", "model.py"]
    assert paths(None, [tmp_path / "extra.txt"]) == ["extra.txt"]


def test_two_sources_of_one_path_are_refused(tmp_path: Path) -> None:
    one, two = tree(tmp_path / "one", "a.py"), tree(tmp_path / "two", "a.py")
    with pytest.raises(ContextError, match=r"'a\.py' would be sent twice"):
        context.pack(one, [two / "a.py"])


def test_missing_objects_are_named(tmp_path: Path) -> None:
    with pytest.raises(ContextError, match="missing: no such file"):
        context.pack(tmp_path / "missing")


@pytest.mark.parametrize(
    ("name", "content", "mode"),
    [
        ("startup-hook.sh", b"export X=1\r\n", 0o644),
        ("run", b"#!/usr/bin/env bash\r\necho\r\n", 0o644),
        ("tool", b"#!/usr/bin/env python3\r\n", 0o755),
    ],
)
def test_scripts_with_the_line_ends_of_windows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: bytes, mode: int
) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / name).chmod(mode)
    (tmp_path / "train.py").write_bytes(b"#!/usr/bin/env python3\r\nprint()\r\n")
    (tmp_path / "unix.sh").write_bytes(b"#!/bin/sh\necho 'a\\r'\n")
    assert len(context.pack(tmp_path)) == 3
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{name}: the lines end in CR LF, as on Windows, ")


def test_many_scripts_of_windows_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5):
        (tmp_path / f"{number}.sh").write_bytes(b"true\r\n")
    context.pack(tmp_path)
    assert caplog.messages[0].startswith("0.sh, 1.sh, 2.sh and 2 more: ")


def test_secrets_are_left_out_and_named_unless_the_user_decides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tree(tmp_path / "m", "train.py", "env.py", ".env", "sub/.env.local", ".envs/prod/key")
    assert paths(root) == ["env.py", "sub", "train.py"]
    (record,) = caplog.records
    assert record.getMessage() == (
        ".env, .envs, sub/.env.local: not sent, because such files often hold passwords; in .detignore, a "
        "line !.env sends it, a line .env ends this warning"
    )
    caplog.clear()
    # A file or rules named explicitly are intended.
    assert paths(tmp_path / "m/env.py", [root / ".env"]) == [".env", "env.py"]
    (root / ".detignore").write_text("!.env\n.envs\n.env.*\n")
    assert paths(root) == [".detignore", ".env", "env.py", "sub", "train.py"]
    assert not caplog.records
    # The rules also apply to an included directory.
    (root / ".detignore").unlink()
    assert paths(None, [root]) == ["m", "m/env.py", "m/sub", "m/train.py"]
    assert caplog.records[0].getMessage().startswith("m/.env, m/.envs, m/sub/.env.local: not sent")

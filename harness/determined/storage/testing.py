"""The tests that every checkpoint storage must pass; needs pytest.

Subclass, give a ``manager`` fixture (an empty storage), and a ``tamper`` fixture (storage id, path,
bytes → overwrite or, with None, remove that stored file behind the manager's back)::

    class TestMine(StorageContract):
        @pytest.fixture
        def manager(self, tmp_path): return MyStorageManager(...)
        @pytest.fixture
        def tamper(self, manager): ...
"""

from __future__ import annotations

import contextlib
import hashlib
import stat
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from determined import errors
from determined.storage.base import Manifest, StorageManager
from determined.storage.spans import Span

Tamper = Callable[[str, str, bytes | None], None]

TREE = {"weights.bin": b"\x00\x01" * 5000, "sub/deep/notes.txt": b"hello", "sub/empty.txt": b""}
RESOURCES = {**{path: len(data) for path, data in TREE.items()}, "sub/": 0, "sub/deep/": 0}


def write_tree(root: Path) -> None:
    """The files of TREE and an empty directory."""
    for path, data in TREE.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    (root / "hollow").mkdir()


def read_tree(root: Path) -> dict[str, bytes]:
    """Relative path → contents of the visible files below ``root``."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


class StorageContract:
    """One test per promise of :class:`StorageManager`."""

    @pytest.fixture
    def storage_id(self) -> str:
        return str(uuid.uuid4())

    @pytest.fixture
    def stored(self, manager: StorageManager, storage_id: str) -> str:
        with manager.store(storage_id) as staging:
            write_tree(staging.path)
        return storage_id

    def test_validate(self, manager: StorageManager) -> None:
        manager.validate()

    def test_store_then_download(
        self, manager: StorageManager, stored: str, tmp_path: Path
    ) -> None:
        copied = manager.download(stored, tmp_path / "copy")
        assert read_tree(tmp_path / "copy") == TREE
        assert copied == {**RESOURCES, "hollow/": 0}
        assert (tmp_path / "copy" / "hollow").is_dir()

    def test_manifest_has_sizes_and_checksums(self, manager: StorageManager, stored: str) -> None:
        manifest = manager.manifest(stored)
        assert dict(manifest.resources) == {**RESOURCES, "hollow/": 0}
        expected = {p: "sha256:" + hashlib.sha256(data).hexdigest() for p, data in TREE.items()}
        assert dict(manifest.checksums) == expected

    def test_read_gives_any_bytes(self, manager: StorageManager, stored: str) -> None:
        weights = TREE["weights.bin"]
        spans = [Span("sub/deep/notes.txt", 1, 4), Span("weights.bin", 7, len(weights))]
        spans += [Span("sub/empty.txt", 0, 0), Span("sub/deep/notes.txt", 0, 5)]
        assert b"".join(manager.read(stored, spans)) == b"ell" + weights[7:] + b"hello"
        assert b"".join(manager.read(stored, [])) == b""

    @pytest.mark.parametrize("path", ["../x", "/etc/hostname", "sub/../../x", "nothing", ""])
    def test_read_gives_the_checkpoints_files_only(
        self, manager: StorageManager, stored: str, path: str
    ) -> None:
        with pytest.raises(errors.StorageError):
            list(manager.read(stored, [Span(path, 0, 1)]))

    def test_read_of_what_is_not_there_any_more(
        self, manager: StorageManager, stored: str, tamper: Tamper
    ) -> None:
        with pytest.raises(errors.CheckpointNotFound):
            list(manager.read(str(uuid.uuid4()), [Span("weights.bin", 0, 1)]))
        with pytest.raises(errors.CheckpointCorrupted):
            list(manager.read(stored, [Span("sub/deep/notes.txt", 0, 6)]))
        tamper(stored, "sub/deep/notes.txt", None)
        with pytest.raises(errors.CheckpointCorrupted):
            list(manager.read(stored, [Span("sub/deep/notes.txt", 0, 5)]))

    def test_restore_path_has_the_files(self, manager: StorageManager, stored: str) -> None:
        with manager.restore_path(stored) as path:
            assert read_tree(path) == TREE

    def test_upload_selected_files_and_extra_ones(
        self, manager: StorageManager, storage_id: str, tmp_path: Path
    ) -> None:
        source = tmp_path / "source"
        write_tree(source)
        (source / "link.txt").symlink_to(source / "sub/deep/notes.txt")
        manifest = manager.upload(
            source, storage_id, lambda path: path.endswith(".txt"), {"metadata.json": b"{}"}
        )
        expected = {k: v for k, v in TREE.items() if k.endswith(".txt")}
        manager.download(storage_id, tmp_path / "copy")
        assert read_tree(tmp_path / "copy") == {
            **expected,
            "link.txt": b"hello",
            "metadata.json": b"{}",
        }
        assert "hollow/" not in manifest.resources
        assert read_tree(source).keys() == {*TREE, "link.txt"}

    def test_programs_stay_executable(
        self, manager: StorageManager, storage_id: str, tmp_path: Path
    ) -> None:
        programs = {"run.sh", "sub/deep/tool", "link", "large"}
        names = ("run.sh", "sub/deep/tool", "plain.txt")

        def write(root: Path) -> None:
            write_tree(root)
            for name in names:
                (root / name).write_text(name)
            (root / "large").write_bytes(b"x" * (9 << 20))
            (root / "run.sh").chmod(0o4755)
            (root / "sub/deep/tool").chmod(0o700)
            (root / "large").chmod(0o744)
            (root / "link").symlink_to("run.sh")

        def executable(root: Path) -> set[str]:
            found = {path for path in root.rglob("*") if path.is_file()}
            assert not any(path.stat().st_mode & 0o7000 for path in found)
            return {
                path.relative_to(root).as_posix()
                for path in found
                if path.stat().st_mode & stat.S_IXUSR
            }

        write(tmp_path / "source")
        manifest = manager.upload(tmp_path / "source", storage_id, None, {"metadata.json": b"{}"})
        other = str(uuid.uuid4())
        with manager.store(other) as staging:
            write(staging.path)
        for stored in (storage_id, other):
            assert manifest.executable == manager.manifest(stored).executable == programs
            manager.download(stored, tmp_path / stored)
            assert executable(tmp_path / stored) == programs
            with manager.restore_path(stored) as path:
                assert executable(path) >= programs - {"run.sh"}
        # As a leg's supervisor leaves it for the training process.
        manager.copies = tmp_path / "copies"
        manager.verify(storage_id, Manifest(manifest.resources, manifest.checksums))
        manager.download(storage_id, tmp_path / "again")
        assert executable(tmp_path / "again") == programs
        manager.delete(storage_id, ["run.sh"])
        assert manager.manifest(storage_id).executable == programs - {"run.sh"}
        manager.download(storage_id, tmp_path / "rest")
        assert executable(tmp_path / "rest") == programs - {"run.sh"}

    def test_upload_of_a_missing_directory(
        self, manager: StorageManager, storage_id: str, tmp_path: Path
    ) -> None:
        with pytest.raises(errors.StorageError, match="nowhere"):
            manager.upload(tmp_path / "nowhere", storage_id)
        with pytest.raises(errors.CheckpointNotFound):
            manager.manifest(storage_id)

    def test_download_selected(self, manager: StorageManager, stored: str, tmp_path: Path) -> None:
        seen: list[str] = []

        def only_weights(path: str) -> bool:
            seen.append(path)
            return path == "weights.bin"

        assert manager.download(stored, tmp_path / "copy", only_weights) == {"weights.bin": 10000}
        assert read_tree(tmp_path / "copy").keys() == {"weights.bin"}
        assert set(seen) == {*RESOURCES, "hollow/"}

    def test_an_exception_leaves_no_checkpoint(
        self, manager: StorageManager, storage_id: str, tmp_path: Path
    ) -> None:
        class Boom(Exception):
            pass

        with pytest.raises(Boom), manager.store(storage_id) as staging:
            write_tree(staging.path)
            raise Boom
        assert not staging.path.exists()
        with pytest.raises(errors.CheckpointNotFound):
            manager.download(storage_id, tmp_path / "copy")

    def test_links_are_followed(
        self, manager: StorageManager, storage_id: str, tmp_path: Path
    ) -> None:
        write_tree(tmp_path / "mine")
        with manager.store(storage_id) as staging:
            (staging.path / "weights").write_bytes(b"w")
            (staging.path / "newest").symlink_to(staging.path / "weights")
            (staging.path / "same").symlink_to("weights")
            (staging.path / "tokenizer").symlink_to(tmp_path / "mine")
            (staging.path / "notes.txt").symlink_to(tmp_path / "mine/sub/deep/notes.txt")
        # The source files still exist, and their owner may change them.
        assert read_tree(tmp_path / "mine") == TREE
        (tmp_path / "mine/sub/deep/notes.txt").write_bytes(b"other")
        manager.download(storage_id, tmp_path / "copy")
        assert read_tree(tmp_path / "copy") == {
            **dict.fromkeys(["weights", "newest", "same"], b"w"),
            **{f"tokenizer/{path}": data for path, data in TREE.items()},
            "notes.txt": b"hello",
        }
        assert not any(path.is_symlink() for path in (tmp_path / "copy").rglob("*"))

    def test_nothing_is_there_before_the_block_ends(
        self, manager: StorageManager, storage_id: str
    ) -> None:
        with manager.store(storage_id) as staging:
            write_tree(staging.path)
            with pytest.raises(errors.CheckpointNotFound):
                manager.manifest(storage_id)
        assert manager.manifest(storage_id).resources

    def test_several_write_one_checkpoint(
        self, manager: StorageManager, storage_id: str, tmp_path: Path
    ) -> None:
        manager.owner = "c.7.a.1"
        manager.begin(storage_id)
        write_tree(tmp_path)
        with manager.stage(storage_id, "1") as path, manager.stage(storage_id, "2") as other:
            (path / "sub").mkdir()
            (path / "sub" / "one").write_text("1")
            (other / "left out").write_text("x")
            whole = manager.add(storage_id, path, ["sub/", "sub/one"])
            whole |= manager.add(storage_id, other, [], {"extra/two": b"22"})
        whole |= manager.add(storage_id, tmp_path, ["sub/", "sub/deep/notes.txt"])
        with pytest.raises(errors.CheckpointNotFound):
            manager.manifest(storage_id)
        more = Manifest({**whole.resources, "missing": 1}, whole.checksums)
        with pytest.raises(errors.StorageError, match="missing"):
            manager.finish(storage_id, more)
        manager.finish(storage_id, whole)
        assert manager.manifest(storage_id) == whole
        manager.verify(storage_id)
        manager.download(storage_id, tmp_path / "copy")
        assert read_tree(tmp_path / "copy") == {
            "sub/one": b"1",
            "extra/two": b"22",
            "sub/deep/notes.txt": b"hello",
        }
        # An abort is for one that is not finished, and may be repeated.
        other_id = str(uuid.uuid4())
        manager.begin(other_id)
        manager.add(other_id, tmp_path, ["weights.bin"])
        for _ in range(2):
            manager.abort(other_id)
        manager.reported(storage_id)
        assert manager.sweep("c.7.", lambda found: []) == []

    def test_unknown_checkpoints(self, manager: StorageManager, tmp_path: Path) -> None:
        for storage_id in (str(uuid.uuid4()), "../etc", "", ".hidden"):
            with pytest.raises(errors.CheckpointNotFound):
                manager.download(storage_id, tmp_path / "copy")
            with pytest.raises(errors.CheckpointNotFound), manager.restore_path(storage_id):
                pass

    @pytest.mark.parametrize("content", [b"\x01\x00" * 5000, b"short", None])
    def test_changed_files_are_noticed(
        self,
        manager: StorageManager,
        stored: str,
        tamper: Tamper,
        tmp_path: Path,
        content: bytes | None,
    ) -> None:
        tamper(stored, "weights.bin", content)
        with pytest.raises(errors.CheckpointCorrupted, match=r"weights\.bin"):
            manager.download(stored, tmp_path / "copy")
        assert not (tmp_path / "copy" / "weights.bin").exists()

    @pytest.mark.parametrize("content", [b"\x01\x00" * 5000, b"short", None])
    def test_verify_reads_every_byte(
        self, manager: StorageManager, stored: str, tamper: Tamper, content: bytes | None
    ) -> None:
        manager.verify(stored)
        known = manager.manifest(stored)
        manager.verify(stored, known)
        tamper(stored, "weights.bin", content)
        for expected in (None, known):
            with pytest.raises(errors.CheckpointCorrupted, match=r"weights\.bin"):
                manager.verify(stored, expected)
        manager.verify(stored, stop=lambda: True)

    def test_verify_of_a_checkpoint_that_is_gone(
        self, manager: StorageManager, stored: str, storage_id: str
    ) -> None:
        other = str(uuid.uuid4())
        with manager.store(other) as staging:
            write_tree(staging.path)
        manager.delete(storage_id)
        with pytest.raises(errors.CheckpointNotFound, match=storage_id):
            manager.verify(storage_id)
        # An empty storage is one that is not mounted: nothing can be said of the checkpoint.
        manager.delete(other)
        with pytest.raises(errors.StorageError) as caught:
            manager.verify(storage_id)
        assert type(caught.value) is errors.StorageError

    def test_delete_is_repeatable(self, manager: StorageManager, stored: str) -> None:
        assert manager.delete(stored) == {}
        assert manager.delete(stored) == {}
        assert manager.delete(stored, ["*"]) == {}
        with pytest.raises(errors.CheckpointNotFound):
            manager.manifest(stored)

    def test_delete_by_glob(self, manager: StorageManager, stored: str, tmp_path: Path) -> None:
        rest = manager.delete(stored, ["**/*.bin", "sub/deep"])
        assert rest == {"sub/": 0, "sub/empty.txt": 0, "hollow/": 0}
        assert manager.delete(stored, ["**/*.bin"]) == rest
        manager.download(stored, tmp_path / "copy")
        assert read_tree(tmp_path / "copy") == {"sub/empty.txt": b""}
        assert manager.delete(stored, ["**/*"]) == {}
        with pytest.raises(errors.CheckpointNotFound):
            manager.manifest(stored)

    def test_present_lists_stored_files_only(
        self, manager: StorageManager, stored: str, tamper: Tamper
    ) -> None:
        whole = {**RESOURCES, "hollow/": 0}
        assert manager.present(stored) == whole
        tamper(stored, "weights.bin", b"short")
        assert manager.present(stored) == {**whole, "weights.bin": 5}
        tamper(stored, "weights.bin", None)
        del whole["weights.bin"]
        assert manager.present(stored) == whole
        assert manager.present(stored) == whole  # nothing has changed by looking
        other = str(uuid.uuid4())
        with manager.store(other) as staging:
            write_tree(staging.path)
        manager.delete(stored)
        assert manager.present(stored) == {}
        # An empty storage is one that is not mounted: nothing can be said of the checkpoint.
        manager.delete(other)
        with pytest.raises(errors.StorageError):
            manager.present(stored)

    def test_a_restored_checkpoint_can_be_stored_again(
        self, manager: StorageManager, stored: str, storage_id: str
    ) -> None:
        again = str(uuid.uuid4())
        with manager.restore_path(stored) as path:
            manager.upload(path, again)
        assert manager.manifest(again) == manager.manifest(stored)

    def test_sweep_removes_what_an_owner_left(
        self, manager: StorageManager, tmp_path: Path
    ) -> None:
        def store(owner: str, *, finish: bool = True, tell: bool = False) -> str:
            name = str(uuid.uuid4())
            manager.owner = owner
            stack = contextlib.ExitStack()
            staging = stack.enter_context(manager.store(name))
            write_tree(staging.path)
            if finish:
                stack.close()
                if tell:
                    manager.reported(name)
            else:
                self.unfinished.append(stack)
            return name

        self.unfinished: list[contextlib.ExitStack] = []
        unfinished = store("c.7.a.1", finish=False)
        lost, known, told = store("c.7.a.2"), store("c.7.b.1"), store("c.7.b.1", tell=True)
        others, nobodys = store("c.77.a.1"), store("")
        assert manager.sweep("c.7.", lambda found: [], lambda: False) == []
        removed = manager.sweep("c.7.", lambda found: set(found) & {known})
        assert any(unfinished in name for name in removed)
        assert lost in removed
        assert len(removed) == 2
        with pytest.raises(errors.CheckpointNotFound):
            manager.manifest(lost)
        for name in (known, told, others, nobodys):
            manager.verify(name)
        assert manager.sweep("c.7.", lambda found: []) == []
        for stack in self.unfinished:
            with contextlib.suppress(errors.StorageError, OSError):
                stack.close()

    def test_discard(self, manager: StorageManager, tmp_path: Path) -> None:
        (tmp_path / "events").write_text("one")
        for key in ("c/tensorboard/7/events", "c/tensorboard/77/events"):
            manager.put(key, tmp_path / "events")
        for _ in range(2):
            manager.discard("c/tensorboard/7")
        with pytest.raises(errors.StorageError):
            manager.discard("../events")
        assert (tmp_path / "events").exists()

    def test_fetch(self, manager: StorageManager, tmp_path: Path) -> None:
        for name, text in {"a/events": "one", "a/b/events": "two", "aa/events": "other"}.items():
            (tmp_path / "events").write_text(text)
            manager.put(f"c/tensorboard/{name}", tmp_path / "events")
        target = tmp_path / "target"
        assert manager.fetch("c/tensorboard/nothing", target) == []
        for _ in range(2):
            assert sorted(manager.fetch("c/tensorboard/a", target)) == ["b/events", "events"]
        (tmp_path / "events").write_text("longer")
        manager.put("c/tensorboard/a/events", tmp_path / "events")
        manager.fetch("c/tensorboard/a", target)
        assert (target / "events").read_text() == "longer"
        # Files grow in place: programs that have one open see the new data.
        with (target / "events").open() as opened:
            opened.read()
            (tmp_path / "events").write_text("longer yet")
            manager.put("c/tensorboard/a/events", tmp_path / "events")
            manager.fetch("c/tensorboard/a", target, lambda name, more: False)
            assert opened.read() == ""
            manager.fetch("c/tensorboard/a", target, lambda name, more: more == 4)
            assert opened.read() == " yet"
        assert (target / "b/events").read_text() == "two"
        with pytest.raises(errors.StorageError):
            manager.fetch("../outside", target)

    def test_put_replaces(self, manager: StorageManager, tmp_path: Path) -> None:
        for text in ("one", "two"):
            (tmp_path / "events").write_text(text)
            manager.put("cluster/tensorboard/events", tmp_path / "events")
        with pytest.raises(errors.StorageError):
            manager.put("../outside", tmp_path / "events")

    def test_put_may_take_the_source(self, manager: StorageManager, tmp_path: Path) -> None:
        key = "cluster/tensorboard/events"
        for text in ("one", "two"):
            (tmp_path / "events").write_text(text)
            manager.put(key, tmp_path / "events", move=True)
            assert manager.fetch("cluster/tensorboard", tmp_path / text) == ["events"]
            assert (tmp_path / text / "events").read_text() == text

"""Small files of a checkpoint in packs: storing, reading, deleting, and the leftovers of a crash."""

from __future__ import annotations

import io
import itertools
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from determined import errors
from determined.storage import Manifest, contents, packs, sending
from determined.storage.files import MANIFEST
from determined.storage.objects import ObjectStorageManager
from tests.unit.core.memory_blobs import Killed, Memory, contents_of, store

FILES = {f"part-{number:03}": bytes([number]) * (100 + number) for number in range(50)}


@pytest.fixture
def blobs() -> Memory:
    return Memory()


@pytest.fixture
def manager(blobs: Memory) -> ObjectStorageManager:
    return ObjectStorageManager(blobs, "p", pack_small_files=True)


def own_objects(blobs: Memory, name: str = "c") -> set[str]:
    return {key.removeprefix(f"p/{name}/") for key in blobs.sizes(f"p/{name}/")} - {MANIFEST}


@pytest.mark.parametrize(
    "names",
    [["a", "b"], ["x" * 99, "y" * 100, "z" * 300 + "/w"], ["größe", "a/b/c", "a/b/d" * 30]],
)
def test_every_member_lies_where_the_index_says(names: list[str]) -> None:
    given = {name: os.urandom(size) for name, size in zip(names, (0, 512, 700), strict=False)}
    file = io.BytesIO()
    pack = packs.write(file, given.items())
    content = file.getvalue()
    assert pack.size == len(content)
    for name, data in given.items():
        start = pack.members[name]
        assert content[start : start + len(data)] == data
    # As `tar` sees it.
    with tarfile.open(fileobj=io.BytesIO(content), mode="r|") as archive:
        assert [info.name for info in archive] == list(given)
    assert packs.Pack.from_json({"size": pack.size, "members": dict(pack.members)}) == pack


def test_no_pack_is_larger_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK_BYTES", 64 << 10)
    monkeypatch.setattr(packs, "SMALL_BYTES", 20_000)
    sizes = {f"{'n' * 150}-{number:03}": 517 * (number % 40) for number in range(299)}
    groups = packs.grouped(sizes)
    packed = sorted(itertools.chain.from_iterable(groups))
    assert packed == sorted(path for path, size in sizes.items() if size < 20_000)
    for group in groups:
        assert packs.write(io.BytesIO(), ((path, bytes(sizes[path])) for path in group)).size <= (
            64 << 10
        )


def test_a_file_that_would_be_alone_is_not_packed() -> None:
    assert packs.grouped({"metadata.json": 20, "weights": packs.SMALL_BYTES}) == []


def test_small_files_are_few_objects(
    manager: ObjectStorageManager, blobs: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "SMALL_BYTES", 5000)
    monkeypatch.setattr(sending, "LARGE_BYTES", 6000)
    large = {"weights": bytes(5000), "sub/more": bytes(9000)}
    manifest = store(manager, "c", FILES | large)
    (pack,) = manifest.packs
    assert own_objects(blobs) == {pack, *large}
    assert dict(manifest.resources) == {
        **{path: len(data) for path, data in (FILES | large).items()},
        "sub/": 0,
    }
    assert manifest.checksums.keys() == (FILES | large).keys()
    assert Manifest.from_json(manifest.to_json(), "here").packs == manifest.packs
    assert contents_of(manager, "c", tmp_path / "copy") == FILES | large
    # One request for each object: adjacent files are read together.
    assert len(blobs.reads) == 1 + 3
    manager.verify("c")
    manager.verify("c", Manifest(manifest.resources, manifest.checksums))


def test_a_selector_reads_only_selected_files(
    manager: ObjectStorageManager, blobs: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "GAP_BYTES", 2000)
    given = {f"f{number}": os.urandom(10_000) for number in range(20)}
    store(manager, "c", given)
    blobs.reads.clear()
    wanted = {"f3", "f12", "f13"}
    manager.download("c", tmp_path, wanted.__contains__)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path: given[path] for path in wanted
    }
    read = [size for key, size in blobs.reads if key.endswith(".tar")]
    # f12 and f13 lie side by side, a header between them.
    assert sorted(read)[0] == 10_000
    assert len(read) == 2
    assert sum(read) < 33_000


def test_several_writers_have_separate_packs(
    manager: ObjectStorageManager, blobs: Memory, tmp_path: Path
) -> None:
    manager.begin("c")
    whole = Manifest({}, {})
    for rank in range(3):
        folder = tmp_path / str(rank)
        folder.mkdir()
        names = [path for path in FILES if int(path[-3:]) % 3 == rank]
        for name in names:
            (folder / name).write_bytes(FILES[name])
        whole |= manager.add("c", folder, names)
    manager.finish("c", whole)
    assert own_objects(blobs) == set(whole.packs)
    assert len(whole.packs) == 3
    assert contents_of(manager, "c", tmp_path / "copy") == FILES
    lost = Manifest(whole.resources, whole.checksums, dict(list(whole.packs.items())[:2]))
    with pytest.raises(errors.StorageError, match=r"part-002 was written with .* is missing"):
        manager.finish("c", lost)


def test_reads_depend_on_present_files(blobs: Memory, tmp_path: Path) -> None:
    for packed in (True, False):
        name = f"packed-{packed}"
        store(ObjectStorageManager(blobs, "p", packed), name, FILES)
        other = ObjectStorageManager(blobs, "p", not packed)
        other.verify(name)
        assert contents_of(other, name, tmp_path / name) == FILES
        left = other.delete(name, ["part-00?"])
        assert left.keys() == {path for path in FILES if not path.startswith("part-00")}
        other.verify(name)


def test_a_deletion_leaves_no_trace(
    manager: ObjectStorageManager, blobs: Memory, tmp_path: Path
) -> None:
    given = {f"f{number}": os.urandom(1000) for number in range(6)}
    before = store(manager, "c", given)
    manager.delete("c", ["f[0-3]"])
    assert not any(given["f2"] in data for data in blobs.objects.values())
    manifest = manager.manifest("c")
    assert own_objects(blobs) == set(manifest.packs)
    assert manifest.packs.keys() != before.packs.keys()
    assert contents_of(manager, "c", tmp_path / "copy") == {
        path: given[path] for path in ("f4", "f5")
    }
    manager.delete("c", ["f4"])
    manager.verify("c")
    manager.delete("c", ["f5"])
    assert blobs.sizes("") == {}


# The new pack, the manifest, the old pack, the large file, done.
@pytest.mark.parametrize("dies_at", range(5))
def test_a_deletion_that_is_killed_loses_nothing_that_was_to_stay(
    manager: ObjectStorageManager,
    blobs: Memory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dies_at: int,
) -> None:
    monkeypatch.setattr(packs, "SMALL_BYTES", 5000)
    (old,) = store(manager, "c", FILES | {"weights": bytes(5000)}).packs
    stay = {path: data for path, data in FILES.items() if path >= "part-025"}
    globs = ["part-00?", "part-01?", "part-02[0-4]", "weights"]
    blobs.dies_at = dies_at
    if dies_at < 4:
        with pytest.raises(Killed):
            manager.delete("c", globs)
    else:
        manager.delete("c", globs)
    blobs.dies_at = None
    manager.verify("c")
    found = contents_of(manager, "c", tmp_path / "killed")
    assert found.items() >= stay.items()
    # Another one finds the rest.
    assert manager.delete("c", globs).keys() == stay.keys()
    manager.verify("c")
    assert contents_of(manager, "c", tmp_path / "after") == stay
    assert own_objects(blobs) == set(manager.manifest("c").packs)
    assert old not in own_objects(blobs)


def test_damage_in_a_pack(manager: ObjectStorageManager, blobs: Memory, tmp_path: Path) -> None:
    manifest = store(manager, "c", FILES)
    name, start = manifest.members()["part-007"]
    key = f"p/c/{name}"
    whole = blobs.objects[key]
    blobs.objects[key] = whole[:start] + b"!" + whole[start + 1 :]
    with pytest.raises(errors.CheckpointCorrupted, match=r"c/part-007: the contents have changed"):
        manager.verify("c")
    manager.download("c", tmp_path, lambda path: path != "part-007")
    blobs.objects[key] = whole[:-1]
    with pytest.raises(
        errors.CheckpointCorrupted,
        match=rf"{name} has .* were stored; in it lie part-000, .*, part-004 and 45 more",
    ):
        manager.verify("c")
    # The whole checkpoint can be deleted all the same.
    del blobs.objects[key]
    manager.delete("c")
    assert blobs.objects == {}


@pytest.mark.parametrize(
    "packs_", [[], {"x": 3}, {"x": {"size": 1}}, {"x": {"size": 1, "members": 3}}]
)
def test_a_damaged_index(manager: ObjectStorageManager, blobs: Memory, packs_: Any) -> None:
    store(manager, "c", FILES)
    text = blobs.objects[f"p/c/{MANIFEST}"].decode()
    start = text.index('"packs"')
    blobs.objects[f"p/c/{MANIFEST}"] = f'{text[:start]}"packs": {packs_!r}}}'.replace(
        "'", '"'
    ).encode()
    if packs_ == []:
        # Without packing these files must be objects.
        with pytest.raises(errors.CheckpointCorrupted, match="part-000 is missing"):
            manager.verify("c")
    else:
        with pytest.raises(errors.CheckpointCorrupted, match="is damaged"):
            manager.verify("c")


CHECKPOINT = "5c0b3f0e-6a0f-4b3b-9d57-1f7a55b0c1aa"


@pytest.mark.parametrize("dies_at", range(4))
def test_a_killed_upload_leaves_no_checkpoint(
    manager: ObjectStorageManager, blobs: Memory, dies_at: int
) -> None:
    manager.owner = "c.7"
    blobs.dies_at = dies_at
    if dies_at < 3:  # the note, the pack, the manifest
        with pytest.raises(Killed):
            store(manager, CHECKPOINT, FILES)
    else:
        store(manager, CHECKPOINT, FILES)
    blobs.dies_at = None
    if dies_at < 3:
        with pytest.raises(errors.CheckpointNotFound):
            manager.manifest(CHECKPOINT)
    else:
        manager.verify(CHECKPOINT)
    manager.sweep("c.7", lambda found: [])
    assert blobs.objects == {}

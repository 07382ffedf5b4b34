"""The contract of checkpoint storages, over real object servers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from determined import storage
from determined.storage.base import StorageManager
from determined.storage.blobs import BlobClient
from determined.storage.files import MANIFEST
from determined.storage.objects import ObjectStorageManager
from determined.storage.testing import TREE, StorageContract, Tamper, write_tree
from tests import object_servers
from tests.object_servers import Server


class ObjectContract(StorageContract):
    @pytest.fixture
    def tamper(self, manager: ObjectStorageManager) -> Tamper:
        def change(storage_id: str, path: str, content: bytes | None) -> None:
            manifest = manager.manifest(storage_id)
            name, start = manifest.members().get(path, (path, 0))
            key = manager._folder(storage_id) + name
            if content is None:
                manager.blobs.delete([key])
            else:
                whole = manager.blobs.get(key)
                end = start + manifest.resources[path]
                manager.blobs.put(key, whole[:start] + content + whole[end:])

        return change


class PackedContract(ObjectContract):
    """Small files go into packs; reads follow the present files."""

    @pytest.fixture(autouse=True)
    def packed(self, manager: ObjectStorageManager) -> None:
        manager._pack_small_files = True

    def test_present_lists_stored_files_only(
        self, manager: StorageManager, stored: str, tamper: Tamper
    ) -> None:
        """A file is deleted with its pack; the pack's contents are not checked."""
        manifest = manager.manifest(stored)
        assert manager.present(stored) == dict(manifest.resources)
        members = manifest.members()
        pack, _ = members["weights.bin"]
        with manager.store(str(uuid.uuid4())) as staging:
            write_tree(staging.path)
        tamper(stored, "weights.bin", None)
        left = {
            name: size
            for name, size in manifest.resources.items()
            if name not in members or members[name][0] != pack
        }
        only_directories = all(name.endswith("/") for name in left)
        assert manager.present(stored) == ({} if only_directories else left)

    def test_small_files_lie_in_packs(self, manager: ObjectStorageManager, stored: str) -> None:
        manifest = manager.manifest(stored)
        (pack,) = manifest.packs
        assert set(manifest.members()) == set(TREE)
        folder = manager._folder(stored)
        assert set(manager.blobs.sizes(folder)) == {
            folder + name for name in (pack, "hollow/", MANIFEST)
        }


@pytest.fixture(scope="module")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with object_servers.gcs_emulator(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(scope="module")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    program = object_servers.azurite_program()
    with object_servers.azurite(tmp_path_factory.mktemp("azurite"), program) as server:
        yield server


class TestS3(ObjectContract):
    @pytest.fixture
    def manager(self, s3_blobs: BlobClient) -> storage.StorageManager:
        return ObjectStorageManager(s3_blobs, f"/a/{uuid.uuid4().hex}/")


class TestGCS(ObjectContract):
    @pytest.fixture
    def manager(
        self, gcs_server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> storage.StorageManager:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_server.url)
        prefix = uuid.uuid4().hex
        return storage.build({"type": "gcs", "bucket": "checkpoints", "prefix": prefix})


class TestAzure(ObjectContract):
    @pytest.fixture
    def manager(self, azure_server: Server) -> storage.StorageManager:
        from azure.storage.blob import ContainerClient

        connection = object_servers.azure_connection_string(azure_server)
        container = uuid.uuid4().hex
        ContainerClient.from_connection_string(connection, container).create_container()
        return storage.build(
            {"type": "azure", "container": container, "connection_string": connection}
        )


class TestPackedS3(PackedContract, TestS3):
    pass


class TestPackedGCS(PackedContract, TestGCS):
    pass


class TestPackedAzure(PackedContract, TestAzure):
    pass

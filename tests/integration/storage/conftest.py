"""Object storages for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from determined.storage.blobs import BlobClient
from determined.storage.s3 import S3StorageManager
from tests.object_servers import Server, moto, s3_section
from tests.programs.legs.conftest import legs, service  # noqa: F401 (fixtures)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_blobs(s3_server: Server) -> BlobClient:
    """A bucket; making a client takes longer than most tests."""
    return S3StorageManager.from_config(s3_section(s3_server)).blobs

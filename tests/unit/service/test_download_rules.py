"""The storages that the service opens for downloads, and the bytes of a request."""

from __future__ import annotations

from typing import Any

import pytest

from determined.expconf.problems import MASK
from determined_service.base.refusals import Forbidden
from determined_service.downloads import layout
from determined_service.downloads.layout import Range
from determined_service.downloads.permitted import require_permitted

HERE = {"type": "shared_fs", "host_path": "/data", "storage_path": "checkpoints"}
IN_MINIO = {"type": "s3", "bucket": "b", "endpoint_url": "http://minio:9000", "prefix": "a/b"}
IN_AWS = {"type": "s3", "bucket": "b"}
KEYS = {"access_key": "id", "secret_key": "key"}
IN_GOOGLE = {"type": "gcs", "bucket": "b", "prefix": "p"}
IN_AZURE = {"type": "azure", "container": "c", "connection_string": "AccountName=x"}

Section = dict[str, Any]


@pytest.mark.parametrize(
    ("section", "own"),
    [
        (HERE, HERE),
        (HERE | {"storage_path": "checkpoints/alice", "save_trial_best": 3}, HERE),
        (HERE | {"storage_path": "/data/./checkpoints"}, HERE),
        ({"type": "shared_fs", "host_path": "/data/checkpoints"}, HERE),
        (HERE, {"type": "shared_fs", "host_path": "/data"}),
        (
            {"type": "directory", "container_path": "/d"},
            {"type": "directory", "container_path": "/d/"},
        ),
        (IN_MINIO, IN_MINIO),
        (IN_MINIO | KEYS, IN_MINIO | {"prefix": "/a/"}),
        (IN_AWS, IN_AWS | {"prefix": None, "endpoint_url": ""}),
        (IN_AWS | KEYS | {"bucket": "my-own.bucket"}, HERE),
        (IN_AWS | KEYS | {"bucket": "my-own.bucket"}, None),
        (IN_GOOGLE, IN_GOOGLE | {"prefix": ""}),
        (IN_AZURE, IN_AZURE),
    ],
)
def test_permitted(section: Section, own: Section | None) -> None:
    require_permitted(section, own)


@pytest.mark.parametrize(
    ("section", "own"),
    [
        # Files that the service's account may read, and its users may not.
        ({"type": "shared_fs", "host_path": "/"}, HERE),
        ({"type": "shared_fs", "host_path": "/data"}, HERE),
        ({"type": "shared_fs", "host_path": "/data/checkpoints2"}, HERE),
        (HERE | {"storage_path": "checkpoints/../.."}, HERE),
        (HERE | {"storage_path": "/etc"}, HERE),
        (HERE | {"host_path": "data"}, HERE),
        (HERE, None),
        (HERE, IN_MINIO),
        ({"type": "directory", "container_path": "/data/checkpoints"}, HERE),
        ({"type": "directory", "container_path": "/root"}, {"type": "directory"}),
        # Servers that the service reaches, and the identity of its machine.
        (IN_MINIO | {"endpoint_url": "http://169.254.169.254"}, IN_MINIO),
        (IN_MINIO | KEYS, IN_AWS),
        (IN_MINIO | KEYS, None),
        (IN_AWS, IN_MINIO),
        (IN_AWS, HERE),
        (IN_AWS | {"access_key": "id"}, HERE),
        (IN_AWS | KEYS | {"bucket": "arn:aws:s3:us-east-1:1:accesspoint/x"}, HERE),
        (IN_AWS | KEYS | {"bucket": "b/../c"}, HERE),
        (IN_MINIO | {"prefix": "a"}, IN_MINIO),
        (IN_MINIO | {"prefix": "a/bc"}, IN_MINIO),
        (IN_MINIO | {"prefix": "a/b/../c"}, IN_MINIO),
        (IN_GOOGLE | {"bucket": "other"}, IN_GOOGLE),
        (IN_GOOGLE | {"prefix": "other"}, IN_GOOGLE),
        (IN_GOOGLE, None),
        (IN_AZURE | {"connection_string": "BlobEndpoint=http://10.0.0.1"}, IN_AZURE),
        ({"type": "azure", "container": "c", "account_url": "http://10.0.0.1"}, IN_AZURE),
        ({"type": "hdfs", "hdfs_url": "http://x", "hdfs_path": "/"}, HERE),
        ({"type": "hdfs", "hdfs_url": "http://x"}, {"type": "hdfs", "hdfs_url": "http://x"}),
    ],
)
def test_refused(section: Section, own: Section | None) -> None:
    with pytest.raises(Forbidden, match="--mode direct"):
        require_permitted(section, own, "checkpoint x")


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (None, "not known"),
        ({}, "not known"),
        ({"type": "own"}, "only the training code"),
        (IN_AWS | {"access_key": MASK, "secret_key": MASK}, "only its owner and administrators"),
    ],
)
def test_refused_for_another_reason(section: Section | None, said: str) -> None:
    with pytest.raises(Forbidden, match=said):
        require_permitted(section, IN_AWS)


RESOURCES = {"b": 5, "a/": 0, "a/x": 3, "a-": 0, "z": 2}


def test_files_follow_one_another() -> None:
    found = layout.files(RESOURCES, {"z": "sha256:00"}, ["a/x", "a file that was deleted"])
    assert found == [
        ("a-", 0, 0, None, False),
        ("a/x", 3, 0, None, True),
        ("b", 5, 3, None, False),
        ("z", 2, 8, "sha256:00", False),
    ]
    assert layout.directories(RESOURCES) == ["a/"]


def test_spans_of_every_range() -> None:
    contents = {"a-": b"", "a/x": b"012", "b": b"34567", "z": b"89"}
    whole = b"0123456789"
    every = layout.files(RESOURCES, {}, [])
    for start in range(10):
        for end in range(start + 1, 11):
            found = layout.spans(every, Range(start, end))
            parts = [contents[path][first:last] for path, first, last in found]
            assert b"".join(parts) == whole[start:end]


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, None),
        ("", None),
        ("bytes=0-", Range(0, 10)),
        ("bytes=3-", Range(3, 10)),
        ("bytes=3-3", Range(3, 4)),
        ("bytes= 3 - 99", Range(3, 10)),
        ("bytes=-4", Range(6, 10)),
        ("bytes=-40", Range(0, 10)),
        # Fields that a server may ignore.
        ("bytes=5-4", None),
        ("bytes=0-1,3-4", None),
        ("lines=0-1", None),
        ("bytes=-", None),
        (f"bytes=0-{'9' * 19}", None),
    ],
)
def test_ranges(header: str | None, found: Range | None) -> None:
    assert layout.read_range(header, 10) == found


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-12", "bytes=-0"])
def test_ranges_of_nothing(header: str) -> None:
    with pytest.raises(ValueError, match="10 bytes"):
        layout.read_range(header, 10)

"""The address of the service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from determined.common import master
from determined.common.master import AddressSource


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("localhost", "http://localhost:8080"),
        ("localhost:9000", "http://localhost:9000"),
        ("http://host", "http://host:80"),
        ("https://host", "https://host:443"),
        ("https://host:8443/", "https://host:8443"),
        ("http://host:1/det/", "http://host:1/det"),
        ("[::1]:9", "http://[::1]:9"),
        (" 10.0.0.1 ", "http://10.0.0.1:8080"),
    ],
)
def test_addresses_are_completed(given: str, expected: str) -> None:
    assert master.canonical(given) == expected


@pytest.mark.parametrize("given", ["ftp://host", "http://", "http://host:port", ":"])
def test_an_invalid_address_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        master.canonical(given)


def record(directory: Path, url: str) -> None:
    directory.mkdir()
    fields = {
        "cluster_id": "c",
        "cluster_name": "n",
        "master_url": url,
        "prefect_url": "http://127.0.0.1:2",
        "passwords": {"determined": "pw"},
        "prefect_auth": None,
    }
    (directory / "cluster.json").write_text(json.dumps(fields))


def test_the_order(clean_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert master.find() == master.MasterAddress("http://localhost:8080", AddressSource.DEFAULT)

    record(clean_home / "data", "http://127.0.0.1:7777")
    found = master.find()
    assert (found.url, found.source) == ("http://127.0.0.1:7777", AddressSource.LOCAL_CLUSTER)
    assert found.local is not None
    assert not found.chosen

    monkeypatch.setenv("DET_MASTER_ADDR", "addr")
    assert master.find().url == "http://addr:8080"
    monkeypatch.setenv("DET_MASTER", "host:1")
    found = master.find()
    assert (found.url, found.source, found.local) == (
        "http://host:1",
        AddressSource.ENVIRONMENT,
        None,
    )
    assert found.chosen

    found = master.find("127.0.0.1:7777")
    assert found.source is AddressSource.ARGUMENT
    # Even if named by its address, it is the local cluster, with automatic login.
    assert found.local is not None

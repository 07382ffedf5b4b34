"""Artifacts on their way between a client and the storage: the same bytes, nothing left in between."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import psycopg
import pytest
from mlflow.exceptions import MlflowException

from determined import storage
from determined.common.wire.mlflow import BODY_FILE_HEADER, PATH_HEADER, TAKES_PATH_HEADER
from determined_registry.mlflow.artifacts import Artifacts
from determined_registry.mlflow.database import SCHEME
from tests.integration.mlflow.conftest import Cluster
from tests.integration.mlflow.test_reading import fill
from tests.integration.mlflow.test_refused import API, ARTIFACTS, _run
from tests.object_servers import moto, s3_client, s3_section
from tests.waiting import until

LARGE = 5_000_000


@pytest.fixture
def run(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    with cluster.api() as api:
        return _run(api, f"{request.node.name}-{uuid4().hex}")[1]


@pytest.fixture
def nothing_is_on_the_way(cluster: Cluster) -> Callable[[], None]:
    """Wait until the folder of incomplete files has only files that other tests left: files are removed after
    the answer."""
    folder = cluster.folder / "mlflow"
    rest = {folder / "tmp", folder / "mlflow.log", *folder.rglob("*")}

    def wait() -> None:
        until("no file is on its way", lambda: set(folder.rglob("*")) <= rest)

    return wait


def test_a_large_file_goes_up_and_down(
    cluster: Cluster, run: str, nothing_is_on_the_way: Callable[[], None]
) -> None:
    content = os.urandom(LARGE)
    address = f"{ARTIFACTS}/trials/{run}/folder/sizes é.txt"
    with cluster.api() as api:
        for sent in (content, content[::-1]):
            assert api.put(address, content=sent).status_code == 200
            got = api.get(address)
            assert got.content == sent
        assert got.headers["content-length"] == str(LARGE)
        assert got.headers["content-type"].startswith("text/plain")
        assert "sizes" in got.headers["content-disposition"]
        assert "sandbox" in got.headers["content-security-policy"]
        part = api.get(address, headers={"Range": "bytes=10-19"})
        assert (part.status_code, part.content) == (206, sent[10:20])
        page = api.get(
            "/mlflow/get-artifact", params={"path": "folder/sizes é.txt", "run_uuid": run}
        )
        assert (page.content, page.headers["content-type"][:10]) == (sent, "text/plain")
        assert PATH_HEADER not in got.headers
    nothing_is_on_the_way()


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux counts what is read")
def test_the_bytes_do_not_pass_through_mlflows_server(cluster: Cluster, run: str) -> None:
    def moved() -> int:
        """Bytes that the server has read and written."""
        counts = Path(f"/proc/{cluster.server_pid()}/io").read_text().split()
        return int(counts[1]) + int(counts[3])

    address = f"{ARTIFACTS}/trials/{run}/model.bin"
    with cluster.api() as api:
        api.put(address, content=b"first").raise_for_status()
        before = moved()
        api.put(address, content=bytes(LARGE)).raise_for_status()
        assert len(api.get(address).raise_for_status().content) == LARGE
        assert moved() - before < LARGE / 2


def test_an_empty_file_goes_up_and_down(cluster: Cluster, run: str) -> None:
    address = f"{ARTIFACTS}/trials/{run}/empty.bin"
    with cluster.api() as api:
        assert api.put(address, content=b"").status_code == 200
        assert api.get(address).content == b""


def test_a_refusal_leaves_nothing(
    cluster: Cluster, run: str, nothing_is_on_the_way: Callable[[], None]
) -> None:
    with cluster.api(cluster.log_in("admin")) as admin:
        user = {"user": {"username": "sender"}, "password": ""}
        admin.post("/api/v1/users", json=user).raise_for_status()
    with cluster.api(cluster.log_in("sender")) as other:
        answer = other.put(f"{ARTIFACTS}/trials/{run}/x", content=b"x" * LARGE)
        assert answer.status_code == 403, answer.text
        answer = other.put(f"{ARTIFACTS}/trials/0/x", content=b"x" * LARGE)
        assert answer.status_code == 404, answer.text
    nothing_is_on_the_way()


def test_an_interrupted_upload_replaces_nothing(
    cluster: Cluster,
    run: str,
    caplog: pytest.LogCaptureFixture,
    nothing_is_on_the_way: Callable[[], None],
) -> None:
    def half() -> Iterator[bytes]:
        yield b"new" * LARGE
        raise ConnectionError

    address = f"{ARTIFACTS}/trials/{run}/model.bin"
    with cluster.api() as api:
        api.put(address, content=b"old").raise_for_status()
        with pytest.raises(ConnectionError):
            api.put(address, content=half())
        assert api.get(address).content == b"old"
    nothing_is_on_the_way()
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


def test_a_client_names_no_file_of_the_machine(cluster: Cluster, run: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the service's account")
    headers = {BODY_FILE_HEADER: str(secret), TAKES_PATH_HEADER: "1"}
    address = f"{ARTIFACTS}/trials/{run}/x"
    # One path that the service passes through unchanged, and one that is not the address of a file.
    for path in (address, address.replace("/trials/", "/%74rials/")):
        with cluster.api() as api:
            assert api.put(path, content=b"own", headers=headers).status_code == 200
            got = api.get(path, headers=headers)
            assert (got.content, PATH_HEADER in got.headers) == (b"own", False)
    assert secret.exists()


def test_a_file_that_is_deleted_is_not_found(cluster: Cluster, run: str) -> None:
    address = f"{ARTIFACTS}/trials/{run}/x"
    with cluster.api() as api:
        api.put(address, content=b"x").raise_for_status()
        for file in (cluster.folder / "checkpoints").rglob("x/content"):
            if f"/trial/{run}/" in str(file):
                file.unlink()
        # By its path, and through MLflow's server as from a bucket.
        for path in (address, address.replace("/trials/", "/%74rials/")):
            answer = api.get(path)
            assert answer.status_code == 404, answer.text
            assert "not found" in answer.text


def test_a_file_that_is_gone_from_a_bucket_is_not_found(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database_url)
    found = Artifacts(database_url.replace("postgresql", SCHEME, 1))
    key, name = uuid4(), "weights.bin"
    (tmp_path / "out").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / name).write_bytes(b"weights")
    with moto(tmp_path) as server:
        section = s3_section(server)
        manifest = storage.build(section).upload(tmp_path / "model", str(key))
        with psycopg.connect(database_url, autocommit=True) as conn:
            conn.execute(
                "INSERT INTO checkpoints (uuid, state, trial_id, resources, checksums, storage)"
                " VALUES (%s, 'COMPLETED', 1, %s, %s, %s)",
                (key, *map(json.dumps, (manifest.resources, manifest.checksums, section))),
            )
            conn.execute(
                "UPDATE experiments SET config = jsonb_set(config, '{checkpoint_storage}', %s)",
                (json.dumps(section),),
            )
            conn.execute(
                "INSERT INTO mlflow_runs (trial_id, artifacts) VALUES (1, %s)",
                (json.dumps({"x": 1}),),
            )
        whole = found.download_artifacts(f"checkpoints/{key}/{name}", str(tmp_path / "out"))
        assert Path(whole).read_bytes() == b"weights"
        for blob in s3_client(server).list_objects_v2(Bucket=section["bucket"])["Contents"]:
            if blob["Key"].endswith(name):
                s3_client(server).delete_object(Bucket=section["bucket"], Key=blob["Key"])
        for path in (f"checkpoints/{key}/{name}", "trials/1/x"):
            with pytest.raises(MlflowException) as refused:
                found.download_artifacts(path, str(tmp_path / "out"))
            assert refused.value.error_code == "RESOURCE_DOES_NOT_EXIST", refused.value


def test_files_of_a_model_that_is_logged_go_the_same_way(
    cluster: Cluster, run: str, nothing_is_on_the_way: Callable[[], None]
) -> None:
    content = os.urandom(LARGE)
    with cluster.api() as api:
        made = api.post(
            f"{API}/logged-models",
            json={"experiment_id": _experiment(api, run), "name": "m", "source_run_id": run},
        )
        made.raise_for_status()
        model = made.json()["model"]["info"]
        root = model["artifact_uri"].removeprefix("mlflow-artifacts:/").strip("/")
        api.put(f"{ARTIFACTS}/{root}/weights.bin", content=content).raise_for_status()
        done = {"model_id": model["model_id"], "status": "LOGGED_MODEL_READY"}
        api.patch(f"{API}/logged-models/{model['model_id']}", json=done).raise_for_status()
        assert api.get(f"{ARTIFACTS}/{root}/weights.bin").content == content
    nothing_is_on_the_way()


def _experiment(api: httpx.Client, run: str) -> str:
    found = api.get(f"{API}/runs/get", params={"run_id": run}).raise_for_status().json()
    return str(found["run"]["info"]["experiment_id"])

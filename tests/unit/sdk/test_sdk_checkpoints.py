"""Checkpoints through the SDK: their records and their files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from determined import errors, storage
from determined.common.api.errors import NotFoundException
from determined.expconf.problems import MASK
from determined.experimental import Determined
from determined.experimental.client import CheckpointState, DownloadMode
from tests.unit.sdk.fake_service import FakeService, checkpoint, trial
from tests.unit.sdk.served_files import ServedFiles

UUID = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def stored(tmp_path: Path, service: FakeService) -> dict[str, Any]:
    """A checkpoint with files, written as a training writes it; its JSON."""
    source = tmp_path / "source"
    (source / "model").mkdir(parents=True)
    (source / "model" / "weights").write_bytes(b"abc")
    (source / "metadata.json").write_text('{"steps_completed": 1}')
    section = {"type": "shared_fs", "host_path": str(tmp_path / "store"), "storage_path": "ck"}
    (tmp_path / "store" / "ck").mkdir(parents=True)
    manifest = storage.build(section).upload(source, UUID)
    found = checkpoint(UUID, 3, 0.9)
    found["resources"] = {name: str(size) for name, size in manifest.resources.items()}
    found["checksums"] = dict(manifest.checksums)
    found["training"]["experimentConfig"]["checkpoint_storage"] = section
    service.checkpoints = [found]
    return dict(found)


def weights(tmp_path: Path) -> Path:
    return tmp_path / "store" / "ck" / UUID / "model" / "weights"


def test_attributes(client: Determined, service: FakeService) -> None:
    service.checkpoints = [checkpoint(UUID, 3, "NaN")]
    found = client.get_checkpoint(UUID)
    assert found.state is CheckpointState.COMPLETED
    assert found.resources == {"model/": 0, "model/weights": 3}
    assert found.metadata == {"steps_completed": 30}
    assert found.training is not None
    assert (found.training.experiment_id, found.trial_id) == (1, 3)
    assert found.training.hparams == {"lr": 0.3}
    value = found.training.validation_metrics["avgMetrics"]["accuracy"]
    assert value != value
    assert found.report_time is not None
    assert found.report_time.year == 2026
    with pytest.raises(NotFoundException):
        client.get_checkpoint("nope")


def test_download(
    client: Determined, stored: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = client.get_checkpoint(UUID).download()
    assert path == f"checkpoints/{UUID}"
    assert (tmp_path / path / "model/weights").read_bytes() == b"abc"
    assert json.loads((tmp_path / path / "metadata.json").read_text()) == {"steps_completed": 30}
    assert {p.name for p in (tmp_path / path).iterdir()} == {"model", "metadata.json"}


def test_a_download_of_metadata_alone(
    client: Determined, service: FakeService, stored: dict[str, Any], tmp_path: Path
) -> None:
    service.checkpoints[0]["resources"] = {"metadata.json": "22"}
    target = tmp_path / "not there yet"
    client.get_checkpoint(UUID).download(str(target))
    assert [path.name for path in target.iterdir()] == ["metadata.json"]


def test_a_second_download_copies_nothing_unless_something_is_missing(
    client: Determined, stored: dict[str, Any], tmp_path: Path
) -> None:
    target = tmp_path / "out"
    found = client.get_checkpoint(UUID)
    found.download(str(target))
    (target / "mine.txt").write_text("kept")
    before = (target / "model/weights").stat().st_ino
    found.download(str(target))
    assert (target / "model/weights").stat().st_ino == before
    (target / "model/weights").write_bytes(b"abd")
    found.download(str(target))
    assert (target / "model/weights").read_bytes() == b"abc"
    assert (target / "mine.txt").read_text() == "kept"


def test_a_file_of_a_different_size_is_corrupt(
    client: Determined, stored: dict[str, Any], tmp_path: Path
) -> None:
    weights(tmp_path).write_bytes(b"abcd")
    with pytest.raises(errors.CheckpointCorrupted, match="weights"):
        client.get_checkpoint(UUID).download(str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_file_of_other_content_is_corrupt(
    client: Determined, stored: dict[str, Any], tmp_path: Path
) -> None:
    weights(tmp_path).write_bytes(b"abd")
    with pytest.raises(errors.CheckpointCorrupted, match="weights"):
        client.get_checkpoint(UUID).download(str(tmp_path / "out"))


def test_checksums_of_the_service_are_verified_too(
    client: Determined, stored: dict[str, Any], service: FakeService, tmp_path: Path
) -> None:
    # The storage is consistent, but differs from the report: it has another checkpoint's files.
    service.checkpoints[0]["checksums"]["model/weights"] = "sha256:" + "0" * 64
    with pytest.raises(errors.CheckpointCorrupted, match="checksum"):
        client.get_checkpoint(UUID).download(str(tmp_path / "out"))
    assert list(tmp_path.glob(".out-*")) == []


def test_a_missing_file_is_said(
    client: Determined, stored: dict[str, Any], service: FakeService, tmp_path: Path
) -> None:
    service.checkpoints[0]["resources"]["more.bin"] = "7"
    with pytest.raises(errors.CheckpointCorrupted, match=r"more\.bin"):
        client.get_checkpoint(UUID).download(str(tmp_path / "out"))


def test_a_checkpoint_that_is_gone(
    client: Determined, stored: dict[str, Any], service: FakeService, tmp_path: Path
) -> None:
    service.checkpoints[0]["state"] = "STATE_DELETED"
    with pytest.raises(errors.CheckpointStateException, match="DELETED"):
        client.get_checkpoint(UUID).download(str(tmp_path / "out"))


def test_storage_that_is_not_here(
    client: Determined, stored: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    found = client.get_checkpoint(UUID)
    with pytest.raises(errors.NoDirectStorageAccess, match="does not exist on this machine"):
        found.download(str(tmp_path / "out"), DownloadMode.DIRECT)
    # This service has no files for it either.
    with pytest.raises(errors.MultipleDownloadsFailed, match=r"does not exist on .* no files"):
        found.download(str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        (
            {"type": "azure", "container": "c", "connection_string": MASK},
            r"another user's, .* \(checkpoint_storage\.connection_string\): ask one of them",
        ),
        # The machine's identity, which does not exist here.
        ({"type": "s3", "bucket": "b", "access_key": MASK, "secret_key": MASK}, "no credentials"),
    ],
)
def test_masked_keys_are_not_used(
    client: Determined,
    stored: dict[str, Any],
    service: FakeService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    storage: dict[str, Any],
    said: str,
) -> None:
    used: list[Any] = []

    def build(section: dict[str, Any]) -> Any:
        used.append(section)
        raise errors.StorageError("no credentials")

    monkeypatch.setattr("determined.storage.build", build)
    service.checkpoints[0]["storage"] = storage
    with pytest.raises(errors.NoDirectStorageAccess, match=said):
        client.get_checkpoint(UUID).download(str(tmp_path / "out"), DownloadMode.DIRECT)
    assert MASK not in str(used)


@pytest.mark.parametrize("mode", [DownloadMode.MASTER, DownloadMode.AUTO])
def test_a_download_through_the_service(
    client: Determined,
    stored: dict[str, Any],
    service: FakeService,
    tmp_path: Path,
    mode: DownloadMode,
) -> None:
    """Both where it is asked for and where the storage cannot be reached."""
    served = ServedFiles({"model/weights": b"abc", "metadata.json": b"{}"}, ["model/"])
    service.files = served
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    path = client.get_checkpoint(UUID).download(str(tmp_path / "out"), mode)
    assert path == str(tmp_path / "out")
    assert (tmp_path / "out/model/weights").read_bytes() == b"abc"
    assert json.loads((tmp_path / "out/metadata.json").read_text()) == {"steps_completed": 30}
    assert served.ranges == [(0, 5)]


def test_a_storage_that_can_be_reached_is_read_from_here(
    client: Determined, stored: dict[str, Any], service: FakeService, tmp_path: Path
) -> None:
    service.files = ServedFiles({"model/weights": b"abc"})
    client.get_checkpoint(UUID).download(str(tmp_path / "out"))
    assert service.files.ranges == []


def test_a_damaged_file_is_not_asked_of_the_service(
    client: Determined, stored: dict[str, Any], service: FakeService, tmp_path: Path
) -> None:
    service.files = ServedFiles({"model/weights": b"abc"})
    weights(tmp_path).write_bytes(b"abd")
    with pytest.raises(errors.CheckpointCorrupted):
        client.get_checkpoint(UUID).download(str(tmp_path / "out"))
    assert service.files.ranges == []


def test_metadata(client: Determined, service: FakeService, tmp_path: Path) -> None:
    service.checkpoints = [checkpoint(UUID, 3, 0.9)]
    found = client.get_checkpoint(UUID)
    found.add_metadata({"note": {"deep": [1]}, "x": 1})
    found.remove_metadata(["x", "never there"])
    expected = {"steps_completed": 30, "note": {"deep": [1]}}
    assert found.metadata == expected
    assert service.checkpoints[0]["metadata"] == expected
    found.write_metadata_file(str(tmp_path / "m.json"))
    assert json.loads((tmp_path / "m.json").read_text()) == expected
    found.add_metadata({"best": [math.nan, -math.inf]})
    as_text = {**expected, "best": ["NaN", "-Infinity"]}
    assert service.checkpoints[0]["metadata"] == as_text
    again = client.get_checkpoint(UUID)
    assert again.metadata is not None
    nan, infinity = again.metadata["best"]
    assert math.isnan(nan)
    assert infinity == -math.inf
    again.write_metadata_file(str(tmp_path / "m.json"))
    assert json.loads((tmp_path / "m.json").read_text()) == as_text


def test_metrics_of_a_checkpoint_are_those_of_its_step(
    client: Determined, service: FakeService
) -> None:
    service.trials[1] = [trial(3)]
    service.checkpoints = [checkpoint(UUID, 3, 0.9)]
    service.metrics = [
        {
            "trialId": 3,
            "trialRunId": 1,
            "totalBatches": step,
            "endTime": None,
            "group": "validation",
            "metrics": {"validation_metrics": {"loss": step}},
        }
        for step in (20, 30, 40)
    ]
    assert [m.metrics for m in client.get_checkpoint(UUID).get_metrics()] == [{"loss": 30}]

"""A leg starts from the latest complete checkpoint, and logs a line if this is not the latest one."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from determined.common.api import Session
from determined.common.wire.legs import LegSpec
from determined.storage import Manifest
from determined.storage.directory import DirectoryStorageManager
from determined_tasks import restore_point
from determined_tasks.exit_reason import LegResult
from tests.programs.legs.conftest import LegRunner
from tests.programs.legs.fake_service import FakeService, spec

SHOWS = """
import json, os
info = json.load(open(os.environ["DET_RUN_DIR"] + "/info/cluster_info.json"))
print(os.environ.get("DET_LATEST_CHECKPOINT"), info["latest_checkpoint"],
      os.environ["DET_STEPS_COMPLETED"])
"""


class Stored:
    """Three checkpoints of one trial, after 10, 20 and 30 steps, and a service that knows them."""

    def __init__(self, root: Path, service: FakeService) -> None:
        self.root = root
        self.run_dir = root.with_name("run")
        self.service = service
        self.config = {"checkpoint_storage": {"type": "shared_fs", "host_path": str(root)}}
        manager = DirectoryStorageManager(root)
        self.manifests: dict[str, Manifest] = {}
        for _ in range(3):
            name = str(uuid.uuid4())
            with manager.store(name) as staging:
                (staging.path / "weights").write_bytes(name.encode() * 1000)
            self.manifests[name] = manager.manifest(name)
        self.names = list(self.manifests)
        self.reports: list[dict[str, Any]] = []
        service.answers["damaged_checkpoint"] = self._damaged

    def damage(self, name: str) -> None:
        path = self.root / name / "weights"
        path.write_bytes(path.read_bytes()[:-1] + b"x")

    def facts(self, name: str) -> dict[str, Any]:
        known = self.manifests[name]
        return {
            "resources": dict(known.resources),
            "checksums": dict(known.checksums),
            "storage": None,
        }

    def _damaged(self, body: Any) -> tuple[int, Any]:
        self.reports.append(body)
        place = self.names.index(body["uuid"])
        if not place:
            return 200, {"latest_checkpoint": None, "steps_completed": 0, "checkpoint": None}
        before = self.names[place - 1]
        return 200, {
            "latest_checkpoint": before,
            "steps_completed": 10 * place,
            "checkpoint": self.facts(before),
        }

    def fields(self, **more: Any) -> dict[str, Any]:
        latest = self.names[-1]
        return {
            "config": self.config,
            "latest_checkpoint": latest,
            "steps_completed": 30,
            "checkpoint": self.facts(latest),
            **more,
        }

    def choose(self, **more: Any) -> tuple[LegSpec | LegResult, list[str]]:
        said: list[str] = []
        with Session(self.service.url, "agent-secret") as link:
            leg = LegSpec.from_json(spec(**self.fields(**more)))
            found = restore_point.choose(
                leg, link, lambda text, level: said.append(text), lambda: False, self.run_dir
            )
        return found, said


@pytest.fixture
def stored(tmp_path: Path, service: FakeService) -> Stored:
    return Stored(tmp_path / "storage", service)


def test_one_that_is_whole_is_taken_without_a_word(stored: Stored) -> None:
    found, said = stored.choose()
    assert isinstance(found, LegSpec)
    assert (found.latest_checkpoint, said, stored.reports) == (stored.names[2], [], [])


def test_the_training_code_sees_only_the_one_before(
    stored: Stored, legs: LegRunner, service: FakeService, fork: bool
) -> None:
    stored.damage(stored.names[2])
    ended = legs.run({"train.py": SHOWS}, fork=fork, **stored.fields())
    assert ended["exit_code"] == 0
    before = stored.names[1]
    assert service.text("stdout") == f"{before} {before} 20\n"
    (report,) = stored.reports
    assert report["uuid"] == stored.names[2]
    assert str(stored.root / stored.names[2] / "weights") in report["reason"]
    told = service.text("stderr", "agent")
    assert report["reason"] in told
    assert f"starts from the one before, {before}" in told


def test_without_an_earlier_one_it_starts_from_scratch(
    stored: Stored, legs: LegRunner, service: FakeService
) -> None:
    for name in stored.names:
        stored.damage(name)
    assert legs.run({"train.py": SHOWS}, **stored.fields())["exit_code"] == 0
    assert service.text("stdout") == "None None 0\n"
    assert [report["uuid"] for report in stored.reports] == stored.names[::-1]
    assert "starts from scratch" in service.text("stderr", "agent")


def test_the_row_is_believed_more_than_the_list_beside_the_files(stored: Stored) -> None:
    stored.damage(stored.names[2])
    (stored.root / stored.names[2] / ".determined-manifest.json").unlink()
    found, _ = stored.choose()
    assert isinstance(found, LegSpec)
    assert found.latest_checkpoint == stored.names[1]


def test_another_trials_checkpoint_is_not_replaced(stored: Stored, service: FakeService) -> None:
    stored.damage(stored.names[2])
    answer = {"latest_checkpoint": stored.names[2], "steps_completed": 0, "checkpoint": None}
    service.answers["damaged_checkpoint"] = lambda body: (200, answer)
    found, _ = stored.choose()
    assert isinstance(found, LegResult)
    assert found.kind == "failed_to_start"
    assert str(stored.root / stored.names[2] / "weights") in str(found)


def test_a_storage_that_is_away_gives_the_leg_back(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_point, "STORAGE_RETRY_SECONDS", (0.01,))
    stored.root.rename(stored.root.with_name("unmounted"))
    found, _ = stored.choose()
    assert isinstance(found, LegResult)
    assert found.kind == "infrastructure"
    assert str(stored.root) in str(found)
    assert stored.reports == []


def test_a_storage_of_the_scripts_own_is_left_to_it(stored: Stored) -> None:
    facts = {**stored.facts(stored.names[2]), "storage": {"type": "own"}}
    found, said = stored.choose(checkpoint=facts)
    assert isinstance(found, LegSpec)
    assert found.latest_checkpoint == stored.names[2]
    (line,) = said
    assert "is not verified" in line


def test_the_scripts_own_place(stored: Stored, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    stored.root.rename(elsewhere)
    section = {"type": "directory", "container_path": str(elsewhere)}
    found, said = stored.choose(checkpoint={**stored.facts(stored.names[2]), "storage": section})
    assert isinstance(found, LegSpec)
    assert (found.latest_checkpoint, said) == (stored.names[2], [])


def test_a_kill_does_not_wait_for_the_rest_of_a_large_file(stored: Stored) -> None:
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 2

    stored.damage(stored.names[2])
    with Session(stored.service.url, "agent-secret") as link:
        leg = LegSpec.from_json(json.loads(json.dumps(spec(**stored.fields()))))
        restore_point.choose(leg, link, lambda text, level: None, stop, stored.run_dir)
    assert stored.reports == []

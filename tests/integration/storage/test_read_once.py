"""A leg reads its checkpoint from an object storage once, and only starts from one that is whole."""

from __future__ import annotations

import hashlib
import os
import uuid
from typing import Any

import pytest

from determined import storage
from determined.storage.objects import ObjectStorageManager
from tests.chaos.proxy import Proxy
from tests.object_servers import Server, s3_section
from tests.programs.legs.conftest import LegRunner
from tests.programs.legs.fake_service import FakeService

RESTORES = """
import hashlib, pathlib, sys
import determined as det
uuid = det.get_cluster_info().latest_checkpoint
with det.core.init() as core_context:
    if sys.argv[1] == "restore":
        with core_context.checkpoint.restore_path(uuid) as path:
            content = (path / "weights").read_bytes()
    else:
        core_context.checkpoint.download(uuid, "here")
        content = pathlib.Path("here/weights").read_bytes()
print(uuid, hashlib.sha256(content).hexdigest())
"""
SIZE = 3_000_000


class Trial:
    """Two checkpoints of one trial in a bucket behind a proxy, which counts."""

    def __init__(self, server: Server, service: FakeService, proxy: Proxy, packed: bool) -> None:
        section = s3_section(server, pack_small_files=packed)
        manager = storage.build(section)
        assert isinstance(manager, ObjectStorageManager)
        self.manager = manager
        self.section = section | {"endpoint_url": proxy.url}
        self.weights = {}
        self.reports: list[str] = []
        for _ in range(2):
            name = str(uuid.uuid4())
            self.weights[name] = os.urandom(SIZE)
            with manager.store(name) as staging:
                (staging.path / "weights").write_bytes(self.weights[name])
                for part in range(20):
                    (staging.path / f"part-{part}").write_text("x")
        self.older, self.latest = self.weights
        service.answers["damaged_checkpoint"] = self._damaged

    def _damaged(self, body: Any) -> tuple[int, Any]:
        self.reports.append(body["uuid"])
        facts = self.facts(self.older)
        return 200, {"latest_checkpoint": self.older, "steps_completed": 1, "checkpoint": facts}

    def facts(self, name: str) -> dict[str, Any]:
        known = self.manager.manifest(name)
        checksums = dict(known.checksums)
        return {"resources": dict(known.resources), "checksums": checksums, "storage": None}

    def fields(self) -> dict[str, Any]:
        return {
            "config": {"checkpoint_storage": self.section},
            "latest_checkpoint": self.latest,
            "steps_completed": 2,
            "checkpoint": self.facts(self.latest),
        }

    def line(self, name: str) -> str:
        return f"{name} {hashlib.sha256(self.weights[name]).hexdigest()}\n"


@pytest.fixture
def proxy(s3_server: Server) -> Proxy:
    proxy = Proxy("127.0.0.1", s3_server.port)
    proxy.start()
    return proxy


@pytest.mark.parametrize(("how", "packed"), [("restore", False), ("download", True)])
def test_a_leg_reads_its_checkpoint_once(
    s3_server: Server, service: FakeService, legs: LegRunner, proxy: Proxy, how: str, packed: bool
) -> None:
    trial = Trial(s3_server, service, proxy, packed)
    entrypoint = f"python3 train.py {how}"
    ended = legs.run({"train.py": RESTORES}, entrypoint=entrypoint, **trial.fields())
    assert ended["exit_code"] == 0, service.text("stderr")
    assert service.text("stdout") == trial.line(trial.latest)
    assert SIZE <= proxy.returned < 1.1 * SIZE
    # No part of it stays on this machine.
    assert not [path for path in legs.work_dir.rglob("*") if path.name == "weights"]


def test_a_damaged_one_is_never_seen_and_the_one_before_is_read_once(
    s3_server: Server, service: FakeService, legs: LegRunner, proxy: Proxy
) -> None:
    trial = Trial(s3_server, service, proxy, packed=False)
    key = trial.manager._folder(trial.latest) + "weights"
    trial.manager.blobs.put(key, trial.weights[trial.latest][:-1] + b"!")
    entrypoint = "python3 train.py restore"
    ended = legs.run({"train.py": RESTORES}, entrypoint=entrypoint, **trial.fields())
    assert ended["exit_code"] == 0, service.text("stderr")
    assert trial.reports == [trial.latest]
    assert service.text("stdout") == trial.line(trial.older)
    assert 2 * SIZE <= proxy.returned < 2.2 * SIZE

"""A short chaos run with two agents of which one runs trials in containers; `make chaos DOCKER=1` does longer
ones."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests import container_engine
from tests.chaos import oracle
from tests.chaos.run import run
from tests.chaos.world import World, docker

SECONDS = float(os.environ.get("DET_CHAOS_SECONDS", "30"))
SEED = int(os.environ.get("DET_CHAOS_SEED", "1"))


@pytest.mark.timeout(900)
def test_nothing_is_lost_and_no_container_left() -> None:
    found: list[oracle.Verdict] = []

    def look(world: World, verdict: oracle.Verdict) -> None:
        if not verdict.wrong:
            docker("create", "--name", "left-over", container_engine.machine_image(), "true")
            found.append(oracle.judge(world))

    with (
        container_engine.own() as engine,
        tempfile.TemporaryDirectory(prefix="determined-chaos-") as folder,
    ):
        if isinstance(engine, str):
            pytest.skip(engine)
        Path(folder).chmod(0o755)  # as root, Postgres runs as another user
        report = run(Path(folder), SECONDS, SEED, look, engine)
    print(*report.lines(), sep="\n")
    assert not report.verdict.wrong, report.lines()
    assert report.verdict.experiments >= 2
    (verdict,) = found
    assert any("left-over" in words for words in verdict.wrong), verdict.wrong

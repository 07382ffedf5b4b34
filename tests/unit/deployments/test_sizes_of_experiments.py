"""The size of experiments' packages on a machine, and that the service gets it once."""

from __future__ import annotations

from pathlib import Path

import pytest

from determined_deployments.agent import experiments
from determined_deployments.agent.experiments import ExperimentDirs
from determined_tasks import experiment_dir
from tests.waiting import until_async

BLOCK = 4096


def installed(work_dir: Path, number: int, blocks: int) -> Path:
    folder = work_dir / f"experiments/{number}.c/packages-x/lib"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "module.so").write_bytes(b"x" * BLOCK * blocks)
    return folder


def test_no_link_is_followed(tmp_path: Path) -> None:
    """Gains: a user has the agent read all directories of the machine, again and again."""
    folder = installed(tmp_path / "work", 1, 10)
    before = experiment_dir.size(tmp_path / "work", 1, "c")
    assert before >= 10 * BLOCK
    other = installed(tmp_path / "elsewhere", 1, 1000)
    (folder / "link").symlink_to(other)
    assert experiment_dir.size(tmp_path / "work", 1, "c") < before + 10 * BLOCK
    assert experiment_dir.size(tmp_path / "work", 2, "c") == 0


async def test_sizes_are_told_until_the_service_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments, "MEASURE_S", 0.0)
    installed(tmp_path, 1, 10)
    kept = ExperimentDirs(tmp_path)
    kept.of_cluster("c")
    first = await until_async("sizes", kept.untold_sizes)
    assert first["1"] >= 10 * BLOCK
    assert kept.untold_sizes() == first
    kept.told(first)
    assert kept.untold_sizes() is None
    installed(tmp_path, 2, 20)
    more = await until_async("more", kept.untold_sizes)
    assert more["2"] >= 20 * BLOCK
    # Another service, or the same one with another database, is told anew.
    kept.told(more)
    kept.of_cluster("c")
    assert kept.untold_sizes() == more
    await kept.stop()


async def test_what_a_command_installs_is_measured_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments, "MEASURE_S", 0.0)
    site = tmp_path / "allocations/c.1/packages/lib"
    site.mkdir(parents=True)
    (site / "module.so").write_bytes(b"x" * BLOCK * 10)
    # A trial shares its experiment's packages; the leg of another machine is not here.
    (tmp_path / "allocations/7.x.1/workdir").mkdir(parents=True)
    kept = ExperimentDirs(tmp_path)
    kept.of_cluster("c")

    def sizes() -> dict[str, int] | None:
        return kept.untold_sizes(["c.1", "7.x.1", "elsewhere.1"])

    found = await until_async("sizes", sizes)
    assert found.keys() == {"c.1"} and found["c.1"] >= 10 * BLOCK
    await kept.stop()

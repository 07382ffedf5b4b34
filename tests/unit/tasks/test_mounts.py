"""The mounts of a configuration, and the places on the machine of paths that a process will see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from determined_tasks import mounts

HERE, STAGE = Path("/agent/workdir"), Path("/agent/mounts")


def of(config: dict[str, Any], entrypoint: str = "python3 train.py") -> mounts.Mounts | None:
    return mounts.of(config, entrypoint, HERE, STAGE)


def bind(source: str, target: str, **more: Any) -> dict[str, Any]:
    return {"host_path": source, "container_path": target, **more}


def test_most_legs_need_none() -> None:
    assert of({"name": "x", "resources": {"slots_per_trial": 1}}) is None


@pytest.mark.parametrize(
    "config",
    [
        {"resources": {"shm_size": "1G"}},
        {"hyperparameters": {"path": "/run/determined/workdir/data"}},
        {"bind_mounts": [bind("/data", "/mnt")]},
    ],
)
def test_a_leg_that_names_one_path_has_them(config: dict[str, Any]) -> None:
    assert of(config) is not None


def test_an_entrypoint_names_the_working_directory() -> None:
    found = of({}, "python3 /run/determined/workdir/train.py")
    assert found is not None
    assert found.on_machine("/run/determined/workdir/train.py") == HERE / "train.py"


def test_a_path_on_the_machine() -> None:
    given = [bind("/a", "/data"), bind("/b", "/data/inner"), bind("/c", "rel")]
    found = of({"bind_mounts": given})
    assert found is not None
    for path, there in {
        "train.py": "/agent/workdir/train.py",
        "/data/x": "/a/x",
        "/data/inner": "/b",
        "/data/inner/x": "/b/x",
        "/database": "/database",
        "rel/x": "/c/x",
        "/run/determined/workdir/rel/x": "/c/x",
        "/usr/bin/env": "/usr/bin/env",
    }.items():
        assert found.on_machine(path) == Path(there), path


def test_outer_mounts_come_first() -> None:
    found = of({"bind_mounts": [bind("/b", "/data/inner"), bind("/a", "/data")]})
    assert found is not None
    assert [one.source for one in found.binds] == ["/a", "/b"]
    assert [one.field for one in found.binds] == ["bind_mounts[1]", "bind_mounts[0]"]


def test_a_directory_under_its_own_path_needs_no_mount(tmp_path: Path) -> None:
    here = str(tmp_path)
    found = of(
        {"bind_mounts": [bind(here, here), bind("/det-nowhere", "/det-nowhere", read_only=True)]}
    )
    assert found is not None
    assert found.binds == ()
    found = of({"bind_mounts": [bind("/dev/shm", "/dev/shm", read_only=True)]})
    assert found is not None
    assert found.binds == ()
    found = of({"bind_mounts": [bind(here, here, read_only=True)]})
    assert found is not None
    assert len(found.binds) == 1


@pytest.mark.parametrize("place", ["/", "/proc", "/sys/fs", "/dev", "/dev/shm/x", "/../proc"])
def test_no_place_of_the_kernels(place: str) -> None:
    with pytest.raises(mounts.MountsError, match=r"^bind_mounts\[0\]\.container_path: nothing can"):
        of({"bind_mounts": [bind("/a", place)]})

"""The rights of a container: by its owner, the cluster configuration and the agent's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from determined.common.wire.legs import LegSpec
from determined_tasks.containers import rights
from determined_tasks.containers.rights import RightsError
from tests.programs.legs.fake_service import spec

LISTS = {
    "capabilities": ["CAP_SYS_PTRACE"],
    "devices": ["/dev/infiniband"],
    "host_paths": ["/data"],
}
CAPABILITY = {"environment": {"add_capabilities": ["sys_ptrace"]}}
DEVICE = {
    "resources": {"devices": [{"host_path": "/dev/infiniband/uverbs0", "container_path": "/d"}]}
}
MOUNT = {"bind_mounts": [{"host_path": "/data/sets", "container_path": "/d"}]}
STORAGE = {"checkpoint_storage": {"type": "shared_fs", "host_path": "/data/kept"}}
ALL = [CAPABILITY, DEVICE, MOUNT, STORAGE]


def require(
    config: dict[str, Any],
    given: Any = None,
    *,
    is_root: bool = True,
    storage: Path | None = None,
    **granted: Any,
) -> None:
    order = LegSpec.from_json(spec(config=config, granted=granted))
    rights.require(order, given or {}, agent_id="a", is_root=is_root, storage=storage)


@pytest.mark.parametrize("config", ALL)
def test_rights_that_were_not_given_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(RightsError, match="agent a allows none: ask who runs that agent to add it"):
        require(config)
    require(config, LISTS)
    require(config, administrator=True)
    require(config, capabilities=["SYS_PTRACE"], devices=["/dev"], host_paths=["/data"])


@pytest.mark.parametrize("config", [MOUNT, STORAGE])
def test_an_account_mounts_any_path(config: dict[str, Any]) -> None:
    require(config, is_root=False)


@pytest.mark.parametrize("config", [CAPABILITY, DEVICE])
def test_an_account_takes_no_capability_and_no_device(config: dict[str, Any]) -> None:
    with pytest.raises(RightsError):
        require(config, is_root=False)


def test_the_clusters_own_storage_is_every_tasks() -> None:
    require(STORAGE, storage=Path("/data/kept"))
    with pytest.raises(RightsError, match=r"^checkpoint_storage\.host_path: "):
        require(STORAGE, storage=Path("/data/kept/inner"))


@pytest.mark.parametrize("path", ["/data/../etc", "/database", "/"])
def test_a_folder_beside_is_none(path: str) -> None:
    config = {"bind_mounts": [{"host_path": path, "container_path": "/d"}]}
    with pytest.raises(RightsError, match="agent a allows /data: "):
        require(config, LISTS)


def test_a_links_target_counts(tmp_path: Path) -> None:
    (tmp_path / "listed").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "listed" / "out").symlink_to(tmp_path / "other")
    config = {"bind_mounts": [{"host_path": str(tmp_path / "listed/out"), "container_path": "/d"}]}
    with pytest.raises(RightsError):
        require(config, {"host_paths": [str(tmp_path / "listed")]})
    require(config, {"host_paths": [str(tmp_path / "other")]})


def test_all_capabilities_are_one_word() -> None:
    with pytest.raises(RightsError, match="may not add 'ALL'"):
        require({"environment": {"add_capabilities": ["ALL"]}}, LISTS)
    require(CAPABILITY, {"capabilities": ["ALL"]})

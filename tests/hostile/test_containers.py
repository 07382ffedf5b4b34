"""Containers of ordinary users, with the users' images and configurations. Gains: root on the machine, or the
end of others' work on it.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from tests.integration.containers.conftest import (
    ContainerLegs,
    agent_config,
    engine,
    legs,
    service,
    settings,
)

__all__ = ["agent_config", "engine", "legs", "service", "settings"]

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="root's containers are meant")

NUMBERS = itertools.count()
ADMINISTRATOR = {"administrator": True}


@pytest.fixture
def listed(settings: dict[str, Any], tmp_path: Path) -> Path:
    """The one folder that containers may mount."""
    folder = tmp_path / "listed"
    folder.mkdir()
    (folder / "in").write_text("given")
    (folder / "way-out").symlink_to("/")
    settings["security"] = {"containers": {"host_paths": [str(folder)]}}
    return folder


def mount(path: object) -> dict[str, Any]:
    return {"bind_mounts": [{"host_path": str(path), "container_path": "/m"}]}


async def refused(legs: ContainerLegs, config: dict[str, Any]) -> str:
    order = {"entrypoint": "cat /m/etc/shadow", "allocation_id": f"r.{next(NUMBERS)}"}
    ended = await legs.run({}, config, **order)
    assert ended["kind"] == "failed_to_start", (ended, legs.words())
    assert ended["reason"] in legs.words()
    return str(ended["reason"])


async def test_root_of_a_container_mounts_only_listed_paths(
    listed: Path, legs: ContainerLegs
) -> None:
    """Every file of the machine, to read and to write."""
    said = await refused(legs, mount("/"))
    assert said.startswith(
        f"bind_mounts[0].host_path: containers may not mount as root '/'; agent agent-1 allows {listed}: "
    )
    assert "security.containers.host_paths" in said
    assert "bind_mounts[0]" in await refused(legs, mount(listed / "way-out"))
    assert "bind_mounts[0]" in await refused(legs, mount(listed / ".." / "work"))
    storage = {"checkpoint_storage": {"type": "shared_fs", "host_path": "/etc"}}
    assert "checkpoint_storage.host_path" in await refused(legs, storage)
    ended = await legs.run({}, mount(listed), entrypoint="cat /m/in")
    assert ended["exit_code"] == 0, legs.words()
    assert legs.service.text("stdout").endswith("given")


async def test_capabilities_and_devices_are_given_and_not_taken(legs: ContainerLegs) -> None:
    """The machine's disk, its kernel, other processes' memory."""
    add = {"environment": {"add_capabilities": ["SYS_ADMIN"]}}
    said = await refused(legs, add)
    assert said.startswith(
        "environment.add_capabilities[0]: containers may not add 'SYS_ADMIN'; agent agent-1 allows none: "
    )
    disk = {"resources": {"devices": [{"host_path": "/dev/mem", "container_path": "/m"}]}}
    assert (await refused(legs, disk)).startswith("resources.devices[0].host_path: ")


async def test_administrators_may(legs: ContainerLegs, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("given")
    config = {**mount(tmp_path), "environment": {"add_capabilities": ["NET_RAW"]}}
    ended = await legs.run({}, config, entrypoint="cat /m/in", granted=ADMINISTRATOR)
    assert ended["exit_code"] == 0, legs.words()
    assert legs.service.text("stdout") == "given"


@pytest.mark.parametrize("settings", [{"security": {"default_task": {"uid": 4321, "gid": 8765}}}])
async def test_an_account_mounts_any_path_and_reads_only_its_own(
    legs: ContainerLegs, tmp_path: Path
) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "closed" / "in").write_text("root's")
    ended = await legs.run({}, mount(tmp_path / "closed"), entrypoint="cat /m/in")
    assert ended["exit_code"] == 1
    assert "Permission denied" in legs.service.text("stderr")


@pytest.mark.parametrize("settings", [{"limits": {"processes": 40, "open_files": 99}}])
async def test_a_fork_bomb_stays_in_its_container(legs: ContainerLegs) -> None:
    """The machine's processes."""
    bomb = "import os, time\nn = 0\nwhile os.fork(): n += 1; print(n, flush=True)\ntime.sleep(999)"
    ended = await legs.run({"train.py": "import resource; print(resource.getrlimit(7))\n" + bomb})
    assert ended["exit_code"] == 1
    first, *counts = legs.service.text("stdout").splitlines()
    assert first == "(99, 99)"
    assert 10 < max(map(int, counts)) < 40

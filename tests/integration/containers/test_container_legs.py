"""The surroundings of a leg in its container, and the report of its end."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from dataclasses import asdict
from pathlib import Path

import pytest

from determined.common.cluster_config import read_text
from determined.expconf import complete
from determined_service.lifecycle.kinds.base import granted, task_defaults
from tests import container_engine
from tests.integration.containers.conftest import ContainerLegs
from tests.waiting import TIMEOUT_S

LOOK = """
import json, os, determined, sys
info = determined.get_cluster_info()
print(json.dumps({
    "cwd": os.getcwd(), "uid": os.getuid(), "gid": os.getgid(), "home": os.environ["HOME"],
    "mine": os.environ["MINE"], "trial": info.trial.trial_id, "master": info.master_url,
    "type": os.environ["DET_RESOURCES_TYPE"], "files": sorted(os.listdir()),
    "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
    "mounts": [open("/data/in").read(), open("near/in").read()],
    "kept": os.path.ismount(determined.constants.SHARED_FS_CONTAINER_PATH),
    "secret": "agent-secret" in open("/proc/self/environ").read() or "DET_AGENT_TOKEN" in os.environ,
    "pid_namespace": len([p for p in os.listdir("/proc") if p.isdigit()]) < 10,
    "device": os.path.exists("/dev/own-null"),
}))
print("to stderr", file=sys.stderr)
open("/data/out", "w").write("done")
try:
    open("/fixed/out", "w")
except OSError as error:
    print(error.strerror)
"""


ANY_DEVICE_AND_FOLDER = {"security": {"containers": {"devices": ["/dev"], "host_paths": ["/"]}}}


@pytest.mark.parametrize("settings", [ANY_DEVICE_AND_FOLDER])
async def test_a_leg_finds_its_code_environment_mounts_and_memory(
    legs: ContainerLegs, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "in").write_text("given")
    (tmp_path / "storage").mkdir()
    mount = {"host_path": str(tmp_path / "data"), "read_only": False}
    config = {
        "environment": {"image": {"cpu": legs.config.container.images["cpu"]}},
        "resources": {
            "shm_size": "96m",
            "devices": [{"host_path": "/dev/null", "container_path": "/dev/own-null"}],
        },
        "bind_mounts": [
            {**mount, "container_path": "/data"},
            {**mount, "container_path": "near"},
            {**mount, "container_path": "/fixed", "read_only": True},
        ],
        "checkpoint_storage": {"type": "shared_fs", "host_path": str(tmp_path / "storage")},
    }
    ended = await legs.run({"train.py": LOOK}, config, environment_variables=["MINE=a b", "EMPTY="])
    assert ended["exit_code"] == 0, legs.words()
    first, *rest = legs.service.text("stdout").splitlines()
    assert json.loads(first) == {
        "cwd": "/run/determined/workdir",
        "uid": os.getuid(),
        "gid": os.getgid(),
        "home": "/root",
        "mine": "a b",
        "trial": 21,
        "master": legs.service.url,
        "type": "docker-container",
        "files": ["near", "train.py"],
        "shm": 96 << 20,
        "mounts": ["given", "given"],
        "kept": True,
        "secret": False,
        "pid_namespace": True,
        "device": True,
    }
    assert rest == ["Read-only file system"]
    assert legs.service.text("stderr") == "to stderr\n"
    assert (tmp_path / "data" / "out").read_text() == "done"
    running = [body for _, path, body in legs.service.calls if path.endswith("/running")]
    assert len(running) == 1


DEFAULTS = """
import json, os, socket
print(json.dumps({
    "cwd": os.getcwd(), "files": sorted(os.listdir()), "hooks": [os.environ["CLUSTER"], os.environ["OWN"]],
    "network": sorted(name for _, name in socket.if_nameindex()), "variable": os.environ["GIVEN"],
    "rights": open("/proc/self/status").read().partition("CapEff:")[2].split()[0],
    "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
    "near": open("near/in").read(), "device": os.path.exists("/dev/own-null"),
}))
"""


async def test_container_defaults_reach_the_container(legs: ContainerLegs, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("given")
    cluster, _ = read_text(
        f"""
        task_container_defaults:
          image: {legs.config.container.images["cpu"]}
          network_mode: host
          work_dir: /srv/own work
          startup_hook: |
            # in the folder of the model definition, before its own hook
            export CLUSTER=${{PWD##*/}}
          environment_variables: [GIVEN=yes]
          shm_size_bytes: 67108864
          drop_capabilities: [ALL]
          add_capabilities: [NET_RAW]
          devices: ['/dev/null:/dev/own-null']
          bind_mounts: [{{host_path: {tmp_path}, container_path: near}}]
        """
    )
    experiment = {"entrypoint": "python3 train.py", "searcher": {"name": "single", "metric": "m"}}
    storage = {"checkpoint_storage": {"type": "directory", "container_path": "/c"}}
    beneath = cluster.container_defaults_of("default").for_experiment(1)
    config = complete(experiment, defaults={**beneath, **storage})
    ended = await legs.run(
        {"train.py": DEFAULTS, "startup-hook.sh": "export OWN=after-$CLUSTER"},
        config,
        environment_variables=config["environment"]["environment_variables"]["cpu"],
        defaults=asdict(task_defaults(cluster, "default")),
        # None of it is on the agent's list.
        granted=asdict(granted(cluster, None, "default", is_administrator=False)),
    )
    assert ended["exit_code"] == 0, legs.words()
    assert json.loads(legs.service.text("stdout")) == {
        "cwd": "/srv/own work",
        "files": ["near", "startup-hook.sh", "train.py"],
        "hooks": ["own work", "after-own work"],
        "network": sorted(name for _, name in socket.if_nameindex()),
        "variable": "yes",
        "rights": f"{1 << 13:016x}",  # CAP_NET_RAW
        "shm": 64 << 20,
        "near": "given",
        "device": True,
    }


async def test_a_network_that_cannot_reach_the_service(legs: ContainerLegs) -> None:
    ended = await legs.run({"train.py": "print(1)"}, defaults={"network_mode": "bridge"})
    assert ended["kind"] == "failed_to_start"
    assert (
        "task_container_defaults.network_mode 'bridge': containers there do not reach"
        in (ended["reason"])
    )


async def test_the_last_line_of_a_process_that_ends_at_once_arrives(legs: ContainerLegs) -> None:
    """The engine may store it after it told of the end."""
    for number in range(5):
        held = await legs.start({}, entrypoint=f"echo line {number}; echo -n last {number}")
        assert (await asyncio.wait_for(held.ended, TIMEOUT_S)).in_order
        await held.clean_up()
        assert legs.service.text("stdout").endswith(f"line {number}\nlast {number}")
        shipped = [path for _, path, _ in legs.service.calls]
        last_log = max(i for i, path in enumerate(shipped) if path.endswith("logs"))
        assert last_log < max(i for i, path in enumerate(shipped) if path.endswith("exit"))


@pytest.mark.parametrize("settings", [ANY_DEVICE_AND_FOLDER])
async def test_a_mount_of_nothing_is_not_tried_again(legs: ContainerLegs) -> None:
    mounts = [{"host_path": "/does/not/exist", "container_path": "/x"}]
    ended = await legs.run({}, {"bind_mounts": mounts}, entrypoint="true")
    assert ended["kind"] == "failed_to_start"
    assert "bind source path does not exist: /does/not/exist" in ended["reason"]
    assert "bind_mounts" in ended["reason"]


@pytest.mark.parametrize("settings", [{"limits": {"memory": "64m"}}])
async def test_out_of_memory_is_named(legs: ContainerLegs) -> None:
    script = "x = []\nwhile True:\n    x.append(b'x' * (8 << 20))\n"
    ended = await legs.run({"train.py": script})
    assert (ended["signal"], ended["kind"]) == (9, "exited")
    assert ended["reason"] == "out of memory, by the limit of 64 MiB of its container"


async def test_an_invalid_image_name_is_not_tried_again(legs: ContainerLegs) -> None:
    ended = await legs.run({}, {"environment": {"image": "Not An Image"}}, entrypoint="true")
    assert ended["kind"] == "failed_to_start"
    assert "Not An Image" in ended["reason"]
    assert "invalid reference format" in ended["reason"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another account")
@pytest.mark.parametrize("settings", [{"security": {"default_task": {"uid": 4321, "gid": 8765}}}])
async def test_the_processes_have_the_tasks_account(legs: ContainerLegs) -> None:
    command = (
        "id -u; id -g; echo $HOME; touch own && cat $DET_RUN_DIR/info/trial_info.json > copy && ls"
    )
    assert (await legs.run({}, entrypoint=command))["exit_code"] == 0
    assert legs.service.text("stdout").split() == [
        "4321", "8765", "/run/determined/workdir", "copy", "own",
    ]  # fmt: skip


KEEPS = """
import os, pathlib
kept = pathlib.Path(os.environ["TRITON_CACHE_DIR"])
print(kept.parent, *(path.name for path in kept.glob("*")))
kept.mkdir(exist_ok=True)
(kept / "kernel").write_text("compiled")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another account")
@pytest.mark.parametrize(
    "settings", [{}, {"security": {"default_task": {"uid": 4321, "gid": 8765}}}]
)
async def test_the_next_leg_has_the_compiled_code(legs: ContainerLegs) -> None:
    for number in (1, 2):
        ended = await legs.run({"train.py": KEEPS}, allocation_id=f"7.abc.{number}")
        assert ended["exit_code"] == 0, legs.service.text("stderr")
    place = "/run/determined/compiled"
    assert legs.service.text("stdout") == f"{place}\n{place} kernel\n"


async def test_a_killed_container_is_noticed_at_once(legs: ContainerLegs) -> None:
    held = await legs.start({}, entrypoint="echo here; sleep 600")
    await asyncio.to_thread(legs.service.wait, lambda: "here" in legs.service.text("stdout"))
    (name,) = legs.containers()
    container_engine.kill(name)
    assert (await asyncio.wait_for(held.ended, TIMEOUT_S)).in_order
    ended = legs.service.exits["7.abc.1"]
    assert (ended["signal"], ended["kind"], ended["reason"]) == (9, "exited", None)

"""The description of a container, and the messages about images and ends."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from determined.common.wire.legs import AgentUser, ExitKind, LegSpec
from determined.expconf.environment import Images
from determined_tasks import compiled_code, entrypoint
from determined_tasks.containers import accounts, ends, images, plan
from determined_tasks.containers.settings import ContainerSettings
from determined_tasks.containers.sizes import size_in_bytes
from determined_tasks.identity import Identity, IdentityError
from determined_tasks.task_environment import AgentSide
from tests.programs.legs.fake_service import spec

PLACE = AgentSide(
    Path("/work"), "http://m:1", "token", "agent-1", "cuda", device_uuids={0: "GPU-a", 1: "GPU-b"}
)
SETTINGS = ContainerSettings(
    images={"cpu": "own/cpu", "cuda": "own/cuda"},
    network_mode="bridge",
    master_url="http://m:1",
    shm_size=4 << 30,
    memory=1 << 30,
)


def leg(config: dict[str, Any] | None = None, **fields: Any) -> LegSpec:
    return LegSpec.from_json(spec(config=config or {}, **fields))


def made(config: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return plan.request(
        leg(config, **fields),
        PLACE,
        SETTINGS,
        root=Path("/work/allocations/a"),
        image="sha256:1",
        command=["true"],
        env={"A": "b=c"},
        user="1:2",
    )


@pytest.mark.parametrize(
    ("size", "in_bytes"),
    [(7, 7), ("7", 7), ("4G", 4 << 30), ("1.5 GiB", 3 << 29), ("96mb", 96 << 20), ("2K", 2048)],
)
def test_sizes(size: int | str, in_bytes: int) -> None:
    assert size_in_bytes(size) == in_bytes


@pytest.mark.parametrize("size", ["", "G", "1X", "-1G", "1 2"])
def test_other_words_are_not_sizes(size: str) -> None:
    with pytest.raises(ValueError, match="expected a size such as"):
        size_in_bytes(size)


def test_gpus_are_asked_for_by_uuid() -> None:
    (request,) = made(slot_ids=[1])["HostConfig"]["DeviceRequests"]
    assert request["DeviceIDs"] == ["GPU-b"]
    assert request["Capabilities"] == [["gpu"]]
    assert "DeviceRequests" not in made(slot_ids=[])["HostConfig"]


def test_a_container_follows_the_configuration() -> None:
    config = {
        "resources": {"shm_size": "1G", "devices": [{"host_path": "/a", "container_path": "/b"}]},
        "environment": {"add_capabilities": ["IPC_LOCK"], "drop_capabilities": ["CHOWN"]},
        "bind_mounts": [{"host_path": "/h", "container_path": "near", "read_only": True}],
        "checkpoint_storage": {"type": "shared_fs", "host_path": "/s"},
    }
    body = made(config)
    host = body["HostConfig"]
    assert host["ShmSize"] == 1 << 30
    assert host["Memory"] == host["MemorySwap"] == 1 << 30
    assert host["Devices"] == [
        {"PathOnHost": "/a", "PathInContainer": "/b", "CgroupPermissions": "mrw"}
    ]
    assert (host["CapAdd"], host["CapDrop"]) == (["IPC_LOCK"], ["CHOWN"])
    mounts = {item["Target"]: (item["Source"], item["ReadOnly"]) for item in host["Mounts"]}
    assert mounts == {
        "/run/determined": ("/work/allocations/a/run", False),
        "/run/determined/workdir": ("/work/allocations/a/workdir", False),
        "/determined_shared_fs": ("/s", False),
        "/run/determined/workdir/near": ("/h", True),
    }
    assert body["User"] == "1:2"
    assert body["Env"] == ["A=b=c"]
    assert body["Labels"]["determined.allocation"] == "7.abc.1"
    assert made()["HostConfig"]["ShmSize"] == 4 << 30


def test_compiled_code_is_mounted_unless_the_image_or_the_user_has_another_place() -> None:
    given: dict[str, Any] = {"root": Path("/a"), "image": "i", "command": ["true"], "env": {}}
    host = plan.request(
        leg(), PLACE, SETTINGS, **given, user="0:0", compiled=Path("/work/compiled/k.c/code")
    )["HostConfig"]
    mounts = {item["Target"]: (item["Source"], item["ReadOnly"]) for item in host["Mounts"]}
    assert mounts["/run/determined/compiled"] == ("/work/compiled/k.c/code", False)
    order = leg(environment_variables=["CUDA_CACHE_PATH=/his"])
    env = plan.environment(order, PLACE, SETTINGS, ["TRITON_CACHE_DIR=/i"], None, compiled=True)
    assert env["TORCHINDUCTOR_CACHE_DIR"] == "/run/determined/compiled/inductor"
    assert env["CUDA_CACHE_PATH"] == "/his"
    assert "TRITON_CACHE_DIR" not in env
    none = plan.environment(leg(), PLACE, SETTINGS, [], None)
    assert not set(compiled_code.VARIABLES) & set(none)


def test_processor_time_is_divided_by_slots_and_may_have_a_limit() -> None:
    given: dict[str, Any] = {"root": Path("/a"), "image": "i", "command": ["true"], "env": {}}

    def host(slots: int, cpus: float | None) -> dict[str, Any]:
        order = replace(leg(), slot_ids=list(range(slots)))
        settings = replace(SETTINGS, cpus=cpus)
        found: dict[str, Any] = plan.request(order, PLACE, settings, **given, user="0:0")[
            "HostConfig"
        ]
        return found

    assert [host(slots, None)["CpuShares"] for slots in (0, 1, 4)] == [1024, 1024, 4096]
    assert host(1, 0.5)["NanoCpus"] == 500_000_000
    # An engine refuses more than it has.
    assert host(1, 1e5)["NanoCpus"] == (os.cpu_count() or 1) * 10**9


def test_no_program_of_an_image_gives_rights_to_an_account() -> None:
    given = (leg(), PLACE, SETTINGS)
    more: dict[str, Any] = {"root": Path("/a"), "image": "i", "command": ["true"], "env": {}}
    account = Identity("ann", 1200, 1200, (1200,), Path("/home/ann"))
    host = plan.request(*given, **more, user="1200:1200", account=account)["HostConfig"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["PidsLimit"] == 16_384
    own = plan.request(*given, **more, user="0:0")["HostConfig"]
    assert "SecurityOpt" not in own
    assert own["PidsLimit"] == 16_384
    assert not {"Ulimits", "NanoCpus"} & own.keys()
    # An agent that is not root has no account for tasks, and starts them as itself.
    laptop = plan.request(*given, **more, user="1000:1000")["HostConfig"]
    assert laptop["SecurityOpt"] == ["no-new-privileges:true"]


def test_the_agents_image_stands_in_for_determineds_default_only() -> None:
    assert plan.image(leg(), PLACE, SETTINGS) == "own/cuda"
    assert plan.image(leg({"environment": {"image": Images().model_dump()}}), PLACE, SETTINGS) == (
        "own/cuda"
    )
    config = {"environment": {"image": {"cpu": "a", "cuda": "b"}}}
    assert plan.image(leg(config), PLACE, SETTINGS) == "b"
    assert plan.image(leg({"environment": {"image": "c"}}), PLACE, SETTINGS) == "c"


def test_names_differ_between_agents_and_are_kept_between_tries() -> None:
    one = plan.container_name("a", Path("/w"), "7.a/b.1")
    assert one == plan.container_name("a", Path("/w"), "7.a/b.1")
    assert one != plan.container_name("a", Path("/v"), "7.a/b.1")
    assert one.endswith("-7.a-b.1")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("python3 train.py --x 1", ["python3", "train.py", "--x", "1"]),
        (["a b", "c"], ["a b", "c"]),
        ("a && b", ["sh", "-c", "a && b"]),
        ("exit 3", ["sh", "-c", "exit 3"]),
    ],
)
def test_the_command_of_a_container(words: Any, command: list[str]) -> None:
    assert entrypoint.in_container(words) == command


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("a", ("a", "latest")),
        ("host:5000/a/b", ("host:5000/a/b", "latest")),
        ("host:5000/a/b:1", ("host:5000/a/b", "1")),
        ("a@sha256:0f", ("a", "sha256:0f")),
    ],
)
def test_images_are_split(image: str, parts: tuple[str, str]) -> None:
    assert images.split(image) == parts


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "pull access denied for x, repository does not exist or may require 'docker login'",
            "a login",
        ),
        ("Get https://r/v2/: unauthorized: authentication required", "asks for a login"),
        ("manifest for x:1 not found: manifest unknown", "does not exist"),
        ("dial tcp: lookup r: no such host", None),
        ("received unexpected HTTP status: 503 Service Unavailable", None),
    ],
)
def test_a_registrys_answer_is_put_into_words(words: str, said: str | None) -> None:
    found = images.refused("x:1", words, has_credentials=False)
    assert (found is None) if said is None else (said in str(found) and words in str(found))


def test_progress_is_told_seldom() -> None:
    now, said = [0.0], list[str]()
    progress = images.PullProgress("x", said.append, lambda: now[0])
    for second in range(21):
        now[0] = second / 2
        detail = {"current": second * 10_000_000, "total": 400_000_000}
        progress.feed({"status": "Downloading", "id": "a", "progressDetail": detail})
    assert said == [
        "pulling image x: 100 of 400 MB downloaded",
        "pulling image x: 200 of 400 MB downloaded",
    ]


def end(code: int, oom: bool = False, **facts: Any) -> tuple[Any, ...]:
    facts = {
        "image": "x",
        "command": ["python3"],
        "memory": 1 << 26,
        "hook_pending": None,
        "init_error": None,
        "machine_is_full": False,
        "told": None,
        **facts,
    }
    found = ends.describe({"ExitCode": code, "OOMKilled": oom}, **facts)
    return found.kind, found.exit_code, found.signal, found.reason


def test_ends() -> None:
    limit = "out of memory, by the limit of 64 MiB of its container"
    assert end(0, oom=True) == (ExitKind.EXITED, 0, None, None)
    assert end(137, oom=True) == (ExitKind.EXITED, None, 9, limit)
    assert end(137) == (ExitKind.EXITED, None, 9, None)
    assert end(137, machine_is_full=True)[0] is ExitKind.INFRASTRUCTURE
    assert end(1, oom=True)[3] == f"one of its processes was killed: {limit}"
    assert end(139)[2] == 11
    assert end(1, told="ValueError: 1")[3] == "ValueError: 1"
    assert end(2, hook_pending="startup-hook.sh")[2:] == (
        None,
        "startup-hook.sh failed with exit code 2",
    )
    assert end(2, hook_pending="startup-hook.sh")[0] is ExitKind.FAILED_TO_START
    assert end(127, init_error="y failed: No")[0] is ExitKind.FAILED_TO_START
    assert end(127)[:2] == (ExitKind.EXITED, 127)


def test_accounts_may_be_numbers_that_the_machine_does_not_know() -> None:
    user = AgentUser(uid=54321, gid=54322)
    with pytest.raises(IdentityError, match="is root"):
        accounts.resolve(AgentUser(uid=0, gid=0), None, allow_root=False, agent_id="a")
    if (found := _try(user)) is not None:
        assert (found.uid, found.gid) == (54321, 54322)
    assert accounts.resolve(None, None, allow_root=False, agent_id="a") is None


def _try(user: AgentUser) -> Any:
    import os

    if os.geteuid() == 0:
        return accounts.resolve(user, None, allow_root=False, agent_id="a")
    with pytest.raises(IdentityError, match="run the agent as root"):
        accounts.resolve(user, None, allow_root=False, agent_id="a")
    return None


def test_defaults_of_the_cluster() -> None:
    defaults = {"network_mode": "lab", "work_dir": "/srv/work", "startup_hook": "true"}
    mount = {"host_path": "/data", "container_path": "near"}
    body = made({"bind_mounts": [mount]}, defaults=defaults)
    assert body["WorkingDir"] == "/srv/work"
    assert body["HostConfig"]["NetworkMode"] == "lab"
    targets = [one["Target"] for one in body["HostConfig"]["Mounts"]]
    assert targets == ["/run/determined", "/srv/work", "/srv/work/near"]


def test_the_agents_own_network_comes_first() -> None:
    order = leg(defaults={"network_mode": "lab"})
    assert plan.network_mode(order, SETTINGS) == "lab"
    assert plan.network_mode(order, replace(SETTINGS, is_network_given=True)) == "bridge"
    assert plan.network_mode(leg(), SETTINGS) == "bridge"
    # The containers of such a network would never reach the service.
    local = replace(SETTINGS, master_url="http://127.0.0.1:8080", network_mode="host")
    with pytest.raises(plan.NetworkError, match="'lab': containers there do not reach the service"):
        plan.network_mode(order, local)
    assert plan.network_mode(leg(defaults={"network_mode": "host"}), local) == "host"


def test_a_missing_network() -> None:
    ended = ends.refused("network lab not found", "x")
    assert ended.kind is ExitKind.FAILED_TO_START
    assert "names a network that the agent's machine does not have" in str(ended.reason)


MLFLOW = ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN", "MLFLOW_RUN_ID")


@pytest.mark.parametrize(
    ("fields", "users", "values"),
    [
        ({}, [], (None, None, None)),
        ({"mlflow": True}, [], ("http://m:1/mlflow", "token-of-leg", "7")),
        ({"mlflow": True, "trial_id": None}, [], (None, None, None)),
        # Another server gets neither this cluster's token nor its numbers.
        (
            {"mlflow": True},
            ["MLFLOW_TRACKING_URI=http://own"],
            ("http://own", None, None),
        ),
        ({"mlflow": True}, ["MLFLOW_RUN_ID="], ("http://m:1/mlflow", "token-of-leg", "")),
    ],
)
def test_mlflow_finds_the_trials_own_run(
    fields: dict[str, Any], users: list[str], values: tuple[str | None, ...]
) -> None:
    given = {"trial_id": 7, "session_token": "token-of-leg", **fields}
    order = leg(**given, environment_variables=users)
    env = plan.environment(order, PLACE, SETTINGS, [], None)
    assert tuple(env.get(name) for name in MLFLOW) == values


@pytest.mark.parametrize(
    ("users", "values"), [([], ("true", "true")), (["DO_NOT_TRACK=0"], ("0", "true"))]
)
def test_libraries_of_a_task_send_no_telemetry_unless_the_user_wants_it(
    users: list[str], values: tuple[str, str]
) -> None:
    env = plan.environment(leg(environment_variables=users), PLACE, SETTINGS, [], None)
    assert (env["DO_NOT_TRACK"], env["MLFLOW_DISABLE_TELEMETRY"]) == values
    assert env["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"

"""Ignored fields of a configuration are named at submission, in the log and in `describe`."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from determined.common.wire.version import MOUNTS
from tests.integration.control.test_exits import begin
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.test_searcher_metric import report, warnings
from tests.integration.control.world import World, ok

MOUNTED = SINGLE.replace("max_restarts: 1", "max_restarts: 0") + (
    "environment: {image: 'example.org/team/torch:2.1'}\n"
    "bind_mounts: [{host_path: /data/team, container_path: /mnt/dataset, read_only: true}]\n"
)
IMAGE = (
    "environment.image is stored but ignored: resource pool 'default' has agents that run processes, and "
    "only those that run containers do (docs/operate/agent.md)"
)
REMARKS = [
    IMAGE,
    "bind_mounts is stored but ignored: resource pool 'default' has an agent that runs processes and "
    "can mount nothing (EPERM; docs/operate/agent.md); /mnt/dataset (on the machine: /data/team) is not "
    "mounted",
]
NO_MOUNTS = {"mounts": "EPERM"}
MISSING = "FileNotFoundError: [Errno 2] No such file or directory: '/mnt/dataset/x.csv' (train.py, line 4)"


async def remarks_of(world: World, config: str, **fields: Any) -> list[str]:
    body = {"config": config} | fields
    answer = ok(await world.user.post("/api/v1/experiments", json=body))
    return list(answer["remarks"])


async def described(world: World, experiment_id: int) -> list[str]:
    path = f"/api/v1/experiments/{experiment_id}"
    assert "remarks" not in ok(await world.user.get(path))
    return list(ok(await world.user.get(path, params={"remarks": True}))["remarks"])


async def test_processes_mount_the_configured_paths(world: World) -> None:
    await world.register(slots=1)
    assert await remarks_of(world, MOUNTED, validateOnly=True) == [IMAGE]


async def test_mounts_on_machines_that_let_processes_mount_nothing(world: World) -> None:
    await world.register(slots=1, lacks=NO_MOUNTS)
    assert await remarks_of(world, MOUNTED, validateOnly=True) == REMARKS
    assert await remarks_of(world, MOUNTED, activate=False) == REMARKS
    driver = await world.started(MOUNTED)
    trial = await world.launched()
    ok(await trial.started())
    assert await warnings(world, trial) == [f"{one}\n" for one in REMARKS]
    assert await described(world, driver.experiment_id) == REMARKS
    ok(await trial.exited(exit_code=1, reason=MISSING))
    assert (await world.trial(trial.id))["reason"] == (
        f"process exited with code 1: {MISSING} (/mnt/dataset of bind_mounts is not mounted, because the "
        "agent can mount nothing; there the directory is /data/team)"
    )


async def test_an_agent_of_a_release_that_mounts_nothing_does_not_say_so(world: World) -> None:
    await world.register(slots=1, wire=MOUNTS - 1)
    _, mounts = await remarks_of(world, MOUNTED, validateOnly=True)
    assert (
        "can mount nothing (its release mounts nothing for processes; install determined-prefect"
        in mounts
    )
    await world.register(slots=1, wire=MOUNTS)
    assert await remarks_of(world, MOUNTED, validateOnly=True) == [IMAGE]


async def test_the_next_leg_does_not_say_it_again(world: World) -> None:
    await world.register(slots=1, lacks=NO_MOUNTS)
    await world.started(MOUNTED.replace("max_restarts: 0", "max_restarts: 1"))
    trial = await world.launched()
    ok(await trial.started())
    ok(await trial.exited(exit_code=1, reason="ValueError: x"))
    again = await world.launched()
    ok(await again.started())
    assert await warnings(world, again) == [f"{one}\n" for one in REMARKS]


async def test_other_failures_have_their_own_reason(world: World) -> None:
    _, trial = await begin(world, MOUNTED)
    ok(await trial.exited(exit_code=1, reason="ValueError: x"))
    assert (await world.trial(trial.id))["reason"] == "process exited with code 1: ValueError: x"


async def docker(world: World) -> None:
    body = {
        "session": world.session,
        "worker_type": "determined-docker",
        "slots": [{"id": 0, "device": {"type": "cpu", "uuid": "", "brand": ""}}],
    }
    ok(await world.agent.post("/internal/v1/agents/a1/register", json=body))


async def test_agents_that_run_containers_apply_them(world: World) -> None:
    await docker(world)
    driver = await world.started(MOUNTED)
    assert await remarks_of(world, MOUNTED, validateOnly=True) == []
    trial = await world.launched()
    ok(await trial.started())
    assert await warnings(world, trial) == []
    ok(await trial.exited(exit_code=1, reason=MISSING))
    assert await described(world, driver.experiment_id) == []
    assert (await world.trial(trial.id))["reason"] == f"process exited with code 1: {MISSING}"


async def test_a_pool_that_never_had_an_agent_may_get_either(world: World) -> None:
    (no_agent,) = await remarks_of(world, MOUNTED, validateOnly=True)
    assert "has no agent now" in no_agent


async def test_describe_names_an_unreported_metric(world: World) -> None:
    driver, trial = await begin(world)
    await report(trial, 1, val_loss=0.5)
    (never,) = await described(world, driver.experiment_id)
    assert never.startswith("no trial ever reported 'loss' (searcher.metric); they reported")


COMMAND = {
    "entrypoint": ["true"],
    "bind_mounts": [{"host_path": "/data/team", "container_path": "/mnt/dataset"}],
}


@pytest.mark.parametrize("kind", ["commands", "shells", "notebooks"])
async def test_commands_are_told_too(world: World, kind: str) -> None:
    await world.register(slots=1, lacks=NO_MOUNTS)
    config = COMMAND if kind == "commands" else {"bind_mounts": COMMAND["bind_mounts"]}
    answer = ok(await world.user.post(f"/api/v1/{kind}", json={"config": config}))
    (remark,) = answer["remarks"]
    assert remark.startswith("bind_mounts is stored but ignored: resource pool 'default'")


async def test_mounts_that_a_tensorboard_takes_over_need_no_rights(world: World) -> None:
    await world.register(slots=1, lacks=NO_MOUNTS)
    driver = await world.started(MOUNTED)
    given = {"experimentIds": [driver.experiment_id]}
    answer = ok(await world.user.post("/api/v1/tensorboards", json=given))
    mounts = [mount["container_path"] for mount in answer["config"]["bind_mounts"]]
    assert "/mnt/dataset" in mounts
    assert answer["remarks"] == []
    given["config"] = {"bind_mounts": COMMAND["bind_mounts"]}
    (remark,) = ok(await world.user.post("/api/v1/tensorboards", json=given))["remarks"]
    assert remark.startswith("bind_mounts is stored but ignored")


async def test_generic_tasks_are_told_too(world: World) -> None:
    await world.register(slots=1, lacks=NO_MOUNTS)
    body = {"config": "entrypoint: [/bin/true]\nresources: {shm_size: 4G}\n"}
    answer = ok(await world.user.post("/api/v1/generic-tasks", json=body))
    (remark,) = answer["remarks"]
    assert remark.startswith("resources.shm_size is stored but ignored: resource pool 'default'")


async def test_retention_and_values_in_log_ranges(world: World) -> None:
    await world.register(slots=1)
    space = "lr: {type: log, base: 10, minval: 0.0001, maxval: 0.1}\n  x: {type: int"
    config = SINGLE.replace("x: {type: int", space)
    config += "retention_policy: {log_retention_days: 3}\n"
    where, exponents = await remarks_of(world, config, validateOnly=True)
    assert where.startswith("retention_policy is stored but ignored: logs are kept")
    assert exponents.endswith("write minval: -4, maxval: -1")
    driver = await world.started(config)
    trial = await world.launched()
    ok(await trial.started())
    # Doubts concern the search, so they are not written to a trial's log.
    assert await warnings(world, trial) == [where + "\n"]
    assert await described(world, driver.experiment_id) == [where, exponents]


async def test_fields_of_old_that_are_dropped(world: World) -> None:
    await world.register(slots=1)
    config = SINGLE + "resources: {agent_label: gpu}\n"
    words = (
        "resources.agent_label is read and dropped: today's field is resources.placement, such as {labels: "
        "{gpu: a100}}"
    )
    assert await remarks_of(world, config, validateOnly=True) == [words]
    driver = await world.started(config)
    trial = await world.launched()
    ok(await trial.started())
    assert await warnings(world, trial) == [words + "\n"]
    assert await described(world, driver.experiment_id) == [words]


async def test_scripts_outside_the_cluster(world: World) -> None:
    config = (
        SINGLE.replace("max_restarts: 1", "max_restarts: 2")
        + "retention_policy: {log_retention_days: 3}\n"
    )
    body = {"config": config, "unmanaged": True}
    answer = ok(await world.user.post("/api/v1/experiments", json=body))
    where, outside = answer["remarks"]
    assert where.startswith("retention_policy is stored but ignored")
    assert outside.startswith(
        "entrypoint, max_restarts (2) are stored but ignored: the experiment is"
    )
    assert await described(world, answer["experiment"]["id"]) == [where, outside]


async def test_the_steps_of_a_pipeline(world: World) -> None:
    await world.register(slots=1, lacks=NO_MOUNTS)
    first = yaml.safe_load(MOUNTED) | {"name": "first"}
    second = yaml.safe_load(SINGLE) | {"data": {"from": "${steps.first.best.checkpoint}"}}
    second["retention_policy"] = {"log_retention_days": 3}
    steps = [
        {"name": "first", "experiment": first, "code": "0"},
        {"name": "second", "experiment": second, "code": "0"},
    ]
    code = [{"path": "train.py", "type": 48, "content": "cHJpbnQoKQ==", "mode": 420}]
    body = {"pipeline": {"name": "p", "steps": steps}, "modelDefinitions": {"0": code}}
    for more in ({"validateOnly": True}, {}):
        answer = ok(await world.user.post("/api/v1/pipelines", json={**body, **more}))
        image, mounts, where = answer["remarks"]
        assert [image, mounts] == [f"step first: {one}" for one in REMARKS]
        assert where.startswith("step second: retention_policy is stored but ignored")


async def test_a_model_that_is_trained_again(world: World) -> None:
    await world.register(slots=1, lacks=NO_MOUNTS)
    ok(await world.user.post("/api/v1/models", json={"name": "digits"}))
    plan = {"evaluate": "code:evaluate", "rule": {"metric": "loss", "confidence": 0.9}}
    body = {"config": MOUNTED, "plan": plan}
    answer = ok(await world.user.put("/api/v1/models/digits/retraining", json=body))
    assert answer["remarks"] == REMARKS

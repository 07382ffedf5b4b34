"""Rights that no agent of a pool gives a container are refused at submission."""

from __future__ import annotations

import json
from typing import Any

import pytest

from determined import expconf
from tests.integration.control.test_launched import another_user, refusal
from tests.integration.control.world import CONFIG, World, ok

EXPERIMENTS, COMMANDS = "/api/v1/experiments", "/api/v1/commands"
NOTHING = {"is_root": True}
DATA = {"host_paths": ["/data"], "is_root": True}
MOUNT = {"bind_mounts": [{"host_path": "/data/sets", "container_path": "/d"}]}
CAPABILITY = {"environment": {"add_capabilities": ["SYS_PTRACE"]}}
DEVICE = {"resources": {"devices": [{"host_path": "/dev/fuse", "container_path": "/dev/fuse"}]}}


def config(*more: dict[str, Any]) -> str:
    found = expconf.load_yaml(CONFIG).data
    for one in more:
        for key, value in one.items():
            before = found.get(key)
            found[key] = {**before, **value} if isinstance(before, dict) else value
    return json.dumps(found)


async def remarks(world: World, text: str) -> list[str]:
    body = {"config": text, "validateOnly": True}
    found: list[str] = ok(await world.user.post(EXPERIMENTS, json=body))["remarks"]
    return [one for one in found if "given to containers" in one]


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (MOUNT, "bind_mounts[0].host_path: containers may not mount as root '/data/sets'; "),
        (CAPABILITY, "environment.add_capabilities[0]: containers may not add 'SYS_PTRACE'; "),
        (DEVICE, "resources.devices[0].host_path: containers may not have '/dev/fuse'; "),
    ],
)
async def test_rights_that_no_agent_gives_are_refused(
    world: World, wish: dict[str, Any], said: str
) -> None:
    await world.register(containers={"host_paths": ["/database"], "is_root": True})
    await world.register(agent_id="a2", containers=NOTHING)
    setting = "host_paths" if wish is MOUNT else "capabilities" if wish is CAPABILITY else "devices"
    first = "/database" if wish is MOUNT else "none"
    said += f"agent a1 allows {first}, agent a2 allows none: ask who runs that agent to add it to "
    said += f"security.containers.{setting} in its settings, or let an administrator submit it"
    assert said in await refusal(world, EXPERIMENTS, config=config(wish))
    assert said in await refusal(world, EXPERIMENTS, config=config(wish), validateOnly=True)
    assert said in await refusal(world, COMMANDS, config={"entrypoint": ["true"], **wish})
    await world.rows("UPDATE users SET admin = true WHERE username = 'determined' RETURNING id")
    await world.submit(config(wish))


async def test_rights_of_one_agent_are_accepted_with_a_remark(world: World) -> None:
    await world.register(containers=NOTHING)
    await world.register(agent_id="a2", containers=DATA)
    (said,) = await remarks(world, config(MOUNT))
    assert said.endswith(
        "'/data/sets' is given to containers by a2 and not by a1, on which this fails: name the former in "
        "resources.placement.agents"
    )
    there, elsewhere = ({"resources": {"placement": {"agents": [one]}}} for one in ("a2", "a1"))
    assert await remarks(world, config(MOUNT, there)) == []
    assert "agent a1 allows none: " in await refusal(
        world, EXPERIMENTS, config=config(MOUNT, elsewhere)
    )
    both = config({**MOUNT, **CAPABILITY})
    assert "add_capabilities[0]" in await refusal(world, EXPERIMENTS, config=both)


async def test_nothing_is_refused_that_may_be_given(world: World) -> None:
    # No agent is registered, or the agent sends no lists.
    await world.submit(config(MOUNT))
    await world.register()
    await world.submit(config(MOUNT))
    # A task under an account may mount folders that the account may read, regardless of the lists.
    await world.register(containers={"is_root": False})
    await world.submit(config(MOUNT))
    assert "add_capabilities[0]" in await refusal(world, EXPERIMENTS, config=config(CAPABILITY))


async def test_the_owners_account_decides_about_mounts(world: World) -> None:
    await world.register(containers=NOTHING)
    eve = await another_user(world, "eve")
    wanted = {"config": config(MOUNT)}
    assert (await eve.post(EXPERIMENTS, json=wanted)).status_code == 400
    linked = """'{"agentUid": 1234, "agentGid": 1234}'"""
    await world.rows(
        f"UPDATE users SET agent_user_group = {linked} WHERE username = 'eve' RETURNING id"
    )
    ok(await eve.post(EXPERIMENTS, json=wanted))


async def test_a_continuation_asks_again(world: World) -> None:
    await world.register(containers=NOTHING)
    single = {"searcher": {"name": "single", "metric": "loss", "max_length": 8}}
    experiment_id = await world.submit(json.dumps({**expconf.load_yaml(CONFIG).data, **single}))
    ok(await world.act(experiment_id, "kill"))
    await world.rows(
        f"UPDATE experiments SET state = 'CANCELED' WHERE id = {experiment_id} RETURNING id"
    )
    body = {"id": experiment_id, "overrideConfig": json.dumps(MOUNT)}
    said = await refusal(world, f"{EXPERIMENTS}/continue", **body)
    assert "bind_mounts[0].host_path" in said


POD = {"environment": {"pod_spec": {"spec": {"hostNetwork": True, "priorityClassName": "mine"}}}}
ON_KUBERNETES = {"is_root": True, "in_pod": True}


async def test_fields_of_pods_that_no_agent_gives_are_refused(world: World) -> None:
    # Where containers are not pods', a pod spec has no effect.
    await world.register(containers=NOTHING)
    await world.submit(config(POD))
    await world.register(containers=ON_KUBERNETES)
    said = (
        "environment.pod_spec.spec.hostNetwork: pods may not have 'hostNetwork'; agent a1 allows none: ask"
        " who runs that agent to add it to security.containers.pod_fields in its settings, or let an"
        " administrator submit it"
    )
    assert said in await refusal(world, EXPERIMENTS, config=config(POD))
    assert said in await refusal(world, COMMANDS, config={"entrypoint": ["true"], **POD})
    # A folder of a node is as good as the node, whoever the owner is there.
    assert "bind_mounts[0].host_path: pods may not mount '/data/sets'" in await refusal(
        world, EXPERIMENTS, config=config(MOUNT)
    )
    await world.register(containers={**ON_KUBERNETES, "pod_fields": ["hostNetwork"]})
    await world.submit(config(POD))
    await world.register(containers=ON_KUBERNETES)
    await world.rows("UPDATE users SET admin = true WHERE username = 'determined' RETURNING id")
    await world.submit(config(POD))

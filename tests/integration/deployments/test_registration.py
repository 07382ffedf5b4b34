"""``prefect.yaml`` on a real Prefect server: as `prefect deploy --all`, and again without harm."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate
from prefect.client.schemas.schedules import CronSchedule

from determined.common.wire.prefect import TASK_FLOWS
from determined_deployments.deploy import default_prefect_yaml, is_registered, register
from determined_deployments.prefect_yaml import PrefectYamlError
from tests.integration.control.prefect_server import AUTH
from tests.waiting import TIMEOUT_S

FLOW = '''
from prefect import flow

@flow(name="{flow}")
def nightly(path: str, count: int = 3) -> None:
    """Trains what came in during the day."""

@flow(name="{flow}-plain")
def plain() -> None:
    """Does nothing."""
'''

# `$WHO` distinguishes the results of the two ways of registering one file.
EVERYTHING = """
name: everything
prefect-version: 3.8.8
build: null
push: null
pull: null
definitions:
  pool: &pool
    name: default
    work_queue_name: night
    job_variables: {env: {LEVEL: "{{ $LEVEL }}"}}
  schedules:
    weekly: &weekly {rrule: "FREQ=WEEKLY;BYDAY=MO", timezone: Europe/Berlin}
deployments:
  - name: full-{{ $WHO }}
    version: "7"
    description: Each night.
    tags: [nightly, "{{ $LEVEL }}"]
    entrypoint: flows.py:nightly
    parameters: {path: /data, count: 5}
    enforce_parameter_schema: false
    concurrency_limit: {limit: 2, collision_strategy: CANCEL_NEW, grace_period_seconds: 90}
    work_pool: *pool
    pull:
      - prefect.deployments.steps.set_working_directory: {directory: /srv}
      - prefect.deployments.steps.run_shell_script: {script: "echo {{ x }}"}
    schedules:
      - {cron: "0 2 * * *", timezone: Europe/Berlin, slug: night, active: false, day_or: true}
      - {interval: 600, anchor_date: "2026-01-01T00:00:00+00:00", parameters: {count: 9}, slug: ten}
      - <<: *weekly
        slug: week
    triggers:
      - enabled: true
        match: {prefect.resource.id: prefect.flow-run.*}
        expect: [prefect.flow-run.Completed]
        parameters: {path: "{{ event.resource.id }}"}
      - {type: event, name: other, enabled: false, expect: [det.done], posture: Reactive, threshold: 3}
  - name: bare-{{ $WHO }}
    description: null
    version: null
    concurrency_limit: null
    entrypoint: flows.py:plain
    schedules: null
    triggers: null
    work_pool: {name: default, work_queue_name: null}
  - name: simple-{{ $WHO }}
    entrypoint: flows.py:plain
    paused: true
    concurrency_limit: 4
    schedules:
      - cron: "5 4 * * *"
      - interval: 3600
    pull: []
    work_pool: {name: default}
"""


@pytest.fixture
def flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of this test's flow in ``flows.py``; another flow has the same name with ``-plain``."""
    name = f"flow-{uuid.uuid4().hex[:8]}"
    (tmp_path / "flows.py").write_text(FLOW.format(flow=name))
    monkeypatch.setenv("WHO", "agent")
    monkeypatch.setenv("LEVEL", "high")
    return name


def write(folder: Path, text: str) -> Path:
    path = folder / "prefect.yaml"
    path.write_text(text)
    return path


def prefect_deploy_all(folder: Path, url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
        cwd=folder,
        env={
            **os.environ,
            "PREFECT_API_URL": url,
            "PREFECT_API_AUTH_STRING": AUTH,
            "PREFECT_HOME": str(folder / "home"),
            "WHO": "cli",
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr


OWN = {"id", "created", "updated", "deployment_id", "last_polled", "status", "owner_resource"}
OWN |= {
    "global_concurrency_limit_id",
    "active_slots",
    "slot_decay_per_second",
    "current_version_id",
}


def plain(value: Any) -> Any:
    """Without what differs between any two deployments."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in OWN}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.replace("-cli", "-agent") if isinstance(value, str) else value


async def seen(client: PrefectClient, name: str) -> dict[str, Any]:
    """A deployment with its schedules and automations, as Prefect's API shows them."""
    parts = dict(zip(("flow_name", "deployment_name"), name.split("/"), strict=True))
    answer = await client.request(
        "GET", "/deployments/name/{flow_name}/{deployment_name}", path_params=parts
    )
    deployment = answer.json()
    resource = f"prefect.deployment.{deployment['id']}"
    related = await client.read_resource_related_automations(resource)
    automations = [item.model_dump(mode="json") for item in related]
    for automation in automations:
        automation["actions"][0].pop("deployment_id")
    deployment["automations"] = sorted(automations, key=lambda item: str(item["name"]))
    deployment["schedules"].sort(key=lambda item: str(item["schedule"]))
    if deployment["global_concurrency_limit"]:
        deployment["global_concurrency_limit"].pop("name")
    found: dict[str, Any] = plain(deployment)
    for item in found["schedules"]:
        if item["slug"] is None:
            item["schedule"].pop("anchor_date", None)  # the time of its making
    return found


async def schedules(client: PrefectClient, name: str) -> dict[str, bool]:
    """The deployment's cron schedules: whether they are on."""
    deployment = await client.read_deployment_by_name(name)
    found = await client.read_deployment_schedules(deployment.id)
    assert len({str(item.schedule) for item in found}) == len(found), "a schedule was doubled"
    return {item.schedule.cron: item.active for item in found}  # type: ignore[union-attr]


async def test_the_same_as_prefect_deploy_all(
    client: PrefectClient, prefect_url: str, flow: str, tmp_path: Path
) -> None:
    path = write(tmp_path, EVERYTHING)
    ids = await register(path)
    prefect_deploy_all(tmp_path, prefect_url)
    names = {f"{flow}/full": None, f"{flow}-plain/bare": None, f"{flow}-plain/simple": None}
    assert set(ids) == {f"{name}-agent" for name in names}
    for name in names:
        ours, theirs = await seen(client, f"{name}-agent"), await seen(client, f"{name}-cli")
        assert ours == theirs
    full = await seen(client, f"{flow}/full-agent")
    assert len(full["schedules"]) == 3
    assert len(full["automations"]) == 2
    assert len(full["pull_steps"]) == 2
    assert full["global_concurrency_limit"]["limit"] == 2
    assert full["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
    assert full["tags"] == ["nightly", "high"]
    # Again, on both sides: still the same.
    again = write(tmp_path, EVERYTHING.replace("Each night.", "Every night."))
    await register(again)
    prefect_deploy_all(tmp_path, prefect_url)
    assert await seen(client, f"{flow}/full-agent") == await seen(client, f"{flow}/full-cli")


ENTRY = """
deployments:
  - name: one
    entrypoint: flows.py:plain
    work_pool: {name: default}
    schedules:
      - cron: "0 1 * * *"
      - {cron: "0 2 * * *", active: true}
      - {cron: "0 3 * * *", slug: three}
    triggers:
      - {name: first, expect: [a.b]}
      - {name: second, expect: [a.c]}
"""


async def test_changes_by_people_in_prefect_stay(
    client: PrefectClient, flow: str, tmp_path: Path
) -> None:
    path = write(tmp_path, ENTRY)
    name = f"{flow}-plain/one"
    (deployment,) = (await register(path)).values()
    assert await schedules(client, name) == {f"0 {hour} * * *": True for hour in (1, 2, 3)}
    # In Prefect's UI: some paused, one added, one deleted; a limit, a tag and a parameter set.
    made = await client.read_deployment_schedules(deployment)
    by_cron = {item.schedule.cron: item.id for item in made}  # type: ignore[union-attr]
    for hour in (1, 2):
        await client.update_deployment_schedule(deployment, by_cron[f"0 {hour} * * *"], False)
    await client.delete_deployment_schedule(deployment, by_cron["0 3 * * *"])
    added = DeploymentScheduleCreate(schedule=CronSchedule(cron="0 9 * * *"))
    await client.create_deployment_schedules(deployment, [added])
    await client.update_deployment(deployment, DeploymentUpdate(concurrency_limit=3, tags=["mine"]))
    await client.pause_deployment(deployment)
    first = next(item for item in await client.read_automations() if item.name == "first")
    await client.pause_automation(first.id)
    expected = {"0 1 * * *": False, "0 2 * * *": False, "0 9 * * *": True}

    async def check(**changed: Any) -> None:
        assert await schedules(client, name) == expected
        now = await client.read_deployment(deployment)
        assert now.global_concurrency_limit is not None
        assert (now.global_concurrency_limit.limit, now.paused) == (3, True)
        assert (now.tags, now.description) == (
            ["mine"],
            changed.get("description", "Does nothing."),
        )
        owned = [
            item for item in await client.read_automations() if item.name in ("first", "second")
        ]
        assert {item.name: item.enabled for item in owned} == {"first": False, "second": True}

    before = await client.read_deployment(deployment)
    await register(path)
    await check()
    assert (await client.read_deployment(deployment)).updated == before.updated, (
        "nothing is written"
    )
    # The entry changes, but says nothing new of any of this.
    await register(
        write(tmp_path, ENTRY.replace("  - name: one", "  - name: one\n    description: new"))
    )
    await check(description="new")


async def test_changes_of_the_file_are_applied(
    client: PrefectClient, flow: str, tmp_path: Path
) -> None:
    name = f"{flow}-plain/one"
    (deployment,) = (await register(write(tmp_path, ENTRY))).values()
    added = DeploymentScheduleCreate(schedule=CronSchedule(cron="0 9 * * *"))
    await client.create_deployment_schedules(deployment, [added])
    for item in await client.read_deployment_schedules(deployment):
        await client.update_deployment_schedule(deployment, item.id, active=False)
    changed = (
        ENTRY.replace('      - cron: "0 1 * * *"\n', "")  # gone
        .replace("active: true", "active: false")
        .replace('{cron: "0 3 * * *", slug: three}', '{cron: "0 4 * * *", slug: three}')
        .replace("    triggers:", '      - cron: "0 5 * * *"\n    triggers:')
        .replace("{name: second, expect: [a.c]}", "{name: third, expect: [a.c]}")
    )
    await register(write(tmp_path, changed))
    assert await schedules(client, name) == {
        "0 2 * * *": False,
        "0 4 * * *": False,  # found by its slug; that somebody paused it stays
        "0 5 * * *": True,
        "0 9 * * *": False,
    }
    resource = f"prefect.deployment.{deployment}"
    owned = await client.read_resource_related_automations(resource)
    assert {item.name for item in owned} == {"first", "third"}
    switched = changed.replace("slug: three", "slug: three, active: true")
    await register(write(tmp_path, switched))
    assert (await schedules(client, name))["0 4 * * *"] is True
    await register(write(tmp_path, switched.replace("slug: three", "slug: four, replaces: three")))
    assert len(await schedules(client, name)) == 4
    slugs = {item.slug for item in await client.read_deployment_schedules(deployment)}
    assert slugs == {None, "four"}


async def test_deployments_of_prefect_deploy_are_taken_over(
    client: PrefectClient, prefect_url: str, flow: str, tmp_path: Path
) -> None:
    """Without a record of the last registration, schedules are matched by content."""
    path = write(tmp_path, ENTRY)
    prefect_deploy_all(tmp_path, prefect_url)
    name = f"{flow}-plain/one"
    deployment = await client.read_deployment_by_name(name)
    for item in await client.read_deployment_schedules(deployment.id):
        await client.update_deployment_schedule(deployment.id, item.id, active=False)
    for _ in range(2):
        await register(path)
        assert await schedules(client, name) == {f"0 {hour} * * *": False for hour in (1, 2, 3)}


async def test_a_deployment_that_was_deleted_is_made_again(
    client: PrefectClient, flow: str, tmp_path: Path
) -> None:
    path = write(tmp_path, ENTRY)
    for _ in range(2):
        (deployment,) = (await register(path)).values()
        assert len(await schedules(client, f"{flow}-plain/one")) == 3
        await client.delete_deployment(deployment)


def own(folder: Path, mark: str) -> Path:
    """The platform's file, with this test's deployments."""
    text = default_prefect_yaml().read_text()
    for name in ("experiment", "trial", "checkpoint-gc", "retrain", "pipeline", *TASK_FLOWS):
        text = text.replace(f"- name: {name}\n", f"- name: {name}-{mark}\n")
    return write(folder, text)


async def test_the_platforms_own_file_takes_few_calls_and_none_when_nothing_changed(
    client: PrefectClient, prefect_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = uuid.uuid4().hex[:8]
    own(tmp_path, f"{mark}-cli")
    prefect_deploy_all(tmp_path, prefect_url)
    path = own(tmp_path, f"{mark}-agent")
    assert not await is_registered(client, path)
    calls: list[str] = []
    send = httpx.AsyncClient.send

    async def counted(self: Any, request: httpx.Request, **options: Any) -> httpx.Response:
        calls.append(f"{request.method} {request.url.path}")
        return await send(self, request, **options)

    monkeypatch.setattr(httpx.AsyncClient, "send", counted)
    ids = await register(path)
    assert len([call for call in calls if "csrf" not in call]) == 2 + 3 * len(ids), calls
    for name in ids:
        ours, theirs = await seen(client, name), await seen(client, name.replace("agent", "cli"))
        assert ours == theirs
    # Somebody changes one in Prefect: it is registered all the same, and stays changed.
    first, *_, last = ids
    await client.pause_deployment(ids[first])
    await client.update_deployment(ids[first], DeploymentUpdate(tags=["mine"]))
    calls.clear()
    assert await is_registered(client, path)
    assert [call.rpartition("/api/")[2] for call in calls] == [
        "variables/filter",
        "deployments/filter",
    ]
    assert await register(path) == ids
    now = await client.read_deployment(ids[first])
    assert (now.paused, now.tags) == (True, ["mine"])
    # Somebody deletes one: it comes back.
    await client.delete_deployment(ids[last])
    assert not await is_registered(client, path)
    again = await register(path)
    assert again == {**ids, last: again[last]}
    assert again[last] != ids[last]
    assert await is_registered(client, path)
    # The file says something new.
    changed = write(tmp_path, path.read_text().replace("One trial of", "A trial of"))
    assert not await is_registered(client, changed)
    assert await register(changed) == again
    trial = await client.read_deployment(again[f"trial/trial-{mark}-agent"])
    assert (trial.description or "").startswith("A trial of")
    assert (await client.read_deployment(ids[first])).paused
    assert await is_registered(client, changed)


BROKEN = """
deployments:
  - {name: right, entrypoint: flows.py:plain, work_pool: {name: default}}
  - {name: no-pool, entrypoint: flows.py:plain, work_pool: {name: elsewhere}}
  - {name: no-flow, entrypoint: flows.py:absent, work_pool: {name: default}}
  - {name: no-module, entrypoint: absent_module.flow, work_pool: {name: default}}
  - {name: wrong-type, entrypoint: flows.py:nightly, work_pool: {name: default}, parameters: {count: x}}
  - {name: two-ways, entrypoint: flows.py:plain, work_pool: {name: default},
     schedules: [{cron: "* * * * *", interval: 3}]}
  - {entrypoint: flows.py:plain, work_pool: {name: default}}
  - {name: bad-fields, entrypoint: flows.py:plain, work_pool: null, parameters: null,
     schedules: [{cron: "* * * * *", slugg: x}], concurrency_limit: {limit: many}}
"""


async def test_a_mistake_names_file_and_entry_and_the_others_are_registered(
    client: PrefectClient, flow: str, tmp_path: Path
) -> None:
    path = write(tmp_path, BROKEN)
    with pytest.raises(PrefectYamlError) as caught:
        await register(path)
    mistakes = caught.value.mistakes
    assert await client.read_deployment_by_name(f"{flow}-plain/right")
    for entry, word in {
        "'no-pool'": "'elsewhere'",
        "'no-flow'": "absent",
        "'no-module'": "absent_module",
        "'wrong-type'": "'x' is not of type 'integer'",
        "'two-ways'": "schedules.0: Exactly one of 'cron', 'interval', or 'rrule' must be provided",
        "number 7": "name is missing",
    }.items():
        (said,) = [item for item in mistakes if item.startswith(f"{path}: deployment {entry}: ")]
        assert word in said
    assert [item.partition("'bad-fields': ")[2] for item in mistakes if "bad-fields" in item] == [
        "schedules.0.slugg: Extra inputs are not permitted",
        "concurrency_limit: Input should be a valid integer",
        "parameters: Input should be a valid dictionary",
    ]
    assert len(mistakes) == 9

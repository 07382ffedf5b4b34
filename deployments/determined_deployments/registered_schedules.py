"""A deployment's schedules in Prefect and in ``prefect.yaml``, brought together.

A schedule is changed only when its item in the file is new, has changed or has gone since the last
registration. Otherwise the changes that people make to schedules in Prefect stay. Prefect's own update
replaces all schedules that have no slug, and refuses when only some of them have one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import DeploymentSchedule


def digest(value: Any) -> str:
    """A short name for a value that can be written as JSON."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def name_items(items: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The file's schedules by name; an item keeps its name as long as it does not change."""
    named: dict[str, dict[str, Any]] = {}
    for item in items:
        name = digest(item)
        while name in named:
            name = digest([name])
        named[name] = dict(item)
    return named


def build(item: Mapping[str, Any]) -> dict[str, Any]:
    """Prefect's form of an item: ``schedule`` and, where given, ``active``, ``parameters`` …

    Raises ValueError (pydantic's among them) for one that is not valid.
    """
    from prefect.cli.deploy._schedules import _schedule_config_to_deployment_schedule

    return _schedule_config_to_deployment_schedule(dict(item))


def find(
    item: Mapping[str, Any], existing: Sequence[DeploymentSchedule]
) -> DeploymentSchedule | None:
    """The schedule in Prefect that the item stands for: by slug, else by what it says."""
    slugs = [item[key] for key in ("replaces", "slug") if item.get(key)]
    if slugs:
        by_slug = {schedule.slug: schedule for schedule in existing}
        return next((by_slug[slug] for slug in slugs if slug in by_slug), None)
    built = build(item)
    wanted = _plain(built["schedule"], item)
    for schedule in existing:
        same = _plain(schedule.schedule, item) == wanted
        if same and (schedule.parameters or {}) == (built.get("parameters") or {}):
            return schedule
    return None


def _plain(schedule: Any, item: Mapping[str, Any]) -> dict[str, Any]:
    # An interval without an anchor gets the time of its making as one.
    exclude = set() if item.get("anchor_date") else {"anchor_date"}
    plain: dict[str, Any] = schedule.model_dump(mode="json", exclude=exclude)
    return plain


async def reconcile(
    client: PrefectClient,
    deployment_id: UUID,
    items: Iterable[Mapping[str, Any]],
    before: Mapping[str, str] | None,
) -> dict[str, str]:
    """Bring the deployment's schedules to the state of the file.

    ``before``: the answer of the last registration, None when there was none. Returns the schedules' ids
    by their items' names. A schedule that the file had before is deleted when the file has it no more.
    """
    named = name_items(items)
    existing = {str(s.id): s for s in await client.read_deployment_schedules(deployment_id)}
    known = before or {}
    kept = {name: known[name] for name in named if name in known}
    now = dict(kept)
    for name, item in named.items():
        if name in now:
            continue
        taken = set(now.values())
        found = find(item, [s for id_, s in existing.items() if id_ not in taken])
        if found is None:
            now[name] = str(await _create(client, deployment_id, item))
        else:
            now[name] = str(found.id)
            await _change(client, deployment_id, found, item, keep_switch=before is None)
    for name, id_ in known.items():
        if name not in named and id_ in existing and id_ not in now.values():
            await _delete(client, deployment_id, UUID(id_))
    return now


async def note(
    client: PrefectClient, deployment_id: UUID, items: Iterable[Mapping[str, Any]]
) -> dict[str, str]:
    """The answer of :func:`reconcile` for a deployment that was just made with these schedules."""
    existing = list(await client.read_deployment_schedules(deployment_id))
    now: dict[str, str] = {}
    for name, item in name_items(items).items():
        found = find({**item, "replaces": None}, existing)
        if found is not None:
            existing.remove(found)
            now[name] = str(found.id)
    return now


async def _create(client: PrefectClient, deployment_id: UUID, item: Mapping[str, Any]) -> UUID:
    from prefect.client.schemas.actions import DeploymentScheduleCreate

    made = DeploymentScheduleCreate(**build({**item, "replaces": None}))
    (created,) = await client.create_deployment_schedules(deployment_id, [made])
    return created.id


async def _change(
    client: PrefectClient,
    deployment_id: UUID,
    found: DeploymentSchedule,
    item: Mapping[str, Any],
    keep_switch: bool,
) -> None:
    """Sets the fields that the item gives. ``keep_switch``: the schedule stays on or off as it is."""
    built = build(item)
    await client.update_deployment_schedule(
        deployment_id,
        found.id,
        active=None if keep_switch else built.get("active"),
        schedule=None
        if _plain(found.schedule, item) == _plain(built["schedule"], item)
        else built["schedule"],
        parameters=built.get("parameters"),
        slug=built.get("slug"),
    )


async def _delete(client: PrefectClient, deployment_id: UUID, schedule_id: UUID) -> None:
    from prefect.exceptions import ObjectNotFound

    with contextlib.suppress(ObjectNotFound):
        await client.delete_deployment_schedule(deployment_id, schedule_id)

"""Every changing route, asked as each role: what ``tests/roles_table.py`` says is what happens."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import (
    experiments,
    models,
    pipelines,
    projects,
    role_assignments,
    tasks,
    templates,
)
from determined_service.access.roles import CLUSTER_ADMIN, ROLES
from determined_service.access.rules import PERMITS, Action, Grant
from determined_service.access.targets import Kind
from determined_service.reference import Address
from tests import roles_table
from tests.integration.roles import give, put_mode, workspace
from tests.integration.service_api.test_who_may import (
    FOR_EVERYBODY,
    OF_ONE_KIND,
    PASSED_OVER,
    RULES,
    Mine,
    People,
    ask,
    chosen,
    chosen_run,
    everything,
    mine_in,
    people,
    refusal,
)
from tests.integration.service_api.world import World

__all__ = ["people"]

PASSED, REFUSED, HIDDEN = "passed", "refused", "not found"
ASKED = {
    address: rule
    for address, rule in RULES.items()
    if address not in FOR_EVERYBODY
    and address not in OF_ONE_KIND
    and rule.kind not in (Kind.USER, Kind.ACCESS_TOKEN)
    # Two places decide about a move: test_moves.
    and not address[1].endswith("/move")
}
"""Users change themselves and their access tokens, whatever their roles: test_who_may.py."""


MAKING = {("PUT", "/api/v1/templates/{template_name}")}
"""It makes what is not there, in the first workspace unless another one is named, and so is refused to those
who may make none there."""


@dataclass(frozen=True)
class Places:
    world: World
    vision: int
    hidden: int

    async def mine(self, place: int) -> Mine:
        """Things of the user ``determined`` in that workspace."""
        mine = await mine_in(self.world)
        async with self.world.db.tx() as conn:
            made = {"workspace_id": place, "name": uuid.uuid4().hex, "owner_id": mine.user_id}
            found = await conn.scalar(sa.insert(projects).values(made).returning(projects.c.id))
            project = int(found or 0)
            number = mine.leg.experiment_id
            for statement in (
                sa.update(experiments).where(experiments.c.id == number).values(project_id=project),
                sa.update(models).where(models.c.name == mine.model).values(workspace_id=place),
                sa.update(templates)
                .where(templates.c.name == mine.model)
                .values(workspace_id=place),
                sa.update(pipelines).where(pipelines.c.id == number).values(workspace_id=place),
                sa.update(tasks)
                .where(tasks.c.id.in_(mine.tasks.values()))
                .values(workspace_id=place),
                sa.update(role_assignments)
                .where(role_assignments.c.group_id == mine.group)
                .values(workspace_id=place),
            ):
                await conn.execute(statement)
        return replace(mine, workspace_id=place, project_id=project)


@pytest.fixture
async def places(service_app: FastAPI, world: World, people: People) -> Places:
    """A workspace in which there is a role, and another one."""
    made = []
    for name in ("vision", "hidden"):
        made.append(await workspace(service_app, name))
    return Places(world, *made)


def outcome(answer: httpx.Response) -> str:
    """What became of the request; of a bulk action, of its one experiment."""
    said = refusal(answer) or ""
    if answer.status_code == 404 or said.startswith("not found"):
        return HIDDEN
    if answer.status_code == 403 or "that needs the role" in said:
        return REFUSED
    assert answer.status_code not in PASSED_OVER, answer.text
    return PASSED


def takes_away(address: Address) -> bool:
    method, path = address
    return method == "DELETE" or path.endswith(("/remove-assignments", "/rm"))


def order(address: Address) -> tuple[bool, bool]:
    """The workspace itself goes last."""
    return takes_away(address), address == ("DELETE", "/api/v1/workspaces/{workspace_id}")


def cell(role: str, address: Address) -> str:
    rule = ASKED[address]
    if (rule.action, rule.kind) in PERMITS:
        return roles_table.cell(ROLES[role], rule.action, rule.kind)
    assert rule.grant == Grant.ADMINISTRATOR, address
    return roles_table.ALL if role == CLUSTER_ADMIN else roles_table.NONE


@pytest.mark.parametrize("role", ROLES)
async def test_routes(service_app: FastAPI, places: Places, people: People, role: str) -> None:
    """Of another's thing, of one's own, and of one's own in another workspace."""
    place = None if ROLES[role].cluster_wide else places.vision
    for username in ("determined", "mallory"):
        await give(service_app, username, role, place)
    await put_mode(service_app)
    here, there = await places.mine(places.vision), await places.mine(places.hidden)
    before = await everything(places.world)
    passing: list[tuple[httpx.AsyncClient, Address]] = []
    for address, rule in ASKED.items():
        allowed = cell(role, address)
        if address in MAKING and allowed == roles_table.ALL and role != CLUSTER_ADMIN:
            pass
        elif allowed == roles_table.ALL:
            passing.append((people.stranger, address))
        else:
            found = outcome(await ask(people.stranger, address, here))
            assert found in (REFUSED, HIDDEN), f"another's: {address} {found}"
        if allowed == roles_table.OWN:
            passing.append((people.owner, address))
        elif allowed == roles_table.NONE:
            found = outcome(await ask(people.owner, address, here))
            assert found in (REFUSED, HIDDEN), f"one's own: {address} {found}"
        if role != CLUSTER_ADMIN:
            answer = await ask(people.owner, address, there)
            found = outcome(answer)
            is_placed = (rule.action, rule.kind) in PERMITS and rule.kind != Kind.CLUSTER
            is_placed = is_placed and address not in MAKING
            expected = (HIDDEN,) if is_placed else (REFUSED, HIDDEN)
            assert found in expected, f"elsewhere: {address} {answer.text}"
    assert await everything(places.world) == before
    # What takes something away comes last, and gets things of its own.
    for client, address in sorted(passing, key=lambda one: order(one[1])):
        mine = await places.mine(places.vision) if takes_away(address) else here
        answer = await ask(client, address, mine)
        assert outcome(answer) == PASSED, f"{address}: {answer.text}"


MOVED = {
    ("POST", "/api/v1/experiments/{experiment_id}/move"): Kind.EXPERIMENT,
    ("POST", "/api/v1/projects/{project_id}/experiments/move"): Kind.EXPERIMENT,
    ("POST", "/api/v1/runs/move"): Kind.EXPERIMENT,
    ("POST", "/api/v1/projects/{project_id}/move"): Kind.PROJECT,
    ("POST", "/api/v1/models/{model_name}/move"): Kind.MODEL,
}
"""The routes that move something: who may change it where it is, and make one where it goes."""


def destination(address: Address, mine: Mine, to: Mine) -> dict[str, object]:
    """The body of a move to the workspace, or the project, in which the things ``to`` are."""
    kind = MOVED[address]
    if kind != Kind.EXPERIMENT:
        return {"destinationWorkspaceId": to.workspace_id}
    body: dict[str, object] = {"destinationProjectId": to.project_id}
    if address[1].endswith("experiments/move"):
        return body | chosen(mine)
    return body | chosen_run(mine) if "/runs/" in address[1] else body


async def move(client: httpx.AsyncClient, address: Address, mine: Mine, to: Mine) -> str:
    """The refusal of the request to move a thing of ``mine`` to where ``to`` is; blank: it was moved."""
    method, path = address
    body = destination(address, mine, to)
    answer = await client.request(method, path.format(**mine.path), json=body)
    return answer.text if answer.status_code != 200 else refusal(answer) or ""


async def lies_in(world: World, mine: Mine) -> tuple[int, ...]:
    """The workspaces of the experiment, the project and the model."""
    (row,) = await world.rows(
        sa.text(
            "SELECT (SELECT p.workspace_id FROM experiments e JOIN projects p ON p.id = e.project_id"
            f" WHERE e.id = {mine.leg.experiment_id}) AS experiment,"
            f" (SELECT workspace_id FROM projects WHERE id = {mine.project_id}) AS project,"
            f" (SELECT workspace_id FROM models WHERE name = '{mine.model}') AS model"
        )
    )
    return tuple(row)


@pytest.mark.parametrize("role", [one for one in ROLES if one != CLUSTER_ADMIN])
async def test_moves(service_app: FastAPI, places: Places, people: People, role: str) -> None:
    """Of another's thing: with the role in both workspaces, where it is alone, and where it goes alone."""
    other = await workspace(service_app, "speech")
    wide = ROLES[role].cluster_wide
    for place in (None,) if wide else (places.vision, other):
        await give(service_app, "mallory", role, place)
    # It is seen there, and nothing can be made or changed.
    await give(service_app, "mallory", "Viewer", places.hidden)
    await put_mode(service_app)
    assert MOVED.keys() == {address for address in RULES if address[1].endswith("/move")}
    here, there, hidden = [
        await places.mine(place) for place in (places.vision, other, places.hidden)
    ]
    for address, kind in MOVED.items():
        for source, target in ((here, hidden), (hidden, here)):
            before = await lies_in(places.world, source)
            said = await move(people.stranger, address, source, target)
            assert said, f"{address}: moved"
            assert await lies_in(places.world, source) == before, address
        needed = [
            roles_table.cell(ROLES[role], one, kind) for one in (Action.CHANGE, Action.CREATE)
        ]
        mine = await places.mine(places.vision)
        before = await lies_in(places.world, mine)
        said = await move(people.stranger, address, mine, there)
        # This run is one of many of its search, and moves with its experiment only.
        passed = not said or "is part of a search" in said
        assert passed == (needed == [roles_table.ALL] * 2), f"{address}: {said}"
        after = await lies_in(places.world, mine)
        assert (after != before) == (not said), address
        assert set(after) <= {places.vision, other}


def test_the_table_has_a_route_for_each_of_its_rows() -> None:
    asked = {(rule.action, rule.kind) for rule in RULES.values()}
    # A port of a task is visited through the proxy; the others are asked beside another rule of a route.
    assert PERMITS.keys() - asked == {
        (Action.VISIT, Kind.TASK),
        (Action.REGISTER, Kind.CHECKPOINT),
        (Action.ADMINISTER, Kind.WORKSPACE),
    }

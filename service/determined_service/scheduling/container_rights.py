"""Whether an agent gives containers what a configuration asks for, asked at submission.

Agents decide it again when they start one: they follow links, and their settings may have changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire.agents import ContainerRights
from determined.common.wire.legs import Granted
from determined.expconf.container_wishes import Wish, is_given, refusal, wishes
from determined_registry.database.tables.people import FIRST
from determined_service.base.errors import BadRequest
from determined_service.base.settings import Settings
from determined_service.lifecycle.kinds.base import agent_user, granted
from determined_service.scheduling.constraints import constraint_of
from determined_service.scheduling.wording import listed

_OWNER = sa.text(
    """
    SELECT u.admin, coalesce(w.agent_user_group, u.agent_user_group) AS agent_user_group
    FROM users u LEFT JOIN workspaces w ON w.id = :workspace_id WHERE u.id = :id
    """
)
# ``here``: within the last minutes, so that one that is just restarting counts.
_AGENTS = sa.text(
    """
    SELECT id, labels, container_rights, last_heartbeat > now() - interval '5 minutes' AS here
    FROM agents WHERE resource_pool = ANY(:pools) ORDER BY id
    """
)


class _Agent(NamedTuple):
    id: str
    is_here: bool
    rights: ContainerRights
    refused: Wish | None
    """The first wish that it does not give."""


async def require_rights(
    conn: AsyncConnection,
    config: Mapping[str, Any],
    pool: str,
    owner_id: int,
    settings: Settings,
    workspace_id: int = FIRST,
) -> tuple[str, ...]:
    """Sentences where only some agents give what the containers of the (complete) ``config`` ask for.

    Raises BadRequest when none does of those that it may run on, in ``pool`` and those that it may fall back
    to. Nothing is known of a pool without agents, and of agents that do not say what they give.
    """
    if not any(next(wishes(config, is_root=True, in_pod=pods), None) for pods in (False, True)):
        return ()
    owner = (await conn.execute(_OWNER, {"id": owner_id, "workspace_id": workspace_id})).one()
    given = granted(
        settings.cluster, settings.checkpoint_storage, pool, is_administrator=owner.admin
    )
    if given.administrator:
        return ()
    resources = config.get("resources") or {}
    pools = [pool, *((resources.get("fallback") or {}).get("pools") or ())]
    constraint = constraint_of(resources.get("placement"))
    rows = [
        row
        for row in await conn.execute(_AGENTS, {"pools": pools})
        if constraint is None or constraint.admits(row.id, row.labels)
    ]
    here = [row for row in rows if row.here]
    if not here or any(row.container_rights is None for row in here):
        return ()
    linked = agent_user(owner.agent_user_group)
    asked = []
    for row in rows:
        if row.container_rights is not None:
            rights = ContainerRights.from_json(row.container_rights)
            is_root = rights.is_root if linked is None else _is_root(linked.uid, linked.user)
            refused = _refused(config, rights, given, is_root=is_root)
            asked.append(_Agent(row.id, row.here, rights, refused))
    giving = [one.id for one in asked if one.refused is None]
    present = [one for one in asked if one.is_here]
    wish = next((one.refused for one in present if one.refused is not None), None)
    if wish is None:
        return ()
    if not giving:
        raise BadRequest(refusal(wish, _allowed(present, wish)))
    lacking = [one.id for one in present if one.refused is not None]
    # Only experiments choose agents.
    advice = ": name the former in resources.placement.agents" if "searcher" in config else ""
    return (
        f"{wish.path}: {wish.found!r} is given to containers by {listed(giving)} and not by "
        f"{listed(lacking)}, on which this fails{advice}",
    )


def _refused(
    config: Mapping[str, Any], rights: ContainerRights, given: Granted, *, is_root: bool
) -> Wish | None:
    for wish in wishes(config, is_root=is_root, in_pod=rights.in_pod):
        lists = [*getattr(rights, wish.setting), *getattr(given, wish.setting)]
        if not is_given(wish, lists):
            return wish
    return None


def _allowed(agents: Sequence[_Agent], wish: Wish) -> str:
    each = [
        f"agent {one.id} allows {listed(getattr(one.rights, wish.setting)) or 'none'}"
        for one in agents
    ]
    return listed(each)


def _is_root(uid: int | None, user: str | None) -> bool:
    return uid == 0 if uid is not None else user == "root"

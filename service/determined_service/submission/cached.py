"""Experiments that answer a later submission of the same configuration and code: :func:`find`.

Pipelines (``cached: true``) and blocks (``cached=True``) find each other's experiments, by one key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import experiments
from determined_service.base.db import hold_name
from determined_service.base.errors import Conflict
from determined_service.state import states

TRIES = 100
_KEY = "pipeline/{content}/{tried}"
"""As earlier releases wrote it, so that their experiments are found."""


def content_of(config: dict[str, Any], code: str | None) -> str:
    """A digest of the configuration, as it was given, and of the code (a model definition's hash)."""
    text = orjson.dumps(config, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text + b"\0" + (code or "").encode()).hexdigest()


async def _any(experiment_id: int) -> bool:
    return True


async def find(
    conn: AsyncConnection,
    owner_id: int,
    content: str,
    is_usable: Callable[[int], Awaitable[bool]] = _any,
) -> tuple[int | None, str]:
    """The owner's experiment of this content that runs, or has completed and ``is_usable``; None: there is
    none. And its key; without an experiment, the key of the one to be stored now.

    Until the end of the transaction, others that look for the same content wait. Raises Conflict.
    """
    await hold_name(conn, f"{owner_id}/cached/{content}")
    keys = [_KEY.format(content=content, tried=tried) for tried in range(TRIES)]
    e = experiments.c
    found = await conn.execute(
        sa.select(e.id, e.state, e.idempotency_key)
        .where(e.owner_id == owner_id, e.idempotency_key.in_(keys))
        .order_by(e.id.desc())
    )
    used = set()
    for one in found:
        used.add(one.idempotency_key)
        runs = one.state in states.RUNNABLE or one.state == states.STOPPING_COMPLETED
        if runs or (one.state == states.COMPLETED and await is_usable(one.id)):
            return one.id, one.idempotency_key
    left = [key for key in keys if key not in used]
    if not left:
        raise Conflict(
            f"this configuration with this code has failed {TRIES} times: change it, or leave `cached` out"
        )
    return None, left[0]

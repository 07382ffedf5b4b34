"""SQL conditions on an agent's presence, over a row ``g`` of ``agents``.

``timeout`` and ``agent_timeout_s`` are the seconds of silence after which an agent counts as lost.
"""

from __future__ import annotations

ENDED, HUNG_UP = "ended", "hung_up"
"""The values of ``agents.away``."""


def is_alive(timeout: str = ":timeout") -> str:
    """SQL: the agent has not ended, and sent a heartbeat within ``timeout``."""
    return (
        f"(g.away IS DISTINCT FROM '{ENDED}'"
        f" AND g.last_heartbeat > now() - make_interval(secs => {timeout}))"
    )


def is_kept(timeout: str = ":timeout", waits: str = ":waits") -> str:
    """SQL: what the agent has begun is not lost, because its heartbeat came within ``timeout``, or within the
    seconds of its pool in ``waits`` (JSON, of :meth:`ClusterConfig.reconnect_waits`) where these are more.
    """
    own = f"(cast({waits} AS jsonb) ->> g.resource_pool)::float8"
    return f"(g.last_heartbeat > now() - make_interval(secs => greatest({timeout}, {own})))"


def takes_work(timeout: str = ":timeout") -> str:
    """SQL: the agent is alive and its connection has not broken, so work placed there is likely to start."""
    return f"({is_alive(timeout)} AND g.away IS NULL)"


def state(timeout: str = ":timeout") -> str:
    """SQL: the agent's state for the API. ALIVE; SILENT (no heartbeat within ``timeout``, or none since its
    connection broke); ENDED (its process has signed off)."""
    return (
        f"(CASE WHEN g.away = '{ENDED}' THEN 'STATE_ENDED'"
        f" WHEN {takes_work(timeout)} THEN 'STATE_ALIVE' ELSE 'STATE_SILENT' END)"
    )


def is_usable(slot: str = "s") -> str:
    """SQL: an administrator has disabled neither the slot, a row of ``slots``, nor its machine."""
    return f"""({slot}.enabled AND NOT EXISTS (
        SELECT FROM disabled_machines m WHERE m.agent_id = {slot}.agent_id AND m.machine = {slot}.machine))"""

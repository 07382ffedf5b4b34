"""Whether an agent is there: SQL over a row ``g`` of ``agents``.

``timeout`` and ``agent_timeout_s`` are the seconds of silence after which an agent counts as lost.
"""

from __future__ import annotations

ENDED, HUNG_UP = "ended", "hung_up"
"""The values of ``agents.away``."""


def is_alive(timeout: str = ":timeout") -> str:
    """It has not ended, and was heard of within ``timeout``. What it runs is not lost."""
    return (
        f"(g.away IS DISTINCT FROM '{ENDED}'"
        f" AND g.last_heartbeat > now() - make_interval(secs => {timeout}))"
    )


def takes_work(timeout: str = ":timeout") -> str:
    """It is alive and its connection has not broken: what is placed there is likely to start."""
    return f"({is_alive(timeout)} AND g.away IS NULL)"


def state(timeout: str = ":timeout") -> str:
    """Its state for the API: ALIVE, SILENT (no heartbeat within ``timeout``, or none since its connection
    broke), ENDED (its process has said so)."""
    return (
        f"(CASE WHEN g.away = '{ENDED}' THEN 'STATE_ENDED'"
        f" WHEN {takes_work(timeout)} THEN 'STATE_ALIVE' ELSE 'STATE_SILENT' END)"
    )


def is_usable(slot: str = "s") -> str:
    """SQL: an administrator has disabled neither the slot, a row of ``slots``, nor its machine."""
    return f"""({slot}.enabled AND NOT EXISTS (
        SELECT FROM disabled_machines m WHERE m.agent_id = {slot}.agent_id AND m.machine = {slot}.machine))"""

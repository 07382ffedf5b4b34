"""Log policies: lines of a trial's log that trigger an action.

The lines of a request are looked at before the transaction that stores them. A pattern that is plain text is
looked for here, every other one in a separate process (:mod:`determined_service.ingest.pattern_search`), so
that no user's expression stops the service.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.base.aside import LONG_BYTES, aside
from determined_service.base.db import Database
from determined_service.base.errors import Conflict, NotFound
from determined_service.base.units import agent_of
from determined_service.ingest import pattern_search
from determined_service.ingest.log_patterns import PatternError, literal
from determined_service.state.change import reader

LINE_CHARS = 500
"""Characters of a matched line that are kept."""
_SLOW = (
    "log policy {0!r} is not applied: its pattern takes too long on this log; use a simpler pattern, without "
    "repetitions such as {{1000}} and without repetitions of repetitions"
)

LATE_DAYS = 7
"""After an allocation's end its supervisor may send lines for so long: it may have been cut off from us."""
REMEMBER_S = 600.0

_ALLOCATIONS = sa.text(
    f"""
    SELECT a.id, a.trial_id, a.run_id, a.agent_id, e.config -> 'log_policies' AS policies,
           coalesce(a.ended_at < now() - interval '{LATE_DAYS} days', false) AS is_over,
           ARRAY(SELECT o.agent_id || coalesce('/' || s.machine, '')
                 FROM (SELECT 0 AS node, a.agent_id, a.slot_ids WHERE a.nodes = 1 AND a.agent_id IS NOT NULL
                       UNION ALL SELECT r.node, r.agent_id, r.slot_ids FROM allocation_resources r
                       WHERE r.allocation_id = a.id AND a.nodes > 1) AS o
                 LEFT JOIN slots s ON s.agent_id = o.agent_id AND s.slot_id = (o.slot_ids ->> 0)::int
                 ORDER BY o.node) AS places
    FROM allocations a LEFT JOIN experiments e ON e.id = a.experiment_id AND a.trial_id IS NOT NULL
    WHERE a.id = ANY(:ids)
    """
)
_STORE = sa.text(
    """
    INSERT INTO log_policy_matches (trial_id, run_id, name, action, agent_id, line)
    VALUES (:trial_id, :run_id, :name, :action, :agent_id, :line)
    ON CONFLICT DO NOTHING
    """
)


@dataclass(frozen=True, slots=True)
class LogPolicyRule:
    """``name`` is what users see; a policy without one goes by its pattern."""

    name: str
    action: str | None
    pattern: str

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> LogPolicyRule | None:
        """A policy of the configuration; None: it is switched off."""
        pattern = given.get("pattern")
        return (
            None
            if pattern is None
            else cls(given.get("name") or pattern, given.get("action"), pattern)
        )


async def check(policies: Sequence[Mapping[str, Any]]) -> None:
    """Raises PatternError, with its path in the configuration, for a pattern that cannot be used.

    Another process reads the patterns.
    """
    patterns = [given.get("pattern") for given in policies]
    wanted = [one for one in patterns if one is not None]
    problems = await asyncio.to_thread(pattern_search.check, wanted)
    for index, pattern in enumerate(patterns):
        if pattern in problems:
            raise PatternError(f"log_policies[{index}].pattern: {problems[pattern]}")


@dataclass(frozen=True, slots=True)
class WatchedLeg:
    """A leg and the policies of its experiment; a leg of a launched task has no trial, and no policies."""

    trial_id: int | None
    run_id: int
    agent_id: str | None
    policies: tuple[LogPolicyRule, ...]
    places: tuple[str, ...] = ()
    """By node: its agent, and the machine of that agent which has its slots, ``agent/machine``. Where the
    agent does not choose the machine, the leg may be on another one, which its supervisor tells."""
    is_over: bool = False
    """True if it ended more than :data:`LATE_DAYS` ago."""
    until: float = math.inf
    """The time of the next reading, in seconds of the monotonic clock: only its end changes."""

    def place(
        self, agent_id: str | None, node: int | None, machine: str | None = None
    ) -> str | None:
        """Where a supervisor writes that says it is on this agent, of this node and on this machine; the
        first node's place if it says nothing."""
        place = self._place(agent_id, node)
        return place if place is None or machine is None else f"{agent_of(place)}/{machine}"

    def _place(self, agent_id: str | None, node: int | None) -> str | None:
        if node is not None and node < len(self.places):
            return self.places[node]
        first = self.places[0] if self.places else self.agent_id
        mine = (one for one in self.places if agent_id is not None and agent_of(one) == agent_id)
        return next(mine, first)


@dataclass(slots=True)
class PolicyMatches:
    """The matches found in the lines of one request."""

    matches: list[dict[str, Any]] = field(default_factory=list)
    # (allocation, a sentence for its log)
    notices: list[tuple[str, str]] = field(default_factory=list)

    async def store(self, conn: AsyncConnection) -> None:
        """Stores the matches, one for each policy and leg."""
        if self.matches:
            await conn.execute(_STORE, self.matches)


class LogWatch:
    """Remembers the ``size`` legs that wrote last, each for :data:`REMEMBER_S`."""

    def __init__(self, db: Database, size: int = 4096) -> None:
        self._db = db
        self._known: OrderedDict[str, WatchedLeg | None] = OrderedDict()
        self._policies_of: OrderedDict[str, tuple[LogPolicyRule, ...]] = OrderedDict()
        self._told: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._size = size
        self._search = pattern_search.PatternSearch()

    async def require_open(self, allocation_id: str) -> None:
        """Raises NotFound, Conflict when the supervisor of that allocation may send no lines (any more)."""
        leg = (await self._legs([allocation_id]))[allocation_id]
        if leg is None:
            raise NotFound(f"allocation {allocation_id} does not exist")
        if leg.is_over:
            raise Conflict(f"allocation {allocation_id} ended more than {LATE_DAYS} days ago")

    async def look(
        self,
        lines: Mapping[str, Sequence[str]],
        agents: Mapping[str, str] | None = None,
        nodes: Mapping[str, int] | None = None,
        machines: Mapping[str, str] | None = None,
    ) -> PolicyMatches:
        """Match the policies against ``lines`` (by allocation). ``agents``, ``nodes``, ``machines``: those
        that claim to have written them."""
        collected = PolicyMatches()
        if not lines:
            return collected
        legs = await self._legs(lines)
        for allocation_id, texts in lines.items():
            leg = legs.get(allocation_id)
            if leg is not None and leg.policies:
                said = (
                    (agents or {}).get(allocation_id),
                    (nodes or {}).get(allocation_id),
                    (machines or {}).get(allocation_id),
                )
                await self._look(collected, allocation_id, leg, texts, leg.place(*said))
        return collected

    async def _look(
        self,
        collected: PolicyMatches,
        allocation_id: str,
        leg: WatchedLeg,
        texts: Sequence[str],
        place: str | None,
    ) -> None:
        plain = {text: one.pattern for one in leg.policies if (text := literal(one.pattern))}
        size = sum(map(len, texts))
        if size <= LONG_BYTES:
            found = _find_plain(plain, texts)
        else:
            found = await aside(size, _find_plain, plain, texts)
        others = [one.pattern for one in leg.policies if literal(one.pattern) is None]
        if others:
            stripped = [text.rstrip("\r\n") for text in texts]
            found |= await self._search.find(others, stripped)
        for policy in leg.policies:
            if policy.pattern in found:
                line = texts[found[policy.pattern]].replace("\0", "").strip()
                collected.matches.append(
                    {
                        "trial_id": leg.trial_id,
                        "run_id": leg.run_id,
                        "agent_id": place,
                        "name": policy.name,
                        "action": policy.action,
                        "line": line[:LINE_CHARS],
                    }
                )
            elif self._search.is_slow(policy.pattern) and self._is_news(allocation_id, policy):
                collected.notices.append((allocation_id, _SLOW.format(policy.name)))

    def _is_news(self, allocation_id: str, policy: LogPolicyRule) -> bool:
        key = (allocation_id, policy.pattern)
        if key in self._told:
            return False
        self._told[key] = None
        while len(self._told) > self._size:
            self._told.popitem(last=False)
        return True

    async def close(self) -> None:
        """Ends the process that looks for patterns."""
        await self._search.close()

    async def _legs(self, ids: Iterable[str]) -> dict[str, WatchedLeg | None]:
        wanted = set(ids)
        now = time.monotonic()
        found = {
            one: leg
            for one in wanted
            if one in self._known and ((leg := self._known[one]) is None or leg.until > now)
        }
        missing = wanted - found.keys()
        if missing:
            async with reader(self._db).connect() as conn:
                rows = {
                    row.id: row for row in await conn.execute(_ALLOCATIONS, {"ids": list(missing)})
                }
            for one in missing:
                row = rows.get(one)
                leg = None
                if row is not None:
                    policies = self._policies(row.policies or [])
                    leg = WatchedLeg(
                        row.trial_id,
                        row.run_id,
                        row.agent_id,
                        policies,
                        tuple(row.places),
                        row.is_over,
                        now + REMEMBER_S,
                    )
                found[one] = self._known[one] = leg
        for one in found:
            self._known.move_to_end(one)
        while len(self._known) > self._size:
            self._known.popitem(last=False)
        return found

    def _policies(self, given: Sequence[Mapping[str, Any]]) -> tuple[LogPolicyRule, ...]:
        # Most experiments have the same few policies, so one copy is kept for all.
        key = repr(given)
        if key not in self._policies_of:
            found = (LogPolicyRule.of(one) for one in given)
            self._policies_of[key] = tuple(one for one in found if one is not None)
            while len(self._policies_of) > 256:
                self._policies_of.popitem(last=False)
        return self._policies_of[key]


def _find_plain(plain: Mapping[str, str], lines: Sequence[str]) -> dict[str, int]:
    """By pattern, the first of ``lines`` that holds its text (the key in ``plain``)."""
    found: dict[str, int] = {}
    for text, pattern in plain.items():
        index = next((index for index, line in enumerate(lines) if text in line), None)
        if index is not None:
            found[pattern] = index
    return found

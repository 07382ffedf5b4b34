"""Log policies: lines of a trial's log that trigger an action.

Each policy's regular expression is matched against all lines of a request at once. Only if it matches, the
line is searched for. The expressions are those of Rust's ``regex`` (as RE2: no look-around, no
back-references), whose time grows only linearly with the length of the text, so a user's pattern cannot
stop the service. Pydantic ships it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from pydantic_core import SchemaError, SchemaValidator, core_schema
from sqlalchemy.ext.asyncio import AsyncConnection

logger = logging.getLogger(__name__)

CANCEL_RETRIES = "cancel_retries"
EXCLUDE_NODE = "exclude_node"
LINE_CHARS = 500
"""Characters of a matched line that are kept."""

_ALLOCATIONS = sa.text(
    """
    SELECT a.id, a.trial_id, a.run_id, a.agent_id, e.config -> 'log_policies' AS policies
    FROM allocations a JOIN experiments e ON e.id = a.experiment_id
    WHERE a.id = ANY(:ids) AND a.trial_id IS NOT NULL
    """
)
_STORE = sa.text(
    """
    INSERT INTO log_policy_matches (trial_id, run_id, name, action, agent_id, line)
    VALUES (:trial_id, :run_id, :name, :action, :agent_id, :line)
    ON CONFLICT DO NOTHING
    """
)


class PatternError(ValueError):
    """The pattern is not valid; the message says why."""


@dataclass(frozen=True, slots=True)
class Policy:
    """``name`` is what users see; a policy without one goes by its pattern."""

    name: str
    action: str | None
    pattern: SchemaValidator
    line_by_line: bool

    @classmethod
    def compile(cls, given: Mapping[str, Any]) -> Policy | None:
        """A policy of the configuration; None: it is switched off. Raises PatternError."""
        pattern = given.get("pattern")
        if pattern is None:
            return None
        try:
            # (?m): ^ and $ are a line's, in one line and in many.
            compiled = SchemaValidator(core_schema.str_schema(pattern=f"(?m:{pattern})"))
        except SchemaError as error:
            words = str(error).rpartition("error: ")[2].strip()
            raise PatternError(f"{pattern!r} cannot be used on logs: {words}") from error
        anchored = any(anchor in pattern for anchor in (r"\A", r"\z", "(?s", "(?-m"))
        return cls(given.get("name") or pattern, given.get("action"), compiled, anchored)

    def find(self, lines: Sequence[str], text: str) -> str | None:
        """The first of ``lines`` that matches; ``text`` is all of them, one below the other."""
        if not self.line_by_line and not self.pattern.isinstance_python(text):
            return None
        return next((line for line in lines if self.pattern.isinstance_python(line)), None)


def check(policies: Iterable[Mapping[str, Any]]) -> None:
    """Raises PatternError, with its path in the configuration, for a pattern that cannot be used."""
    for index, given in enumerate(policies):
        try:
            Policy.compile(given)
        except PatternError as error:
            raise PatternError(f"log_policies[{index}].pattern: {error}") from error


@dataclass(frozen=True, slots=True)
class Watched:
    """A leg and the policies of its experiment."""

    trial_id: int
    run_id: int
    agent_id: str | None
    policies: tuple[Policy, ...]


class LogWatch:
    """Remembers the ``size`` legs that wrote last; what is remembered of a leg never changes."""

    def __init__(self, size: int = 4096) -> None:
        self._known: OrderedDict[str, Watched | None] = OrderedDict()
        self._compiled: OrderedDict[str, tuple[Policy, ...]] = OrderedDict()
        self._size = size

    async def note(self, conn: AsyncConnection, lines: Mapping[str, Sequence[str]]) -> None:
        """Stores the matches in ``lines`` (by allocation), one for each policy and leg."""
        legs = await self._legs(conn, lines)
        for allocation_id, texts in lines.items():
            leg = legs.get(allocation_id)
            if leg is None or not leg.policies:
                continue
            stripped = [text.rstrip("\r\n") for text in texts]
            whole = "\n".join(stripped)
            for policy in leg.policies:
                line = policy.find(stripped, whole)
                if line is not None:
                    given = {
                        "trial_id": leg.trial_id,
                        "run_id": leg.run_id,
                        "agent_id": leg.agent_id,
                        "name": policy.name,
                        "action": policy.action,
                        "line": line.replace("\0", "").strip()[:LINE_CHARS],
                    }
                    await conn.execute(_STORE, given)

    async def _legs(self, conn: AsyncConnection, ids: Iterable[str]) -> dict[str, Watched | None]:
        wanted = set(ids)
        found = {one: self._known[one] for one in wanted if one in self._known}
        missing = wanted - found.keys()
        if missing:
            rows = {row.id: row for row in await conn.execute(_ALLOCATIONS, {"ids": list(missing)})}
            for one in missing:
                row = rows.get(one)
                leg = None
                if row is not None:
                    policies = self._policies(row.policies or [])
                    leg = Watched(row.trial_id, row.run_id, row.agent_id, policies)
                found[one] = self._known[one] = leg
        for one in found:
            self._known.move_to_end(one)
        while len(self._known) > self._size:
            self._known.popitem(last=False)
        return found

    def _policies(self, given: Sequence[Mapping[str, Any]]) -> tuple[Policy, ...]:
        # Most experiments have the same few: compiled once for all of them.
        key = repr(given)
        if key not in self._compiled:
            self._compiled[key] = tuple(_usable(given))
            while len(self._compiled) > 256:
                self._compiled.popitem(last=False)
        return self._compiled[key]


def _usable(given: Sequence[Mapping[str, Any]]) -> Iterable[Policy]:
    for item in given:
        try:
            policy = Policy.compile(item)
        except PatternError as error:
            # New ones are refused at submission.
            logger.warning("a log policy is ignored: %s", error)
            continue
        if policy is not None:
            yield policy

"""The ids and names that the shell offers after TAB.

Each function asks the service once or a few times, for :data:`PATIENCE_S` in all, and returns nothing if it
does not answer. Nobody is logged in for this: the token of an earlier login is used. What the service says
goes through the shell's own evaluation, so only harmless values and descriptions are returned.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import typer

from determined.cli.state import State
from determined.common.printable import counted

if TYPE_CHECKING:
    from determined.common.api import Session

Found = list[tuple[str, str]]
"""Values with a description each."""

PATIENCE_S = 2.0
_REQUEST_S = 1.0
_MOST = 100
_EXPERIMENTS = 3
"""Of how many of the newest experiments trials and checkpoints are offered."""

_VALUE = re.compile(r"[\w.@+-]{1,100}")
_UNSAFE = re.compile(r"[^\w .,+/-]")


def experiments(ctx: typer.Context, incomplete: str) -> Found:
    """The newest experiments; the last one of ``3,4,5`` is completed."""
    return _offered(ctx, incomplete, _experiments)


def trials(ctx: typer.Context, incomplete: str) -> Found:
    """The trials of the newest experiments."""
    return _offered(ctx, incomplete, _trials)


def checkpoints(ctx: typer.Context, incomplete: str) -> Found:
    """The checkpoints of the newest experiments."""
    return _offered(ctx, incomplete, _checkpoints)


def models(ctx: typer.Context, incomplete: str) -> Found:
    """The names of models."""
    return _offered(ctx, incomplete, _models)


def pipelines(ctx: typer.Context, incomplete: str) -> Found:
    """The newest pipelines."""
    return _offered(ctx, incomplete, _pipelines)


def users(ctx: typer.Context, incomplete: str) -> Found:
    """The names of users."""
    return _offered(ctx, incomplete, _users)


def agents(ctx: typer.Context, incomplete: str) -> Found:
    """The ids of agents."""
    return _offered(ctx, incomplete, _agents)


Ask = Callable[[str], list[dict[str, Any]]]


def _experiments(ask: Ask) -> Iterator[tuple[Any, Any]]:
    newest = f"sortBy=SORT_BY_ID&orderBy=ORDER_BY_DESC&limit={_MOST}"
    for item in ask(f"/api/v1/experiments?{newest}&archived=false"):
        yield item["id"], f"{item['name']} {_state(item)}"


def _trials(ask: Ask) -> Iterator[tuple[Any, Any]]:
    for item in _of_newest(ask, "trials"):
        yield item["id"], f"experiment {item['experimentId']} {_state(item)}"


def _checkpoints(ask: Ask) -> Iterator[tuple[Any, Any]]:
    for item in _of_newest(ask, "checkpoints"):
        training = item.get("training") or {}
        steps = (item.get("metadata") or {}).get("steps_completed")
        after = f" after {counted(steps, 'step')}" if isinstance(steps, int) else ""
        yield item["uuid"], f"trial {training.get('trialId')}{after}"


def _of_newest(ask: Ask, what: str) -> Iterator[dict[str, Any]]:
    for number, (experiment_id, _) in enumerate(_experiments(ask)):
        if number >= _EXPERIMENTS:
            return
        yield from ask(f"/api/v1/experiments/{experiment_id}/{what}?limit={_MOST}")


def _models(ask: Ask) -> Iterator[tuple[Any, Any]]:
    newest = f"sortBy=SORT_BY_LAST_UPDATED_TIME&orderBy=ORDER_BY_DESC&limit={_MOST}"
    for item in ask(f"/api/v1/models?{newest}&archived=false"):
        yield item["name"], counted(item["numVersions"], "version")


def _pipelines(ask: Ask) -> Iterator[tuple[Any, Any]]:
    for item in ask(f"/api/v1/pipelines?limit={_MOST}"):
        yield item["id"], f"{item['name']} {_state(item)}"


def _users(ask: Ask) -> Iterator[tuple[Any, Any]]:
    for item in ask(f"/api/v1/users?limit={_MOST}&active=true"):
        yield item["username"], item.get("displayName") or ""


def _agents(ask: Ask) -> Iterator[tuple[Any, Any]]:
    for item in ask("/api/v1/agents"):
        yield item["id"], counted(len(item.get("slots") or ()), "slot")


def _state(item: dict[str, Any]) -> str:
    return str(item["state"]).removeprefix("STATE_").lower()


def _offered(
    ctx: typer.Context, incomplete: str, source: Callable[[Ask], Iterator[tuple[Any, Any]]]
) -> Found:
    before, comma, _ = incomplete.rpartition(",")
    found: Found = []
    # Whatever goes wrong: the shell's line is no place for a message.
    try:
        with _session(ctx) as session:
            for value, about in source(_asker(session)):
                if _VALUE.fullmatch(str(value)) and not str(value).startswith("-"):
                    shown = _UNSAFE.sub(" ", str(about))[:60].strip()
                    found.append((f"{before}{comma}{value}", shown))
    except Exception:
        pass
    return found[:_MOST]


def _session(ctx: typer.Context) -> Session:
    from determined.common.api import Session, authentication

    # The options before the command are parsed, but their function is not called.
    options = ctx.find_root().params
    given = ctx.find_object(State)
    shared = State(
        master=options.get("master"),
        user=options.get("user"),
        transport=given.transport if given is not None else None,
    )
    token = authentication.kept_token(shared.address, shared.user)
    if token is None:
        raise LookupError("nobody is logged in")
    return Session(
        shared.address.url,
        token,
        timeout=_REQUEST_S,
        max_retries=0,
        transport=shared.transport,
    )


def _asker(session: Session) -> Ask:
    """Returns the list of an answer; an empty one when the time is up."""
    deadline = time.monotonic() + PATIENCE_S

    def ask(path: str) -> list[dict[str, Any]]:
        left = deadline - time.monotonic()
        if left <= 0:
            return []
        answer = session.request("GET", path, timeout=min(left, _REQUEST_S)).json()
        return next((value for value in answer.values() if isinstance(value, list)), [])

    return ask

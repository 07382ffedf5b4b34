"""Each command of `det` that lists or describes shows nothing of what lies in other people's workspaces.

The commands are those of the command tree, so that a new one is asked, too; :func:`_value` must know its
arguments.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
import typer.main
from fastapi import FastAPI
from typer.testing import CliRunner, Result

from determined.cli.root import app
from determined.cli.state import State
from determined_registry.database.tables import (
    config_policies,
    groups,
    role_assignments,
    user_defaults,
    user_sessions,
)
from tests.integration.roles import put_mode
from tests.integration.service_api.test_scope import Mine, fill
from tests.integration.service_api.world import World

FORMATS = {"--json", "--yaml", "--csv"}
WIDE = {"--all", "--show-inactive", "--metrics", "--history", "--show_project"}
"""Options that show more."""
ANYTHING = {"workload_type": "experiment", "role_name": "Viewer", "pool_name": "default"}
SHOW_NOTHING_OWN = {
    "agent list",
    "rbac list-groups-roles",
    "rbac list-roles",
    "resource-pool bindings list-workspaces",
    "resource-pool describe",
    "resource-pool list",
    "slot list",
    "user list",
    "user-group describe",
    "user-group list",
    "workspace list-members",
    "workspace list-pools",
}
"""Commands without the words of :class:`Mine`, even about one's own things."""


def _leaves(command: Any, context: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name in command.list_commands(context):
        first = name.split("|")[0]
        _, found, _ = command.resolve_command(context, [first])
        inner = found.make_context(first, [], parent=context, resilient_parsing=True)
        if hasattr(found, "list_commands"):
            yield from _leaves(found, inner, (*path, first))
        else:
            yield " ".join((*path, first)), found


def commands() -> dict[str, Any]:
    """The commands that list or describe, by their words."""
    root: Any = typer.main.get_command(app)
    context = root.make_context("det", [], resilient_parsing=True)
    return {
        words: command
        for words, command in _leaves(root, context)
        if words.split()[-1].startswith(("list", "describe"))
    }


def _value(words: str, name: str, mine: Mine, token_id: int) -> str:
    """The argument of that name, as it means one of these things."""
    noun = words.split()[0]
    values = {
        **ANYTHING,
        "checkpoint_uuid": mine.checkpoint,
        "experiment_id": mine.experiment_id,
        "experiment_ids": mine.experiment_id,
        "group_name": f"team-{mine.user_id}",
        "name": "default" if noun == "resource-pool" else mine.word,
        "pipeline_id": mine.pipeline_id,
        "project_name": mine.word,
        "task_id": mine.tasks.get(f"{noun}s"),
        "token_id": token_id,
        "trial_id": mine.trial_id,
        "username": f"user-{mine.word[::-1]}",
        "uuid": mine.checkpoint,
        "workspace_name": mine.word,
    }
    assert values.get(name) is not None, f"say here what {name} of det {words} is in this test"
    return str(values[name])


def _lines(words: str, command: Any, mine: Mine, token_id: int) -> Iterator[list[str]]:
    """The command about these things: as it is, with all that it shows, within the workspace."""
    typed = [
        _value(words, one.name, mine, token_id)
        for one in command.params
        if one.param_type_name == "argument"
    ]
    options = {name for one in command.params for name in one.opts}
    within = [("-w", mine.word)] if "--workspace-name" in options else []
    within += [("--project-name", mine.word)] if "--project-name" in options else []
    more = sorted(WIDE & options)
    line = [*words.split(), *typed]
    yield line
    yield [*line, *more, *sorted(FORMATS & options - {"--yaml"})[-1:]]
    if within:
        yield [*line, *(word for pair in within for word in pair)]


class ToApp(httpx.BaseTransport):
    """Passes requests of another thread on to the application of this loop."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See :class:`httpx.BaseTransport`."""
        asked = self._client.request(
            request.method, request.url, headers=request.headers, content=request.read()
        )
        answer = asyncio.run_coroutine_threadsafe(asked, self._loop).result()
        kind = {"Content-Type": answer.headers.get("Content-Type", "")}
        return httpx.Response(answer.status_code, headers=kind, content=answer.content)


async def _more_of(world: World, mine: Mine) -> int:
    """A policy, a group with a role, defaults, and an access token, whose number is returned."""
    async with world.db.tx() as conn:
        defaults = {"user_id": mine.user_id, "config": {"description": mine.word}}
        await conn.execute(sa.insert(user_defaults).values(**defaults))
        content = {"invariant_config": {"description": mine.word}}
        await conn.execute(
            sa.insert(config_policies).values(
                workload="EXPERIMENT",
                workspace_id=mine.workspace_id,
                content=content,
                updated_by=mine.user_id,
            )
        )
        group = sa.insert(groups).values(name=f"team-{mine.user_id}").returning(groups.c.id)
        of_group = {"role": "Viewer", "group_id": await conn.scalar(group)}
        await conn.execute(
            sa.insert(role_assignments).values(**of_group, workspace_id=mine.workspace_id)
        )
        token = sa.insert(user_sessions).values(
            user_id=mine.user_id,
            token_hash=uuid.uuid4().hex,
            expires_at=sa.func.now() + sa.text("interval '1 day'"),
            is_access_token=True,
            description=mine.word,
        )
        return int(await conn.scalar(token.returning(user_sessions.c.id)) or 0)


async def test_no_list_and_no_description_shows_what_is_another_s(
    service_app: FastAPI, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = [await fill(world, word) for word in ("zqalphaqz", "zqbetaqz")]
    tokens = {one.word: await _more_of(world, one) for one in (own, other)}
    await put_mode(service_app)
    for name in ("DET_MASTER_ADDR", "DET_USER", "DET_PASS", "DET_SESSION_TOKEN", "DET_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DET_MASTER", "http://service")
    monkeypatch.setenv("DET_USER_TOKEN", own.client.headers["Authorization"].split()[1])
    monkeypatch.setenv("DET_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("DET_DEBUG_CONFIG_PATH", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "200")
    transport = ToApp(own.client)

    def det(line: list[str]) -> Result:
        return CliRunner().invoke(app, line, obj=State(transport=transport))

    shows_own: set[str] = set()
    for words, command in commands().items():
        for named in (own, other):
            for line in _lines(words, command, named, tokens[named.word]):
                said = await asyncio.to_thread(det, line)
                assert said.exception is None or isinstance(said.exception, SystemExit), (
                    line,
                    said.exception,
                )
                text = said.stdout + said.stderr
                if named is own:
                    if own.word in text:
                        shows_own.add(words)
                elif said.exit_code != 0:
                    # A refusal says again what was asked for.
                    for value in (*line, other.word):
                        text = text.replace(value, "") if len(value) >= 8 else text
                found = [mark for mark in other.marks if mark in text]
                assert not found, (line, found, text[:2000])
    # The words are where they are looked for.
    assert commands().keys() - shows_own == SHOW_NOTHING_OWN

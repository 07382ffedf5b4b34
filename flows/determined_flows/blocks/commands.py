"""The block that runs a command."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from determined.common.api import Session
from determined.common.api.tasks import TaskLaunch, exit_code, files_of, warnings_of
from determined_flows.blocks import keys
from determined_flows.blocks.cluster import HERE, DeterminedCluster
from determined_flows.blocks.results import Command, CommandFailed
from determined_flows.blocks.waiting import until_ended

COMMANDS = "/api/v1/commands"
ENDED = ("COMPLETED", "CANCELED", "ERROR")
LINES = 100
CHARACTERS = 16_000


@task(name="run-command", cache_policy=NO_CACHE)
async def run_command(
    command: str | Sequence[str],
    context: str | Path | None = None,
    includes: Iterable[str | Path] = (),
    *,
    config: dict[str, Any] | None = None,
    cluster: DeterminedCluster = HERE,
    check: bool = True,
) -> Command:
    """Runs a program on the cluster and waits for its end. It is started once: a try of the same call finds
    the command of the try before. When the flow is cancelled meanwhile, the command is killed.

    Args:
        command: a program with its arguments; as one text it is read by ``sh``.
        context: a directory whose files are sent along, in which it starts; ``includes``: further files.
        config: fields of the configuration, such as ``{"resources": {"slots": 0}}``.
        cluster: which cluster, and as whom.
        check: raise CommandFailed unless its exit code is 0.

    Raises:
        CommandFailed; ContextError: nothing was sent; BadRequestException: the service refused it.
    """
    argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
    with cluster.session() as session:
        task_id = await asyncio.to_thread(
            _launch, session, {**(config or {}), "entrypoint": argv}, context, tuple(includes)
        )
        found = await until_ended(
            session,
            f"{COMMANDS}/{task_id}",
            f"command {task_id}",
            lambda: _read(session, task_id),
            ENDED,
        )
        output = await asyncio.to_thread(_output, session, task_id)
    ended = found.model_copy(update={"output": output})
    if check and ended.exit_code != 0:
        raise CommandFailed(ended)
    return ended


def _launch(
    session: Session,
    config: dict[str, Any],
    context: str | Path | None,
    includes: tuple[str | Path, ...],
) -> str:
    files = files_of(context, includes)
    launch = TaskLaunch("commands", config, files)
    # Without the times of the files, which a new checkout changes.
    contents = [[one["path"], one.get("content")] for one in files]
    key = keys.of_call(
        keys.digest(
            b"command", *(orjson.dumps(x, option=orjson.OPT_SORT_KEYS) for x in (config, contents))
        )
    )
    if key is not None:
        launch = TaskLaunch("commands", config, files, key=key)
    answer = launch.send(session)
    for warning in warnings_of(answer):
        get_run_logger().warning("%s", warning)
    return str(answer["command"]["id"])


def _read(session: Session, task_id: str) -> Command:
    found = session.get(f"{COMMANDS}/{task_id}")["command"]
    state = found["taskState"].removeprefix("STATE_")
    return Command(id=task_id, state=state, exit_code=exit_code(found) if state in ENDED else None)


def _output(session: Session, task_id: str) -> str:
    asked = {"limit": LINES, "orderBy": "ORDER_BY_DESC"}
    batches = session.stream_batches(f"/api/v1/tasks/{task_id}/logs", params=asked)
    lines = [line for batch in batches for line in batch]
    texts = [x["log"] for x in reversed(lines) if x.get("source") not in ("agent", "service")]
    return "".join(texts)[-CHARACTERS:]

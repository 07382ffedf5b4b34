"""Reads the body of a submission, whose files may be a hundred MiB.

A small body is parsed here. A large one goes to a file as it arrives, and from there through a separate
process (:mod:`~determined_service.submission.unpacking`), because parsing it would hold up everybody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from starlette.requests import Request

from determined.common.wire import limits
from determined_service.base.aside import aside
from determined_service.base.refusals import BadRequest, TooLarge, Unavailable
from determined_service.submission import unpacking
from determined_service.submission.model_definition import ModelDefinition
from determined_service.submission.unpacking import archive_of, read_submission

READ_HERE_BYTES = 32 * limits.KIB
"""So little is read where it arrives: a separate thread costs more."""
SMALL_BYTES = 4 * limits.MIB
LARGE_AT_ONCE = 2
PATIENCE_S = 300.0

_slots = asyncio.Semaphore(LARGE_AT_ONCE)


@dataclass(frozen=True, slots=True)
class Intake:
    """A submission's JSON. ``definition``: its files, if they are packed already and not in ``fields``; of a
    pipeline, which has several, ``definitions`` by their names."""

    fields: dict[str, Any]
    definition: ModelDefinition | None = None
    definitions: dict[str, ModelDefinition] = field(default_factory=dict)


@contextlib.asynccontextmanager
async def take_in(request: Request) -> AsyncIterator[Intake]:
    """The submission in the request's body; its files exist until the block ends.

    Raises BadRequest, TooLarge; Unavailable when so large a body could not be read in time.
    """
    parts: list[bytes] = []
    size = 0
    with contextlib.ExitStack() as stack:
        file = None
        async for part in request.stream():
            size += len(part)
            if file is not None:
                file.write(part)
                continue
            parts.append(part)
            if size > SMALL_BYTES:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="determined-"))
                file = stack.enter_context((Path(folder) / "body").open("wb"))
                file.write(b"".join(parts))
        if file is None:
            raw = b"".join(parts)
            if size <= READ_HERE_BYTES:
                yield Intake(read_submission(raw))
            else:
                yield Intake(await aside(size, read_submission, raw))
            return
        file.close()
        yield await _apart(Path(folder))


async def _apart(folder: Path) -> Intake:
    archive = folder / "archive"
    command = [sys.executable, "-m", unpacking.__name__, str(folder / "body"), str(archive)]
    async with _slots:
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(PATIENCE_S):
                printed, _ = await process.communicate()
        except TimeoutError:
            raise Unavailable("the submission could not be read in time: try again") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if process.returncode:
        raise Unavailable("the submission could not be read: the process that reads it has died")
    found = orjson.loads(printed)
    if "error" in found:
        raise (TooLarge if found["status"] == TooLarge.status else BadRequest)(found["error"])
    definition = ModelDefinition(found["hash"], archive) if found["hash"] else None
    definitions = {
        name: ModelDefinition(of_files, archive_of(archive, place))
        for place, (name, of_files) in enumerate(found["hashes"].items())
    }
    return Intake(found["fields"], definition, definitions)

"""Reads the body of a submission, whose files may be a hundred MiB.

A small body is parsed here. A large one goes to a file as it arrives, and from there through a process of its
own, because parsing it would hold up everybody else: ``python -m determined_service.submission.intake <body>
<archive>`` writes the packed model definition to ``archive``, and prints the rest of the submission as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from starlette.requests import Request

from determined.common.wire import limits
from determined_service.base.aside import aside
from determined_service.base.bounds import check_shape, check_value, show
from determined_service.base.errors import BadRequest, Unavailable
from determined_service.submission.model_definition import ModelDefinition, pack

SMALL_BYTES = 2 * limits.MIB
LARGE_AT_ONCE = 2
PATIENCE_S = 300.0
FILES = ("modelDefinition", "model_definition")

_slots = asyncio.Semaphore(LARGE_AT_ONCE)


@dataclass(frozen=True, slots=True)
class Intake:
    """A submission's JSON. ``definition``: its files, if they are packed already and not in ``fields``."""

    fields: dict[str, Any]
    definition: ModelDefinition | None = None


@contextlib.asynccontextmanager
async def take_in(request: Request) -> AsyncIterator[Intake]:
    """The submission in the request's body; its files are there until the block ends.

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
            yield Intake(await aside(size, _read, b"".join(parts)))
            return
        file.close()
        yield await _apart(Path(folder))


def _read(raw: bytes) -> dict[str, Any]:
    check_shape(raw, limits.LARGE_CONTAINERS)
    try:
        given = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the request's body is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise BadRequest(f"the body must be an object, not {show(given)}")
    check_value(given, values=limits.LARGE_VALUES)
    return given


async def _apart(folder: Path) -> Intake:
    archive = folder / "archive"
    command = [sys.executable, "-m", __name__, str(folder / "body"), str(archive)]
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
        raise BadRequest(found["error"])
    definition = ModelDefinition(found["hash"], archive) if found["hash"] else None
    return Intake(found["fields"], definition)


def _main(body: Path, archive: Path) -> dict[str, Any]:
    try:
        fields = _read(body.read_bytes())
        files: Any = next((fields.pop(name) for name in FILES if fields.get(name)), [])
        if not isinstance(files, list):
            raise BadRequest(f"modelDefinition: expected a list of files, found {show(files)}")
        packed = pack(files)
    except BadRequest as error:
        return {"error": error.message}
    if packed is None:
        return {"fields": fields, "hash": None}
    archive.write_bytes(packed.content())
    return {"fields": fields, "hash": packed.hash}


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(_main(Path(sys.argv[1]), Path(sys.argv[2]))))

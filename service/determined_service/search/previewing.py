"""Simulates a search for its preview, in a separate process.

It is pure computation on a user's input: a process may be ended when nobody waits for it any more, has limits
of memory and time, and gives all its memory back. This module is both sides: :func:`simulated` in the
service, and the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from typing import Any

import orjson

from determined_searchers import SearcherError
from determined_searchers.preview import preview
from determined_service.base.errors import BadRequest
from determined_service.base.shares import Share

MEMORY_BYTES = 1 << 30
PROCESSOR_S = 60
AT_ONCE = 2
_COMMAND = (sys.executable, "-P", "-m", "determined_service.search.previewing")
_turn = Share(1, "previews of searches", waiting=16)
_places = asyncio.Semaphore(AT_ONCE)


async def simulated(config: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """:func:`~determined_searchers.preview.preview` as JSON.

    Raises BadRequest: the search is none, or takes too much; TooManyRequests.
    """
    async with _turn.one(), _places:
        process = await asyncio.create_subprocess_exec(*_COMMAND, stdin=PIPE, stdout=PIPE)
        try:
            answer, _ = await process.communicate(orjson.dumps({"config": config, "seed": seed}))
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    found: dict[str, Any] = orjson.loads(answer) if answer else {"error": _TOO_LARGE}
    if "error" in found:
        raise BadRequest(found["error"])
    return found


_TOO_LARGE = (
    f"searcher: to preview this search takes more than {MEMORY_BYTES >> 30} GiB of memory or {PROCESSOR_S} "
    "seconds of processor time; preview one with fewer trials or hyperparameters"
)


def _main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S, PROCESSOR_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    given = orjson.loads(sys.stdin.buffer.read())
    try:
        found = preview(given["config"], given["seed"]).to_json()
    except SearcherError as error:
        found = {"error": str(error)}
    except MemoryError:
        found = {"error": _TOO_LARGE}
    sys.stdout.buffer.write(orjson.dumps(found))


if __name__ == "__main__":
    _main()

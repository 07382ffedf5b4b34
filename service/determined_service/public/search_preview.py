"""Previews the trials that a search would create, and how long each would train; nothing is stored.

One simulation gives the three answers that clients of Determined know: ``summary`` (0.38), ``simulation``
and ``/searcher/preview`` (up to 0.2x).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Request
from starlette.responses import Response

from determined import expconf
from determined.common.wire import limits
from determined_searchers import SearcherError
from determined_searchers.preview import Preview, preview
from determined_service.access.dependencies import ClusterReader
from determined_service.base.aside import aside
from determined_service.base.checks import show
from determined_service.base.errors import BadRequest
from determined_service.base.json import JsonResponse
from determined_service.submission.size import check_size
from determined_service.web.request import body, json_example
from determined_service.web.router import Router

router = Router("Experiments")

_MAX_SEED = 2**32 - 1

_CONFIG = {
    "searcher": {
        "name": "adaptive_asha",
        "metric": "loss",
        "max_trials": 16,
        "max_length": {"batches": 1000},
    },
    "hyperparameters": {"lr": {"type": "double", "minval": 0.001, "maxval": 0.1}},
}


@router.post(
    "/api/v1/preview-hp-search", openapi_extra=json_example({"config": _CONFIG, "seed": 0})
)
async def preview_search(request: Request, user: ClusterReader) -> Response:
    """Simulates the search of `config` (an object, or YAML text) with metrics drawn by `seed`.

    `summary` counts trials by training time, in closed form; `simulation` lists the operations of
    the simulated trials; `preview` has all details (`det preview-search --json` prints it).
    """
    given = await body(request)
    if not isinstance(given, dict):
        raise BadRequest("the body must be an object: {config, seed}")
    seed = _seed(given.get("seed"))
    config = await aside(_size(request), _config, given.get("config"))
    found = await _simulate(request, config, seed)
    searcher = config["searcher"]
    return JsonResponse(
        {
            "summary": {"config": searcher, "trials": _summary(found)},
            "simulation": {"config": searcher, "seed": seed, "trials": _simulation(found)},
            "preview": found.to_json(),
        }
    )


@router.post("/searcher/preview", openapi_extra=json_example(_CONFIG))
async def preview_searcher(request: Request, user: ClusterReader) -> Response:
    """The same for older clients. The body is the configuration; seed 0."""
    config = await aside(_size(request), _config, await body(request))
    found = await _simulate(request, config, 0)
    results = {" ".join(map(str, lengths)): count for count, lengths in found.breakdown}
    return JsonResponse({"results": results, "seed": 0})


def new_worker() -> ThreadPoolExecutor:
    """For ``app.state.preview_worker``. One simulation at a time: they are pure computation."""
    return ThreadPoolExecutor(1, thread_name_prefix="search-preview")


def _size(request: Request) -> int:
    return int(request.headers.get("content-length") or limits.BODY_BYTES)


def _config(given: Any) -> dict[str, Any]:
    """The completed configuration; only the fields that a preview needs must be given."""
    if given is None:
        raise BadRequest("config is missing: send an experiment configuration, or its YAML text")
    if not isinstance(given, str | Mapping):
        raise BadRequest(f"config: expected an object or YAML text, found {type(given).__name__}")
    try:
        document = expconf.load_yaml(given) if isinstance(given, str) else given
        config = expconf.complete_search(document)
    except expconf.ConfigError as error:
        raise BadRequest(str(error)) from error
    check_size(config)
    return config


def _seed(given: Any) -> int:
    if given is None:
        return 0
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= _MAX_SEED:
        raise BadRequest(
            f"seed: expected a whole number from 0 to {_MAX_SEED}, found {show(given)}"
        )
    return given


async def _simulate(request: Request, config: dict[str, Any], seed: int) -> Preview:
    worker: ThreadPoolExecutor = request.app.state.preview_worker
    try:
        return await asyncio.get_running_loop().run_in_executor(worker, preview, config, seed)
    except SearcherError as error:
        raise BadRequest(str(error)) from error


def _summary(found: Preview) -> list[dict[str, Any]]:
    return [
        {
            "count": count,
            "unit": {"maxLength": True}
            if length is None
            else {"name": found.unit, "value": length, "maxLength": False},
        }
        for count, length in found.training_times
    ]


def _simulation(found: Preview) -> list[dict[str, Any]]:
    return [
        {
            "occurrences": count,
            "operations": [
                step
                for length in lengths
                for step in (
                    {"type": "RUNNABLE_TYPE_TRAIN", "length": str(length)},
                    {"type": "RUNNABLE_TYPE_VALIDATE"},
                )
            ],
        }
        for count, lengths in found.breakdown
    ]

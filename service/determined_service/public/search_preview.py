"""Previews the trials that a search would create, and how long each would train; nothing is stored.

One simulation gives the three answers that clients of Determined know: ``summary`` (0.38), ``simulation``
and ``/searcher/preview`` (up to 0.2x).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from starlette.responses import Response

from determined import expconf
from determined.common.wire import limits
from determined.common.wire.checks import show
from determined_service.access.dependencies import ClusterReader
from determined_service.base.aside import aside
from determined_service.base.errors import BadRequest, Conflict
from determined_service.base.json import JsonResponse
from determined_service.search.previewing import simulated
from determined_service.submission.size import check_size
from determined_service.web.request import body, json_example
from determined_service.web.router import Router
from determined_service.web.waiting import while_connected

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
            "preview": found,
        }
    )


@router.post("/searcher/preview", openapi_extra=json_example(_CONFIG))
async def preview_searcher(request: Request, user: ClusterReader) -> Response:
    """The same for older clients. The body is the configuration; seed 0."""
    config = await aside(_size(request), _config, await body(request))
    found = await _simulate(request, config, 0)
    results = {" ".join(map(str, one["lengths"])): one["trials"] for one in found["breakdown"]}
    return JsonResponse({"results": results, "seed": 0})


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


async def _simulate(request: Request, config: dict[str, Any], seed: int) -> dict[str, Any]:
    found = await while_connected(request, simulated(config, seed))
    if found is None:
        raise Conflict("the client that asked for the preview has gone")
    return found


def _summary(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "count": one["trials"],
            "unit": {"maxLength": True}
            if one["length"] is None
            else {"name": found["unit"], "value": one["length"], "maxLength": False},
        }
        for one in found["training_times"]
    ]


def _simulation(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "occurrences": one["trials"],
            "operations": [
                step
                for length in one["lengths"]
                for step in (
                    {"type": "RUNNABLE_TYPE_TRAIN", "length": str(length)},
                    {"type": "RUNNABLE_TYPE_VALIDATE"},
                )
            ],
        }
        for one in found["breakdown"]
    ]

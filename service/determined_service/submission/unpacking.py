"""``python -m determined_service.submission.unpacking <body> <archive>``: reads a large submission.

Writes the packed model definition to ``archive``, and prints the rest of the submission as JSON. Imports
little: a submission waits for it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson

from determined.common.wire import limits
from determined_service.base.checks import check_shape, check_value, show
from determined_service.base.refusals import ApiError, BadRequest
from determined_service.submission.model_definition import pack

FILES = ("modelDefinition", "model_definition", "files", "contextDirectory", "context_directory")


def read_submission(raw: bytes) -> dict[str, Any]:
    check_shape(raw, limits.LARGE_CONTAINERS)
    try:
        given = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the request's body is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise BadRequest(f"the body must be an object, not {show(given)}")
    check_value(given, values=limits.LARGE_VALUES)
    return given


def _main(body: Path, archive: Path) -> dict[str, Any]:
    try:
        fields = read_submission(body.read_bytes())
        files: Any = next((fields.pop(name) for name in FILES if fields.get(name)), [])
        if not isinstance(files, list):
            raise BadRequest(f"modelDefinition: expected a list of files, found {show(files)}")
        packed = pack(files)
    except ApiError as error:
        return {"error": error.message, "status": error.status}
    if packed is None:
        return {"fields": fields, "hash": None}
    archive.write_bytes(packed.content())
    return {"fields": fields, "hash": packed.hash}


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(_main(Path(sys.argv[1]), Path(sys.argv[2]))))

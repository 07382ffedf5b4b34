"""``python -m determined_service.submission.unpacking <body> <archive>``: reads a large submission.

Writes the packed model definition to ``archive`` (of several, each to ``archive`` with its place behind it),
and prints the rest of the submission as JSON. Imports little: a submission waits for it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson

from determined.common.wire import limits
from determined.common.wire.checks import show
from determined_service.base.checks import check_shape, check_value
from determined_service.base.refusals import ApiError, BadRequest
from determined_service.submission.model_definition import ModelDefinition, pack

FILES = ("modelDefinition", "model_definition", "files", "contextDirectory", "context_directory")
SEVERAL = "modelDefinitions"
"""The field of a pipeline: lists of files by name."""


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
        several = pack_several(fields.pop(SEVERAL, None))
    except ApiError as error:
        return {"error": error.message, "status": error.status}
    hashes = {}
    for place, (name, one) in enumerate(several.items()):
        archive_of(archive, place).write_bytes(one.content())
        hashes[name] = one.hash
    if packed is None:
        return {"fields": fields, "hash": None, "hashes": hashes}
    archive.write_bytes(packed.content())
    return {"fields": fields, "hash": packed.hash, "hashes": hashes}


def archive_of(archive: Path, place: int) -> Path:
    """The file of one of several model definitions."""
    return archive.with_name(f"{archive.name}.{place}")


def pack_several(given: Any) -> dict[str, ModelDefinition]:
    """Packs lists of files by name; empty lists are left out. Raises BadRequest."""
    if given is None:
        return {}
    if not isinstance(given, dict) or len(given) > limits.PIPELINE_STEPS:
        raise BadRequest(
            f"{SEVERAL}: expected an object of at most {limits.PIPELINE_STEPS} lists of files, found "
            f"{show(given)}"
        )
    found = {}
    for name, files in given.items():
        if not isinstance(files, list):
            raise BadRequest(f"{SEVERAL}.{name}: expected a list of files, found {show(files)}")
        packed = pack(files)
        if packed is not None:
            found[name] = packed
    return found


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(_main(Path(sys.argv[1]), Path(sys.argv[2]))))

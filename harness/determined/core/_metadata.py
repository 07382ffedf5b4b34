"""The metadata of checkpoints: JSON, in the service and in a file of the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from determined.common.nonfinite import numbers
from determined.core._metrics import Unsupported, plain

METADATA_FILE = "metadata.json"


def as_json(metadata: dict[str, Any] | None) -> dict[str, Any]:
    """A copy made of plain values. Raises TypeError for values that JSON lacks, and for anything but a
    dict.
    """
    if not isinstance(metadata, Mapping | None):
        raise TypeError(f"checkpoint metadata must be a dict, found {metadata!r}")
    try:
        copied: dict[str, Any] = plain(metadata or {})
    except Unsupported as error:
        raise TypeError(f"checkpoint metadata must be JSON: {error}") from None
    return copied


def encoded(metadata: dict[str, Any]) -> bytes:
    """The contents of the file."""
    return json.dumps(metadata, indent=2).encode()


def decoded(metadata: dict[str, Any] | None) -> dict[str, Any]:
    """Metadata as they were given, from their JSON."""
    found: dict[str, Any] = numbers(metadata or {})
    return found

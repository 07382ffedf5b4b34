"""Refuses downloads from storages that the service does not open (:mod:`determined_registry.permitted`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from determined_registry import permitted
from determined_service.base.refusals import Forbidden


def require_permitted(
    section: Mapping[str, Any] | None, own: Mapping[str, Any] | None, what: str = "the checkpoint"
) -> None:
    """Raises Forbidden, with what to do instead, unless the service may open the storage ``section``; ``own``
    is the cluster's.
    """
    reason = permitted.refusal(section, own, what)
    if reason is not None:
        raise Forbidden(reason)

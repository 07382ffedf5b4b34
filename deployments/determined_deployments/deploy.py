"""Registers the deployments of ``prefect.yaml`` with Prefect, as ``prefect deploy --all`` would.

The agent does it when it starts, so that a fresh cluster needs no second command.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml

logger = logging.getLogger(__name__)


def default_prefect_yaml() -> Path:
    """In the wheel the file lies in this package, in a checkout at the top."""
    package = Path(__file__).parent
    inside = package / "prefect.yaml"
    return inside if inside.exists() else package.parents[1] / "prefect.yaml"


async def register(prefect_yaml_path: Path | None = None) -> dict[str, UUID]:
    """Creates or updates every deployment in the file; safe to repeat.

    The work pools must exist. Returns the ids by full name (``experiment/experiment``). Raises
    httpx.HTTPError when Prefect does not answer, ValueError for an entry without name or
    entrypoint.
    """
    from prefect.client.orchestration import get_client
    from prefect.flows import load_flow_from_entrypoint
    from prefect.utilities.callables import parameter_schema

    path = prefect_yaml_path or default_prefect_yaml()
    document = yaml.safe_load(path.read_text())
    ids: dict[str, UUID] = {}
    async with get_client() as client:
        for entry in document.get("deployments") or []:
            entry = _checked(entry, path)
            flow: Any = load_flow_from_entrypoint(entry["entrypoint"], use_placeholder_flow=False)
            pool = entry.get("work_pool") or {}
            ids[f"{flow.name}/{entry['name']}"] = await client.create_deployment(
                flow_id=await client.create_flow(flow),
                name=entry["name"],
                version=entry.get("version"),
                description=entry.get("description") or flow.description,
                tags=entry.get("tags") or [],
                entrypoint=entry["entrypoint"],
                parameters=entry.get("parameters") or {},
                parameter_openapi_schema=parameter_schema(flow).model_dump_for_openapi(),
                enforce_parameter_schema=entry.get("enforce_parameter_schema", True),
                work_pool_name=pool.get("name"),
                work_queue_name=pool.get("work_queue_name"),
                job_variables=pool.get("job_variables") or {},
            )
    return ids


def _checked(entry: Mapping[str, Any], path: Path) -> dict[str, Any]:
    for key in ("name", "entrypoint"):
        if not entry.get(key):
            raise ValueError(f"{path}: a deployment without {key}: {dict(entry)}")
    return dict(entry)


def register_in_fork(order: Mapping[str, Any]) -> int:
    """Entry point for the fork server: registers, and returns the exit code."""
    import httpx

    try:
        asyncio.run(register(Path(order["path"]) if order.get("path") else None))
    except httpx.HTTPError as error:
        logger.warning("Prefect does not take the deployments yet: %s", error)
        return 1
    return 0

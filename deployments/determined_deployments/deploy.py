"""Registers the deployments of ``prefect.yaml`` with Prefect, as ``prefect deploy --all`` would.

The agent does it when it starts, so that a fresh cluster needs no second command.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from determined_deployments import prefect_yaml
from determined_deployments.prefect_yaml import PrefectYamlError
from determined_deployments.registration import register_entry

logger = logging.getLogger(__name__)

TRY_AGAIN = 1
MISTAKES = 2

REFUSALS = {400, 404, 409, 422}
"""What Prefect's server answers to an entry that is wrong. Any other failure is worth another try."""


def default_prefect_yaml() -> Path:
    """In the wheel the file lies in this package, in a checkout at the top."""
    package = Path(__file__).parent
    inside = package / "prefect.yaml"
    return inside if inside.exists() else package.parents[1] / "prefect.yaml"


async def register(prefect_yaml_path: Path | None = None) -> dict[str, UUID]:
    """Creates or updates every deployment in the file; safe to repeat.

    The work pools must exist. Works in the file's directory, as `prefect deploy` would be called there, so
    nothing else may rely on the working directory meanwhile. Returns the ids by full name
    (``experiment/experiment``).

    Raises httpx.HTTPError when Prefect does not answer. Raises PrefectYamlError with every mistake in the
    file, after the entries without a mistake are registered.
    """
    from prefect.client.orchestration import get_client

    path = (prefect_yaml_path or default_prefect_yaml()).absolute()
    entries, mistakes = prefect_yaml.read(path)
    ids: dict[str, UUID] = {}
    with contextlib.chdir(path.parent):
        async with get_client() as client:
            for entry in entries:
                try:
                    name, deployment_id = await register_entry(client, entry)
                except Exception as error:  # the flow's module, too, is imported here
                    if (away := _prefect_is_away(error)) is not None:
                        raise away from None
                    logger.debug("%s", entry.where, exc_info=True)
                    mistakes.append(f"{entry.where}: {_in_words(error)}")
                else:
                    ids[name] = deployment_id
    if mistakes:
        raise PrefectYamlError(mistakes)
    return ids


def _prefect_is_away(error: BaseException | None) -> Exception | None:
    """The reason why Prefect's server did not answer, if that is what the error says."""
    import httpx

    while error is not None:
        if isinstance(error, httpx.HTTPStatusError):
            return None if error.response.status_code in REFUSALS else error
        if isinstance(error, httpx.HTTPError):
            return error
        error = error.__cause__
    return None


def _in_words(error: Exception) -> str:
    import httpx
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return "; ".join(prefect_yaml.lines_of(error))
    if isinstance(error, httpx.HTTPStatusError):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return f"Prefect refuses it: {error.response.json()['detail']}"
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"


def register_in_fork(order: Mapping[str, Any]) -> int:
    """Entry point for the fork server: registers, and returns the exit code.

    TRY_AGAIN: Prefect did not answer. MISTAKES: some entries are wrong; the others are registered.
    """
    import httpx

    try:
        asyncio.run(register(Path(order["path"]) if order.get("path") else None))
    except httpx.HTTPError as error:
        logger.warning(
            "cannot register the deployments yet, because Prefect does not answer: %s", error
        )
        return TRY_AGAIN
    except PrefectYamlError as error:
        for mistake in error.mistakes:
            logger.error("not registered: %s", mistake)
        return MISTAKES
    return 0

"""Registers the deployments of ``prefect.yaml`` with Prefect, as ``prefect deploy --all`` would.

The agent does it when it starts, so that a fresh cluster needs no second command.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from determined_deployments import plain_entries, prefect_yaml
from determined_deployments.prefect_yaml import PrefectYamlError
from determined_deployments.registration import (
    RegistrationRecord,
    RegistrationState,
    register_entry,
)

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

logger = logging.getLogger(__name__)

DEFAULT_POOL = "default"
"""The work pool that the platform's ``prefect.yaml`` names."""

TRY_AGAIN = 1
MISTAKES = 2

REFUSALS = {400, 404, 409, 422}
"""Statuses with which Prefect's server refuses an invalid entry. Any other failure is worth another try."""


def default_prefect_yaml() -> Path:
    """In the wheel the file lies in this package, in a checkout at the top."""
    package = Path(__file__).parent
    inside = package / "prefect.yaml"
    return inside if inside.exists() else package.parents[1] / "prefect.yaml"


async def is_registered(client: PrefectClient, prefect_yaml_path: Path | None = None) -> bool:
    """True if every entry of the file is plain and registered in its present form; asks two questions.

    False does not mean that it is not: :func:`register` finds out. Raises httpx.HTTPError.
    """
    path = (prefect_yaml_path or default_prefect_yaml()).absolute()
    try:
        document = prefect_yaml.load(path)
        declared = prefect_yaml.declared_in(path, document)
    except PrefectYamlError:
        return False
    prints = await asyncio.to_thread(plain_entries.fingerprints, path, document)
    known = [print_ for print_ in prints if print_ is not None]
    if not known or len(known) < len(declared):
        return False
    state = await RegistrationState.read(client, [entry["name"] for entry in declared])
    return all(state.find(print_) is not None for print_ in known)


async def register(
    prefect_yaml_path: Path | None = None, work_pool: str = DEFAULT_POOL
) -> dict[str, UUID]:
    """Creates or updates every deployment in the file; safe to repeat.

    The work pools must exist. ``work_pool`` stands in the place of ``default``, which a cluster need not
    have; the service moves the deployments to the pool in which the cluster's flows run. Works in the file's
    directory, as `prefect deploy` would be called there, so nothing else may rely on the working directory
    meanwhile. Returns the ids by full name (``experiment/experiment``).

    Raises httpx.HTTPError when Prefect does not answer. Raises PrefectYamlError with every mistake in the
    file, after the entries without a mistake are registered.
    """
    from prefect.client.orchestration import get_client

    path = (prefect_yaml_path or default_prefect_yaml()).absolute()
    entries, mistakes = prefect_yaml.read(path)
    for entry in entries:
        if entry.config["work_pool"]["name"] == DEFAULT_POOL:
            entry.config["work_pool"] = {**entry.config["work_pool"], "name": work_pool}
    ids: dict[str, UUID] = {}
    later: dict[str, RegistrationRecord] = {}
    with contextlib.chdir(path.parent):
        async with get_client() as client:
            plain = [entry.config["name"] for entry in entries if entry.fingerprint]
            state = (
                await RegistrationState.read(client, plain) if plain else RegistrationState({}, {})
            )
            for entry in entries:
                try:
                    name, deployment_id, record = await register_entry(client, entry, state)
                except Exception as error:  # the flow's module, too, is imported here
                    if (away := _prefect_is_away(error)) is not None:
                        raise away from None
                    logger.debug("%s", entry.where, exc_info=True)
                    mistakes.append(f"{entry.where}: {_in_words(error)}")
                else:
                    ids[name] = deployment_id
                    if record is not None:
                        later[name] = record
            # Somebody may wait for the deployments, nobody does for the records.
            for name, record in later.items():
                await record.write(client, name)
    if mistakes:
        raise PrefectYamlError(mistakes)
    return ids


def _prefect_is_away(error: BaseException | None) -> Exception | None:
    """The error that shows that Prefect's server did not answer; None if ``error`` has another cause."""
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
    """Entry point for the fork server: registers, and returns the exit code. ``env``: how Prefect is reached.

    TRY_AGAIN: Prefect did not answer. MISTAKES: some entries are wrong; the others are registered.
    """
    import httpx
    from prefect.context import refresh_global_settings_context

    os.environ.update(order.get("env") or {})
    refresh_global_settings_context()
    try:
        path = Path(order["path"]) if order.get("path") else None
        asyncio.run(register(path, order.get("work_pool", DEFAULT_POOL)))
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

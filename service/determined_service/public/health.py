"""Tells whether the service is up, and whether it is ready."""

from __future__ import annotations

import functools
import ssl

import httpx
import sqlalchemy as sa
from fastapi import Request
from starlette.responses import Response

from determined_registry.database import migrate
from determined_service.base.errors import of_database, with_cause
from determined_service.base.json import JsonResponse
from determined_service.base.settings import Settings
from determined_service.web.router import Router

router = Router("Health")


@router.get("/health")
async def health() -> dict[str, str]:
    """The process is up."""
    return {"status": "up"}


async def _database(request: Request) -> str | None:
    try:
        async with request.app.state.db.tx() as conn:
            found = await conn.run_sync(migrate.current)
    except sa.exc.SQLAlchemyError as error:
        refusal = of_database(error)
        if refusal is None:
            return "the database does not answer"
        return (await with_cause(refusal, request)).message
    wanted = migrate.head()
    if found != wanted:
        return f"the database is at revision {found}, but this service needs {wanted}"
    return None


PREFECT_TIMEOUT_S = 5.0


@functools.cache
def _tls() -> ssl.SSLContext:
    # Making one takes 30 ms, and while a cluster starts readiness is asked ten times a second.
    return httpx.create_ssl_context(trust_env=False)


def no_answer(error: Exception) -> str:
    """Why :func:`prefect_get` failed, in a line that follows Prefect's name or address."""
    if isinstance(error, httpx.TimeoutException):
        return f"does not answer within {PREFECT_TIMEOUT_S:g} s"
    return f"does not answer: {(str(error) or type(error).__name__).splitlines()[0]}"


async def prefect_get(settings: Settings, path: str) -> httpx.Response:
    """``GET`` of Prefect's API; raises httpx.HTTPError for anything but a 2xx in time."""
    assert settings.prefect_api_url is not None
    auth = None
    if settings.prefect_auth is not None:
        user, _, password = settings.prefect_auth.get_secret_value().partition(":")
        auth = httpx.BasicAuth(user, password)
    async with httpx.AsyncClient(
        trust_env=False, verify=_tls(), timeout=PREFECT_TIMEOUT_S, auth=auth
    ) as client:
        found = await client.get(f"{settings.prefect_api_url.rstrip('/')}{path}")
        return found.raise_for_status()


async def _prefect(settings: Settings) -> str | None:
    url = settings.prefect_api_url
    if url is None:
        return None
    try:
        await prefect_get(settings, "/health")
    except httpx.HTTPError as error:
        return f"Prefect at {url} {no_answer(error)}"
    return None


@router.get("/ready", response_model=None)
async def ready(request: Request) -> Response:
    """Answers 200 if the database is migrated and answers, and Prefect answers; else 503 with the reasons."""
    if not request.app.state.started:
        return JsonResponse({"status": "starting"}, status_code=503)
    problems = {
        "database": await _database(request),
        "prefect": await _prefect(request.app.state.settings),
    }
    bad = {name: problem for name, problem in problems.items() if problem}
    if bad:
        return JsonResponse({"status": "not ready", "problems": bad}, status_code=503)
    return JsonResponse({"status": "ready"})

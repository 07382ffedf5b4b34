"""Getting in by a ticket (``det open``), and from these pages to MLflow's and Prefect's."""

from __future__ import annotations

from urllib.parse import parse_qs, quote

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from determined_service.access import page_tickets
from determined_service.access.browser import FRONT, MLFLOW, require_own_page
from determined_service.base import hosts, pages
from determined_service.base.errors import NotFound, Unauthenticated
from determined_service.base.pages import FRONT_HOME, PREFECT_HOME, is_front
from determined_service.front.rendering import PageRouter, back, page
from determined_service.front.visits import Elsewhere, LoginNeeded, Visitor, visitor
from determined_service.web.state import Db, SettingsOf

router = PageRouter()

_USED = "this address was good once, and for a minute: type det open again, or log in here"


@router.get("/enter", include_in_schema=False)
async def enter(
    request: Request, db: Db, settings: SettingsOf, ticket: str = "", to: str = ""
) -> Response:
    """Logs the browser in by a ticket, and leads to the page ``to``.

    Another site's page could lead a visitor here with a ticket of its owner, who would then own what the
    visitor does. So only an address that a person opens logs in at once; anybody else is asked.
    """
    if (address := FRONT.elsewhere(request)) is not None:
        raise Elsewhere(address)
    if request.headers.get("sec-fetch-site") == "none":
        return await _entered(request, db, settings, ticket, to)
    async with db.tx() as conn:
        holder = await page_tickets.holder_of(conn, ticket, hosts.FRONT)
    if holder is None:
        return await _without_ticket(request, to)
    return page("enter", request, ticket=ticket, to=to, holder=holder.username)


@router.post("/enter", include_in_schema=False)
async def enter_by_button(request: Request, db: Db, settings: SettingsOf) -> Response:
    """The button of the page that asks."""
    if (address := FRONT.elsewhere(request)) is not None:
        raise Elsewhere(address)
    require_own_page(request)
    given = parse_qs((await request.body()).decode("utf-8", "replace"))
    ticket, to = (given.get(name, [""])[0] for name in ("ticket", "to"))
    return await _entered(request, db, settings, ticket, to)


async def _entered(
    request: Request, db: Db, settings: SettingsOf, ticket: str, to: str
) -> Response:
    async with db.tx() as conn:
        most = settings.cluster.quotas.sessions
        entered = await page_tickets.use_ticket(conn, ticket, hosts.FRONT, most)
    if entered is None:
        return await _without_ticket(request, to)
    answer = back(request, to)
    FRONT.keep(answer, request, entered[0])
    return answer


async def _without_ticket(request: Request, to: str) -> Response:
    """The page to whoever is logged in, for addresses that are opened again; else the login page."""
    try:
        await visitor(request)
    except LoginNeeded:
        return page(
            "login",
            request,
            status=401,
            to=to if is_front(to) else f"{FRONT_HOME}/",
            refusal=_USED,
            username="",
        )
    return back(request, to)


@router.get("/go/mlflow", include_in_schema=False)
async def go_to_mlflow(
    request: Request, visit: Visitor, db: Db, state: str = "", to: str = ""
) -> Response:
    """Leads to MLflow's pages, and logs the browser in there. ``state`` comes from MLflow's own entrance, and
    binds the ticket to the browser that asks (``public/mlflow_pages.py``)."""
    there = f"{MLFLOW.elsewhere(request) or ''}{MLFLOW.path}/enter?to={quote(to, safe='/')}"
    if state:
        token, _ = await visitor(request)
        async with db.tx() as conn:
            ticket = await page_tickets.new_ticket(conn, token, page_tickets.of_mlflow(state))
        if ticket is None:
            raise Unauthenticated("the session has ended: log in again")
        there = f"{there}&ticket={ticket}"
    return RedirectResponse(there, 303, {"Cache-Control": "no-store"})


@router.get("/go/prefect", include_in_schema=False)
async def go_to_prefect(request: Request, visit: Visitor, settings: SettingsOf) -> Response:
    """Leads to Prefect's page, which asks for user and password itself."""
    if settings.prefect_api_url is None:
        raise NotFound("this cluster has no Prefect")
    own = pages.elsewhere(settings, hosts.PREFECT, request.headers.get("host", ""))
    there = f"{PREFECT_HOME}/" if own is None else f"{own}/"
    return RedirectResponse(there, 303, {"Cache-Control": "no-store"})

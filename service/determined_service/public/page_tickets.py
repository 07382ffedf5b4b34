"""Addresses that open the service's pages in a browser that is logged in there then: ``det open``."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Request
from pydantic import BaseModel, Field

from determined_service.access import page_tickets
from determined_service.access.browser import FRONT
from determined_service.access.dependencies import may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.access.tokens import bearer_token
from determined_service.base import hosts
from determined_service.base.errors import BadRequest, Forbidden, Unauthenticated
from determined_service.base.pages import FRONT_HOME, is_front
from determined_service.web.router import Router
from determined_service.web.state import Db

router = Router("Authentication", "/api/v1")


class NewTicket(BaseModel):
    """``to``: the page that is opened, an address below ``/det``."""

    to: str = Field(f"{FRONT_HOME}/", max_length=2048)


@router.post("/pages/tickets")
async def new_ticket(
    given: NewTicket,
    request: Request,
    user: Annotated[Principal, may(Action.CREATE, Kind.SESSION, "open pages with")],
    db: Db,
) -> dict[str, Any]:
    """`url`: opens a page in a browser that is logged in there then, as the user who asks. It is good once,
    within a minute. An address that begins with `/` is one of this service."""
    if user.by_access_token:
        raise Forbidden(
            "an access token opens no pages: log in with a password (det user login NAME), and repeat it"
        )
    if not is_front(given.to):
        raise BadRequest(f"to: an address of the pages begins with {FRONT_HOME}/")
    async with db.tx() as conn:
        ticket = await page_tickets.new_ticket(conn, bearer_token(request.headers), hosts.FRONT)
    if ticket is None:
        raise Unauthenticated("the session has ended: log in again")
    where = FRONT.elsewhere(request) or ""
    return {"url": f"{where}{FRONT_HOME}/enter?ticket={ticket}&to={quote(given.to, safe='/')}"}

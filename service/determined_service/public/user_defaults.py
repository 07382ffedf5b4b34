"""The sender's defaults: docs/operate/users.md."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.responses import Response

from determined.expconf.unheeded import dropped_fields
from determined_service.access.dependencies import may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.errors import Forbidden
from determined_service.base.json import JsonResponse
from determined_service.submission import user_defaults as keeping
from determined_service.web.router import Router
from determined_service.web.state import Db

router = Router("Users", "/api/v1/users/defaults")

Reader = Annotated[Principal, may(Action.READ, Kind.DEFAULTS)]
Changer = Annotated[Principal, may(Action.CHANGE, Kind.DEFAULTS)]


class NewDefaults(BaseModel):
    """Values for what the sender's configurations leave open."""

    config: dict[str, Any] = Field(
        description="Fields of experiments and tasks, as in their configurations; `{}`: no defaults."
    )


@router.get("")
async def read_defaults(user: Reader, db: Db) -> Response:
    """The sender's defaults, fields of configurations; `{}`: it has none. Not for access tokens of one
    workspace: defaults belong to none, and may hold secrets."""
    if user.workspace_id is not None:
        raise Forbidden(
            "this access token is good for one workspace alone, and the defaults of a user belong to none: "
            f"log in as {user.username}"
        )
    async with db.tx() as conn:
        found = await keeping.find(conn, user.user_id)
    return JsonResponse({"config": found[0].config if found else {}})


@router.put("")
async def put_defaults(given: NewDefaults, user: Changer, db: Db) -> Response:
    """Stores the sender's defaults in place of those before. They hold for what the sender submits from now
    on, beneath configuration and template, above the workspace's and the cluster's. `remarks`: sentences on
    fields without effect."""
    await keeping.check(given.config)
    async with db.tx() as conn:
        await keeping.put(conn, user.user_id, given.config)
    return JsonResponse({"config": given.config, "remarks": dropped_fields(given.config)})

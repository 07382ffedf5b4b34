"""The visitor's own settings."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.responses import Response

from determined_service.base.pages import FRONT_HOME
from determined_service.front.actions import FormAction, offer
from determined_service.front.experiment_configuration import as_yaml
from determined_service.front.forms import Form, read_form
from determined_service.front.rendering import LOOK, PageRouter, back, page
from determined_service.front.visits import Visitor

router = PageRouter()

THEMES = {"": "as the browser says", "light": "light", "dark": "dark"}


def _password(form: Form) -> dict[str, Any]:
    return {"password": form.text("password"), "currentPassword": form.text("current")}


offer(
    router,
    {
        "me.rename": FormAction(
            "PATCH",
            "/users/{id}",
            "Your display name is stored.",
            lambda form: {"displayName": form.text("display_name")},
        ),
        "me.password": FormAction(
            "POST", "/users/{id}/password", "Your password is changed.", _password
        ),
    },
)


@router.get("/settings", include_in_schema=False)
async def settings(request: Request, visit: Visitor) -> Response:
    """Theme, display name, password, defaults of configurations."""
    me = (await visit.get("/me"))["user"]
    defaults = (await visit.get("/users/defaults"))["config"]
    return page(
        "settings",
        request,
        visit,
        command="det user whoami",
        me=me,
        defaults=as_yaml(defaults) if defaults else "",
        themes=THEMES,
        look=request.cookies.get(LOOK, ""),
    )


@router.post("/settings/theme", include_in_schema=False)
async def set_theme(request: Request, visit: Visitor) -> Response:
    """The theme of this browser."""
    form = await read_form(visit)
    chosen = form.text("theme", "")
    answer = back(request, f"{FRONT_HOME}/settings")
    if chosen in ("light", "dark"):
        answer.set_cookie(
            LOOK, chosen, max_age=365 * 86400, path=FRONT_HOME, httponly=True, samesite="lax"
        )
    else:
        answer.delete_cookie(LOOK, path=FRONT_HOME)
    return answer

"""Models: their versions, aliases and history, and how they are trained again."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.aside import LONG_BYTES, aside
from determined_service.base.bounds import Id
from determined_service.base.json import dumps
from determined_service.base.pages import FRONT_HOME
from determined_service.front.actions import FormAction, offer
from determined_service.front.diffs import Diff, diff
from determined_service.front.experiments import PIECE
from determined_service.front.forms import Form
from determined_service.front.rendering import PageRouter, addresses, page, segment
from determined_service.front.visits import Visit, Visitor

router = PageRouter()

SORTS = {
    "name": ("Name", "SORT_BY_NAME"),
    "versions": ("Versions", "SORT_BY_NUM_VERSIONS"),
    "updated": ("Last change", "SORT_BY_LAST_UPDATED_TIME"),
    "workspace": ("Workspace", "SORT_BY_WORKSPACE"),
}


def _new(form: Form) -> dict[str, Any]:
    return {"name": form.text("name"), "description": form.text("description", "")}


def _approval(form: Form) -> dict[str, Any]:
    return {"approve": form.text("approve") == "yes"}


offer(
    router,
    {
        "model.create": FormAction(
            "POST",
            "/models",
            "There is a model {name} now.",
            _new,
            after=f"{FRONT_HOME}/models/{{name}}",
        ),
        "model.describe": FormAction(
            "PATCH",
            "/models/{model}",
            "Description and notes are stored.",
            lambda form: {"description": form.text("description"), "notes": form.text("notes")},
        ),
        "model.archive": FormAction("POST", "/models/{model}/archive", "The model is archived."),
        "model.unarchive": FormAction(
            "POST", "/models/{model}/unarchive", "The model may change again."
        ),
        "model.delete": FormAction(
            "DELETE", "/models/{model}", "The model is deleted.", after=f"{FRONT_HOME}/models"
        ),
        "model.register": FormAction(
            "POST",
            "/models/{model}/versions",
            "The checkpoint is a version of {model} now.",
            lambda form: {"checkpointUuid": form.text("checkpoint").strip()},
        ),
        "model.promote": FormAction(
            "PUT",
            "/models/{model}/aliases/{alias}",
            "{alias} stands for version {version} now.",
            lambda form: {"version": form.numbers("version")[0]},
        ),
        "model.unalias": FormAction(
            "DELETE", "/models/{model}/aliases/{alias}", "The alias {alias} is deleted."
        ),
        "model.describe_version": FormAction(
            "PATCH",
            "/models/{model}/versions/{version}",
            "Comment and notes are stored.",
            lambda form: {"comment": form.text("comment"), "notes": form.text("notes")},
        ),
        "model.delete_version": FormAction(
            "DELETE",
            "/models/{model}/versions/{version}",
            "Version {version} is deleted.",
            after=f"{FRONT_HOME}/models/{{model}}",
        ),
        "retraining.run": FormAction(
            "POST", "/models/{model}/retraining/runs", "A run of the retraining of {model} begins."
        ),
        "retraining.approve": FormAction(
            "POST", "/models/{model}/retraining/approve", "Your answer is stored.", _approval
        ),
        "retraining.cancel": FormAction(
            "POST", "/models/{model}/retraining/cancel", "The open run is canceled."
        ),
        "retraining.rollback": FormAction(
            "POST",
            "/models/{model}/retraining/rollback",
            "The alias stands for the version before.",
        ),
        "retraining.pause": FormAction(
            "PATCH",
            "/models/{model}/retraining",
            "The retraining is changed.",
            lambda form: {"paused": form.text("paused") == "yes"},
        ),
    },
)


@router.get("/models", include_in_schema=False)
async def list_models(
    request: Request,
    visit: Visitor,
    q: str = "",
    archived: bool = False,
    sort: str = "updated",
    order: str = "desc",
    offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> Response:
    """Models in pieces, and every model that is trained again."""
    _, by = SORTS.get(sort, SORTS["updated"])
    found, retrainings = await asyncio.gather(
        visit.get(
            "/models",
            {
                "name": q.strip(),
                "sortBy": by,
                "orderBy": "ORDER_BY_ASC" if order == "asc" else "ORDER_BY_DESC",
                "limit": PIECE,
                "offset": offset,
                **({} if archived else {"archived": "false"}),
            },
        ),
        visit.get("/retrainings", {"limit": PIECE}),
    )

    kept = {"q": q, "sort": sort, "order": order, "archived": "true" if archived else ""}
    return page(
        "models",
        request,
        visit,
        command="det model list",
        found=found["models"],
        pagination=found["pagination"],
        retrainings=retrainings["retrainings"],
        may_create=visit.may(Action.CREATE, Kind.MODEL),
        q=q,
        archived=archived,
        sort=sort,
        order=order,
        sorts=SORTS,
        address=addresses(f"{FRONT_HOME}/models", **kept),
    )


async def _head(visit: Visit, name: str) -> dict[str, Any]:
    model = (await visit.get(f"/models/{segment(name)}"))["model"]
    may = await visit.permitted(Action.CHANGE, Kind.MODEL, [model["name"]])
    return {
        "model": model,
        "may_change": bool(may) and not model["archived"],
        "may_archive": bool(may),
        "base": f"{FRONT_HOME}/models/{segment(model['name'])}",
    }


@router.get("/models/{name}", include_in_schema=False)
async def one_model(
    request: Request,
    visit: Visitor,
    name: str,
    offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> Response:
    """A model: versions, aliases with their history, notes, and its retraining."""
    shown = await _head(visit, name)
    path = f"/models/{segment(shown['model']['name'])}"
    versions, history, retraining, runs = await asyncio.gather(
        visit.get(
            f"{path}/versions",
            {
                "sortBy": "SORT_BY_VERSION",
                "orderBy": "ORDER_BY_DESC",
                "limit": PIECE,
                "offset": offset,
            },
        ),
        visit.get(f"{path}/alias-history", {"limit": 20, "orderBy": "ORDER_BY_DESC"}),
        visit.maybe(f"{path}/retraining"),
        visit.maybe(f"{path}/retraining/runs", {"limit": 20}),
    )

    return page(
        "model",
        request,
        visit,
        live="cluster" if retraining else "",
        command=f"det model describe {shown['model']['name']}",
        versions=versions["modelVersions"],
        pagination=versions["pagination"],
        history=history["moves"],
        retraining=(retraining or {}).get("retraining"),
        runs=(runs or {}).get("runs", []),
        address=addresses(shown["base"]),
        **shown,
    )


@router.get("/models/{name}/versions/{version}", include_in_schema=False)
async def one_version(
    request: Request, visit: Visitor, name: str, version: Id, against: Id = 0
) -> Response:
    """A version: its checkpoint, where it comes from, what uses it; and what differs from ``against``."""
    shown = await _head(visit, name)
    path = f"/models/{segment(shown['model']['name'])}/versions"
    found, uses, all_versions = await asyncio.gather(
        visit.get(f"{path}/{version}"),
        visit.maybe(f"{path}/{version}/metrics"),
        visit.get(path, {"limit": PIECE, "sortBy": "SORT_BY_VERSION", "orderBy": "ORDER_BY_DESC"}),
    )
    other = (await visit.get(f"{path}/{against}"))["modelVersion"] if against else None
    one = found["modelVersion"]
    return page(
        "model_version",
        request,
        visit,
        command=f"det model describe {shown['model']['name']} {version}",
        version=one,
        lineage=one.get("lineage") or {},
        uses=(uses or {}).get("metrics", [])[:50],
        numbers=[each["version"] for each in all_versions["modelVersions"]],
        against=against,
        diff=await _difference(other, one) if other else None,
        **shown,
    )


async def _difference(before: dict[str, Any], after: dict[str, Any]) -> Diff:
    """The difference of what two versions were trained with, and have."""
    texts = [await aside(LONG_BYTES + 1, _described, one) for one in (before, after)]
    names = (f"version {before['version']}", f"version {after['version']}")
    return await diff("\n".join(texts[0]), "\n".join(texts[1]), names)


def _described(version: dict[str, Any]) -> list[str]:
    checkpoint = version.get("checkpoint") or {}
    training = checkpoint.get("training") or {}
    kept = {
        "checkpoint": checkpoint.get("uuid"),
        "metadata": checkpoint.get("metadata"),
        "hparams": training.get("hparams"),
        "validationMetrics": training.get("validationMetrics"),
        "experimentConfig": training.get("experimentConfig"),
        "labels": version.get("labels"),
        "comment": version.get("comment"),
    }
    return _lines(kept)


def _lines(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict):
        return [
            line
            for name in sorted(value)
            for line in _lines(value[name], f"{path}.{name}".lstrip("."))
        ]
    return [f"{path}: {dumps(value).decode()}"]

"""New experiments: from an example, as forks, and continued ones.

A configuration is checked by what REST says to a submission that is only validated: :func:`check`. The page's
script sends the form while its reader types, and shows that part of the answer alone.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import re
import secrets
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from determined.common import examples
from determined.common.examples import EXAMPLES
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Id, Name
from determined_service.base.errors import ApiError, BadRequest, Forbidden
from determined_service.base.json import dumps
from determined_service.base.pages import FRONT_HOME
from determined_service.front.experiment import head
from determined_service.front.experiment_about import MOST_PROJECTS, list_projects
from determined_service.front.experiment_configuration import as_yaml
from determined_service.front.forms import Form, read_form
from determined_service.front.rendering import PageRouter, back, page
from determined_service.front.visits import Visit, Visitor

router = PageRouter()

MOST_TEMPLATES = 200
"""Templates that the page offers."""
CODELESS = """\
name: my-experiment
entrypoint: python3 train.py
searcher:
  name: single
  metric: loss
"""
"""What an experiment begins with that has neither an example nor a parent."""
_PROBLEM = re.compile(
    r"(?:<config>|(?P<source>(?:template|the defaults of) [^:]*))?(?::(?P<line>[0-9]+))?: (?P<rest>.*)"
)
_PATH = re.compile(r"(?P<path>[A-Za-z_][\w.\[\]-]*): (?P<message>.*)")


@dataclass(frozen=True, slots=True)
class Start:
    """What the form holds.

    Attributes:
        config: the configuration's YAML text.
        origin: ``EXAMPLE/FILE``, whose code is sent; empty: none is.
        parent: the experiment whose code it has, as its fork.
        key: of this form, which is the same experiment when it is sent again unchanged.
    """

    config: str
    origin: str = ""
    parent: int | None = None
    template: str = ""
    project: int | None = None
    paused: bool = False
    key: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def idempotency_key(self) -> str:
        """Another one for each text: who goes back to the form and changes it wants a new experiment."""
        parts = [self.key, self.origin, self.paused, self.body()]
        return hashlib.sha256(dumps(parts)).hexdigest()

    def body(self) -> dict[str, Any]:
        """The submission without its code."""
        given = {
            "config": self.config,
            "parentId": self.parent,
            "template": self.template or None,
            "projectId": self.project,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake. ``line``: of the text, from 1; ``source``: where it is, if not in the text."""

    message: str
    path: str = ""
    line: int | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """The service's answer to a configuration: ``problems``, or everything else.

    ``search``: the preview (``determined_searchers.preview``); None where ``note`` says why there is none.
    ``pool``: the resource pool's JSON.
    """

    problems: list[Problem] = field(default_factory=list)
    name: str = ""
    remarks: list[str] = field(default_factory=list)
    search: dict[str, Any] | None = None
    note: str = ""
    slots_per_trial: int = 0
    pool: dict[str, Any] | None = None
    sources: list[dict[str, Any]] = field(default_factory=list)

    @property
    def peak_slots(self) -> int | None:
        """Slots of the trials that run at a time, if there are enough of them."""
        return None if self.search is None else self.search["peak_trials"] * self.slots_per_trial


def problems_of(message: str) -> list[Problem]:
    """The mistakes that a refusal lists, a line for each."""
    found = []
    for line in message.splitlines():
        match = _PROBLEM.fullmatch(line)
        if match is None or not line.startswith(("<config>", "template ", "the defaults of ")):
            found.append(Problem(line))
            continue
        rest, source = match["rest"], match["source"] or ""
        number = None if match["line"] is None or source else int(match["line"])
        inner = _PATH.fullmatch(rest)
        if inner is None:
            found.append(Problem(rest, "", number, source))
        else:
            found.append(Problem(inner["message"], inner["path"], number, source))
    return found


async def check(visit: Visit, start: Start) -> Checked:
    """The service's answer, which stores nothing."""
    body = {**start.body(), "validateOnly": True, "explain": True}
    try:
        found = await visit.send("POST", "/experiments", body)
    except Forbidden:
        raise
    except ApiError as refusal:
        return Checked(problems_of(refusal.message))
    config = found["config"]
    (search, note), pools = await asyncio.gather(
        _preview(visit, config), visit.maybe("/resource-pools")
    )
    resources = config["resources"]
    named = resources.get("resource_pool")
    pool = next(
        (
            one
            for one in (pools or {"resourcePools": []})["resourcePools"]
            if (one["name"] == named if named else one["defaultComputePool"])
        ),
        None,
    )
    return Checked(
        name=config["name"],
        remarks=found["remarks"],
        search=search,
        note=note,
        slots_per_trial=resources["slots_per_trial"],
        pool=pool,
        sources=found["sources"],
    )


async def _preview(visit: Visit, config: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The plan of the search, or None and the reason."""
    if config["searcher"]["name"] == "custom":
        return None, "The program that runs the custom search decides about its trials."
    try:
        found = await visit.send("POST", "/preview-hp-search", {"config": config, "seed": 0})
    except ApiError as refusal:
        return None, refusal.message
    return found["preview"], ""


# ---- examples --------------------------------------------------------------------------------------------


@functools.cache
def _example(name: str) -> dict[str, bytes]:
    """The files of an example, which are a release's own."""
    one = EXAMPLES[name]
    return {file: (examples.folder() / one.folder / file).read_bytes() for file in one.files}


def _offered() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "about": one.about,
            "configs": [file for file in one.files if file.endswith(".yaml")],
        }
        for name, one in EXAMPLES.items()
    ]


async def _config_of(origin: str) -> str:
    """The text of an example's configuration. Raises BadRequest."""
    name, _, file = origin.partition("/")
    if name not in EXAMPLES or file not in EXAMPLES[name].files or not file.endswith(".yaml"):
        raise BadRequest(
            f"there is no example {origin!r}: choose one of {', '.join(EXAMPLES)} on the page"
        )
    return (await asyncio.to_thread(_example, name))[file].decode()


async def _code_of(origin: str) -> list[dict[str, Any]]:
    """The files of an example as a submission has them."""
    if not origin:
        return []
    await _config_of(origin)
    files = await asyncio.to_thread(_example, origin.partition("/")[0])
    return [
        {"path": path, "type": 48, "mode": 0o100644, "content": base64.b64encode(text).decode()}
        for path, text in files.items()
    ]


# ---- pages -----------------------------------------------------------------------------------------------


async def _form(
    request: Request,
    visit: Visit,
    start: Start,
    checked: Checked | None = None,
    *,
    parent: dict[str, Any] | None = None,
    status: int = 200,
) -> Response:
    """The page with the form as it was filled in."""
    if start.parent is not None and parent is None:
        parent = (await visit.get(f"/experiments/{start.parent}"))["experiment"]
    projects, templates = await asyncio.gather(
        list_projects(visit), visit.maybe("/templates", {"limit": MOST_TEMPLATES})
    )
    return page(
        "experiment_start",
        request,
        visit,
        status=status,
        command="" if parent is not None else "det flow run config.yaml FOLDER",
        start=start,
        parent=parent,
        checked=checked,
        examples=_offered(),
        projects=projects,
        most_projects=MOST_PROJECTS,
        templates=[] if templates is None else templates["templates"],
    )


@router.get("/experiments/new", include_in_schema=False)
async def new(
    request: Request,
    visit: Visitor,
    origin: Name = "core/random.yaml",
    template: Name = "",
    project: Annotated[str, Query(pattern=r"^[0-9]{0,9}$")] = "",
) -> Response:
    """The form, filled with an example's configuration. ``origin``: which; ``none``: no example."""
    _require_submitter(visit)
    origin = "" if origin == "none" else origin
    config = await _config_of(origin) if origin else CODELESS
    start = Start(config, origin, None, template, int(project) if project else None)
    return await _form(request, visit, start)


@router.get("/experiments/{experiment_id}/fork", include_in_schema=False)
async def fork(request: Request, visit: Visitor, experiment_id: Id) -> Response:
    """The form, filled with an experiment's configuration; its code is the parent's."""
    _require_submitter(visit)
    parent = (await visit.get(f"/experiments/{experiment_id}"))["experiment"]
    if parent["unmanaged"]:
        raise BadRequest(
            f"experiment {experiment_id} is unmanaged: its script runs outside of the cluster, which cannot "
            "run it again. Start the script again instead"
        )
    config = parent["originalConfig"] or as_yaml(parent["config"])
    start = Start(config, parent=experiment_id, project=parent["projectId"])
    return await _form(request, visit, start, parent=parent)


def _require_submitter(visit: Visit) -> None:
    if not visit.may(Action.SUBMIT, Kind.EXPERIMENT):
        raise Forbidden(
            f"{visit.subject.username} may not make experiments: ask an administrator for a role that may"
        )


def _read(form: Form) -> Start:
    """Raises BadRequest."""
    parents = form.numbers("parent")
    projects = form.numbers("project") if form.text("project", "") else []
    return Start(
        # Browsers send line ends as CR LF.
        config=form.text("config").replace("\r\n", "\n"),
        origin=form.text("origin", ""),
        parent=parents[-1] if parents else None,
        template=form.text("template", ""),
        project=projects[-1] if projects else None,
        paused=form.text("paused", "") == "true",
        key=form.text("key"),
    )


@router.post("/experiments/new", include_in_schema=False)
async def submit(request: Request, visit: Visitor) -> Response:
    """Checks what the form holds, or submits it; a refusal keeps what was typed."""
    form = await read_form(visit)
    start = _read(form)
    if form.text("do", "check") != "submit":
        return await _form(request, visit, start, await check(visit, start))
    body = {
        **start.body(),
        "modelDefinition": await _code_of(start.origin),
        "activate": not start.paused,
        "idempotencyKey": start.idempotency_key,
    }
    try:
        made = await visit.send("POST", "/experiments", body)
    except ApiError as refusal:
        checked = Checked(problems_of(refusal.message))
        return await _form(request, visit, start, checked, status=refusal.status)
    experiment = made["experiment"]
    said = [
        f"Experiment {experiment['id']} is {'made, and paused' if start.paused else 'submitted'}."
    ]
    return back(
        request,
        f"{FRONT_HOME}/experiments/{experiment['id']}",
        "\n".join([*said, *made["remarks"]]),
    )


@router.get("/experiments/{experiment_id}/continue", include_in_schema=False)
async def continuing(request: Request, visit: Visitor, experiment_id: Id) -> Response:
    """What continuing an experiment does, and the fields that change with it."""
    return await _continuing(request, visit, experiment_id)


async def _continuing(
    request: Request,
    visit: Visit,
    experiment_id: int,
    changes: str = "",
    refusal: ApiError | None = None,
) -> Response:
    shown = await head(visit, experiment_id)
    return page(
        "experiment_continue",
        request,
        visit,
        status=200 if refusal is None else refusal.status,
        tab="continue",
        changes=changes,
        problems=[] if refusal is None else problems_of(refusal.message),
        **(shown | {"command": f"det experiment continue {experiment_id}", "live": ""}),
    )


@router.post("/experiments/{experiment_id}/continue", include_in_schema=False)
async def go_on(request: Request, visit: Visitor, experiment_id: Id) -> Response:
    """Continues the experiment; a refusal keeps what was typed."""
    form = await read_form(visit)
    changes = form.text("changes", "").replace("\r\n", "\n")
    body = {"id": experiment_id, "overrideConfig": changes}
    try:
        found = await visit.send("POST", "/experiments/continue", body)
    except ApiError as refusal:
        return await _continuing(request, visit, experiment_id, changes, refusal)
    said = [f"Experiment {experiment_id} goes on.", *found["remarks"]]
    return back(request, f"{FRONT_HOME}/experiments/{experiment_id}", "\n".join(said))

"""The dependencies by which a route declares its rules of access.

Every route has one of these among its parameters, so none can be reached without passing
:func:`~determined_service.access.rules.authorise`:

* ``may(action, kind, verb)``: the path names the target. The route's function gets the
  :class:`Principal`, or is not called.
* ``may_named(action, kind, verb)``: the body names the targets. The function gets a :class:`Admission`, which
  gives the principal away only for targets that it has been shown.
* the readers (``ExperimentReader`` …): as ``may(Action.READ, kind)``.
* ``AgentAuth``: agents only.
* ``SupervisorAuth`` and the like: agents, and the supervisor or the run that serves what the path names.
* ``may_serve(kind, …)``: the same where the path does not name it.
"""

# Without `from __future__ import annotations`: FastAPI reads the annotations of `__call__` as they are.

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from determined.common.wire.paths import RUN_COOKIE
from determined.common.wire.serving import Served
from determined_service.access.authenticator import Authenticator
from determined_service.access.principal import Principal, RunRef
from determined_service.access.rules import RULES, Action, authorise, owner_decides
from determined_service.access.targets import Id, Kind, Owner, Owners, Target, missing, read_id
from determined_service.access.tokens import bearer_token
from determined_service.access.visible import is_hidden
from determined_service.base.errors import ApiError, Conflict, Forbidden
from determined_service.base.shares import ASKER, COUNTED

_bearer = HTTPBearer(
    auto_error=False, description="A token that `POST /api/v1/auth/login` returned."
)
Bearer = Annotated[object, Security(_bearer)]


async def asker(request: Request) -> Principal:
    """The sender, with any valid token; ``principal.run`` is set for a process outside of the cluster."""
    auth: Authenticator = request.app.state.auth
    found = await auth.principal(bearer_token(request.headers))
    count(request, found)
    run = RunRef.read(request.cookies.get(RUN_COOKIE, ""))
    if run is not None and found.allocation is None:
        return await auth.in_run(found, run)
    return found


def count(request: Request, subject: Principal) -> None:
    """From here on the request is one of the user in whose name ``subject`` asks, until
    :class:`~determined_service.web.bounds.Bounds` has seen its end. Raises TooManyRequests.
    """
    if subject.is_platform or COUNTED in request.scope:
        return
    name = str(subject.user_id)
    request.app.state.requests.begin(name)
    request.scope[COUNTED] = name
    ASKER.set(name)


@dataclass(frozen=True, slots=True)
class Admission:
    """Lets one subject through to the targets that it may do the action to."""

    subject: Principal
    action: Action
    kind: Kind
    verb: str
    owners: Owners

    async def refusals(
        self, ids: Collection[Id], kind: Kind | None = None
    ) -> tuple[Principal, dict[Id, ApiError]]:
        """The subject, and why it may not do this to some of ``ids``: they are not to be touched."""
        kind = kind or self.kind
        found: dict[Id, Owner | None] = {}
        look_up = owner_decides(self.subject, self.action, kind)
        if look_up:
            subject = self.subject
            where = subject.rights is not None
            found = await self.owners.find(kind, ids, subject.user_id, subject.task, where=where)
        refused: dict[Id, ApiError] = {}
        for one in ids:
            owner = found.get(one)
            if look_up and (one not in found or is_hidden(self.subject, kind, owner)):
                refused[one] = missing(kind, [one])
                continue
            try:
                authorise(self.subject, self.action, Target(kind, one, owner), self.verb)
            except Forbidden as refusal:
                refused[one] = refusal
        return self.subject, refused

    async def admit(self, *ids: Id, kind: Kind | None = None) -> Principal:
        """The subject, if it may do this to each of ``ids`` (without any: to things of this kind at all).

        Raises Forbidden; NotFound when some do not exist and it is not an administrator, who gets the answer
        of the route itself. ``kind``: where a body may name its target in several ways.
        """
        if not ids:
            authorise(self.subject, self.action, Target(kind or self.kind), self.verb)
            return self.subject
        subject, refused = await self.refusals(ids, kind)
        for refusal in refused.values():
            if isinstance(refusal, Forbidden):
                raise refusal
        if refused:
            raise missing(kind or self.kind, refused.keys())
        return subject


PARAMETERS = {
    Kind.USER: "user_id",
    Kind.EXPERIMENT: "experiment_id",
    Kind.TRIAL: "trial_id",
    Kind.TASK: "task_id",
    Kind.ALLOCATION: "allocation_id",
    Kind.CHECKPOINT: "uuid",
    Kind.MODEL: "model_name",
    Kind.PIPELINE: "pipeline_id",
    Kind.TEMPLATE: "template_name",
    Kind.DELETION: "deletion_id",
    Kind.WORKSPACE: "workspace_id",
    Kind.PROJECT: "project_id",
}
"""The name of the path's part that holds a target's id."""


class Rule:
    """A row of the table that a route stands under. Raises KeyError when the table has no such row."""

    def __init__(self, action: Action, kind: Kind, verb: str = "") -> None:
        self.grant = RULES[action, kind]
        self.action, self.kind, self.verb = action, kind, verb

    def admission(self, request: Request, subject: Principal) -> Admission:
        return Admission(subject, self.action, self.kind, self.verb, request.app.state.owners)


class May(Rule):
    """The dependency behind :func:`may`."""

    async def __call__(self, request: Request, _: Bearer = None) -> Principal:
        subject = await asker(request)
        text = request.path_params.get(PARAMETERS.get(self.kind, ""))
        one = None if self.action == Action.READ or text is None else read_id(self.kind, text)
        if one is not None and owner_decides(subject, self.action, self.kind):
            return await self.admission(request, subject).admit(one)
        authorise(subject, self.action, Target(self.kind, one), self.verb)
        return subject


class MayNamed(Rule):
    """The dependency behind :func:`may_named`."""

    async def __call__(self, request: Request, _: Bearer = None) -> Admission:
        return self.admission(request, await asker(request))


class MayNamedUnlessEnded(MayNamed):
    """None instead of Conflict: the allocation, or the run, whose process asks has ended."""

    async def __call__(self, request: Request, _: Bearer = None) -> Admission | None:  # type: ignore[override]
        try:
            return self.admission(request, await asker(request))
        except Conflict:
            return None


class Serves(Rule):
    """The dependency behind :func:`may_serve`."""

    def __init__(self, kind: Kind, *narrowed: str) -> None:
        super().__init__(Action.SERVE, kind)
        self.narrowed = narrowed

    async def __call__(self, request: Request, _: Bearer = None) -> Served | None:
        subject = await asker(request)
        if subject.serves is not None and subject.serves.kind in self.narrowed:
            return subject.serves
        authorise(subject, self.action, Target(self.kind), self.verb)
        return None


def may(action: Action, kind: Kind, verb: str = "") -> Any:
    """For ``Annotated[Principal, may(…)]``: the path names the target, or the action needs none."""
    return Depends(May(action, kind, verb))


def may_named(action: Action, kind: Kind, verb: str = "") -> Any:
    """For ``Annotated[Admission, may_named(…)]``: the body names the targets."""
    return Depends(MayNamed(action, kind, verb))


def may_serve(kind: Kind, *narrowed: str) -> Any:
    """For ``Annotated[Served | None, may_serve(…)]``: the path does not name what is served.

    The route must narrow what it does to the one thing that it is given, of one of the kinds ``narrowed``
    (names of :mod:`determined.common.wire.serving`); None: an agent asks, which serves everything.
    """
    return Depends(Serves(kind, *narrowed))


ClusterReader = Annotated[Principal, may(Action.READ, Kind.CLUSTER)]
UserReader = Annotated[Principal, may(Action.READ, Kind.USER)]
ExperimentReader = Annotated[Principal, may(Action.READ, Kind.EXPERIMENT)]
TrialReader = Annotated[Principal, may(Action.READ, Kind.TRIAL)]
TaskReader = Annotated[Principal, may(Action.READ, Kind.TASK)]
ModelReader = Annotated[Principal, may(Action.READ, Kind.MODEL)]
PipelineReader = Annotated[Principal, may(Action.READ, Kind.PIPELINE)]
TemplateReader = Annotated[Principal, may(Action.READ, Kind.TEMPLATE)]
WorkspaceReader = Annotated[Principal, may(Action.READ, Kind.WORKSPACE)]
ProjectReader = Annotated[Principal, may(Action.READ, Kind.PROJECT)]
CheckpointReader = Annotated[Principal, may(Action.READ, Kind.CHECKPOINT)]
GroupReader = Annotated[Principal, may(Action.READ, Kind.GROUP)]
RoleReader = Annotated[Principal, may(Action.READ, Kind.ROLE)]
TrialReporter = Annotated[Principal, may(Action.REPORT, Kind.TRIAL, "report for")]
AllocationReporter = Annotated[Principal, may(Action.REPORT, Kind.ALLOCATION, "report for")]
ClusterAdmin = Annotated[
    Principal, may(Action.ADMINISTER, Kind.CLUSTER, "enable or disable agents and slots of")
]
AgentAuth = Annotated[Principal, may(Action.SERVE, Kind.CLUSTER)]
SupervisorAuth = Annotated[Principal, may(Action.SERVE, Kind.ALLOCATION)]
TrialRunAuth = Annotated[Principal, may(Action.SERVE, Kind.TRIAL)]
ExperimentRunAuth = Annotated[Principal, may(Action.SERVE, Kind.EXPERIMENT)]
PipelineRunAuth = Annotated[Principal, may(Action.SERVE, Kind.PIPELINE)]
DeletionRunAuth = Annotated[Principal, may(Action.SERVE, Kind.DELETION)]

"""The rules of access: :func:`authorise`, which every route calls, and its table.

A subject (:class:`~determined_service.access.principal.Principal`) asks for an action on a target:

| action | target | who may |
|---|---|---|
| read | everything | every user who is logged in, except in the next rows |
| read | access token | users who are logged in, their own; administrators, all |
| read | cluster configuration | administrators |
| read | defaults of a user | users who are logged in, their own; no training process |
| create | experiment, model, task | every user who is logged in, as owner; a task's process, for its owner |
| create | pipeline, template | the same |
| submit | experiment | the same; a Prefect run that was started by hand, its own |
| create | workspace, project | every user who is logged in, as owner |
| pin | workspace | every user who is logged in, for itself |
| create | user | administrators |
| change | experiment, trial, checkpoint, model, task | the owner, administrators; the task that made it |
| change | pipeline, template | the same |
| change | workspace, project | the owner, administrators; no training process |
| delete | workspace, project | the same |
| restrict | workspace | the owner, administrators (its config policies); no training process |
| restrict | cluster | administrators (the global config policies) |
| administer | workspace | administrators (the account on agents of what runs in it) |
| register | model | the owner, administrators; processes of the owner's tasks too |
| register | checkpoint | as to change it |
| change | user | the user itself (its display name and password), administrators; no training process |
| create | group | administrators |
| change | group | administrators |
| delete | group | administrators |
| assign | role | administrators; in a workspace, who has a role there that assigns roles |
| administer | role | administrators (assign one that holds everywhere) |
| administer | user | administrators (name, rights and state of an account) |
| delete | experiment, checkpoint, model, pipeline, template | as to change them |
| create | session | every user who is logged in, for itself (a browser's, from a login; no access token) |
| delete | session | every caller with its token |
| create | access token | every user who is logged in, for itself; administrators, for others |
| change | access token | the user whose token it is, logged in; administrators |
| change | setting | every user who is logged in, its own |
| change | defaults of a user | users who are logged in, their own; no training process |
| report | trial, task, allocation | the allocation, of its own trial; the owner and administrators |
| enter | task | the owner, administrators, logged in; no training process |
| visit | task | the owner, administrators; no training process (a port that its kind shares: read) |
| administer | cluster | administrators (agents and slots in use) |
| serve | cluster | agents |
| serve | allocation | agents; the supervisor of that allocation |
| serve | trial, experiment, pipeline, deletion | agents; the Prefect run of that thing |

A supervisor and a Prefect run may nothing else, and read nothing. A run that was started in Prefect by hand
may begin one thing, an experiment in the name of ``determined`` or a retraining, and serves that thing then.
The owner of a trial or checkpoint is its experiment's, that of an allocation its task's. A task's process has
none of its owner's rights over things: it changes the experiments, models, pipelines and tasks that its own
task submitted (a custom search's runner submits one), their trials and checkpoints, and the checkpoints that
its own task reported. It registers those as versions of any model of its owner's, because that takes nothing
away. Registering a checkpoint keeps its owner from deleting it, so the user must own both. Actions of a
trial's task from before its experiment was continued count as its present task's. A task whose owner was
deactivated goes on with its training, and submits, registers and continues nothing. Only administrators may
change things without an owner.

In a cluster with roles (``security.authz.type: rbac``) the rows "the owner, administrators" say instead:
administrators, and who has a role with the permission of :data:`PERMITS` in the workspace of the target.
Nobody creates something in a workspace without that permission there. A task is entered and visited by its
owner alone, as without roles, and only while the owner may see it. Tokens of training processes are as narrow
as without roles; they begin nothing that their owners may not begin.

An action that the table does not name for a kind of target cannot be declared
by a route.
"""

from __future__ import annotations

import shlex
from enum import StrEnum

from determined.common.wire.serving import NEW_EXPERIMENT, Served
from determined_service.access.permissions import Permission
from determined_service.access.principal import AGENT, USER, AllocationRef, Principal
from determined_service.access.roles import least
from determined_service.access.targets import NOBODY, Kind, Target
from determined_service.base.errors import Forbidden, Unauthenticated


class Action(StrEnum):
    """The kinds of request."""

    READ = "read"
    CREATE = "create"
    SUBMIT = "submit"
    CHANGE = "change"
    ADMINISTER = "administer"
    DELETE = "delete"
    REGISTER = "register"
    REPORT = "report"
    SERVE = "serve"
    VISIT = "visit"
    ENTER = "enter"
    ASSIGN = "assign"
    PIN = "pin"
    RESTRICT = "restrict"


class Grant(StrEnum):
    """The subjects that are allowed, in one word."""

    LOGGED_IN = "logged in"
    USER = "logged in, but no task"
    OWNER = "owner"
    OWNER_ALONE = "owner, but none of its tasks"
    OWNER_OR_TASKS = "owner, and all of its tasks"
    ITSELF = "itself"
    SENDER = "sender"
    ADMINISTRATOR = "administrator"
    AGENT = "agent"
    SERVING = "agent, or who serves it"


RULES: dict[tuple[Action, Kind], Grant] = {
    **{(Action.READ, kind): Grant.LOGGED_IN for kind in Kind},
    (Action.READ, Kind.CONFIGURATION): Grant.ADMINISTRATOR,
    (Action.READ, Kind.SERVICE_LOG): Grant.ADMINISTRATOR,
    (Action.CREATE, Kind.EXPERIMENT): Grant.LOGGED_IN,
    (Action.SUBMIT, Kind.EXPERIMENT): Grant.LOGGED_IN,
    (Action.CREATE, Kind.TASK): Grant.LOGGED_IN,
    (Action.CREATE, Kind.USER): Grant.ADMINISTRATOR,
    (Action.CREATE, Kind.MODEL): Grant.LOGGED_IN,
    (Action.CREATE, Kind.PIPELINE): Grant.LOGGED_IN,
    (Action.CHANGE, Kind.PIPELINE): Grant.OWNER,
    (Action.DELETE, Kind.PIPELINE): Grant.OWNER,
    (Action.CREATE, Kind.TEMPLATE): Grant.LOGGED_IN,
    (Action.CHANGE, Kind.TEMPLATE): Grant.OWNER,
    (Action.DELETE, Kind.TEMPLATE): Grant.OWNER,
    (Action.CREATE, Kind.WORKSPACE): Grant.LOGGED_IN,
    (Action.PIN, Kind.WORKSPACE): Grant.LOGGED_IN,
    (Action.CHANGE, Kind.WORKSPACE): Grant.OWNER_ALONE,
    (Action.DELETE, Kind.WORKSPACE): Grant.OWNER_ALONE,
    (Action.ADMINISTER, Kind.WORKSPACE): Grant.ADMINISTRATOR,
    (Action.RESTRICT, Kind.WORKSPACE): Grant.OWNER_ALONE,
    (Action.RESTRICT, Kind.CLUSTER): Grant.ADMINISTRATOR,
    (Action.CREATE, Kind.PROJECT): Grant.LOGGED_IN,
    (Action.CHANGE, Kind.PROJECT): Grant.OWNER_ALONE,
    (Action.DELETE, Kind.PROJECT): Grant.OWNER_ALONE,
    (Action.REGISTER, Kind.MODEL): Grant.OWNER_OR_TASKS,
    (Action.REGISTER, Kind.CHECKPOINT): Grant.OWNER,
    (Action.CHANGE, Kind.MODEL): Grant.OWNER,
    (Action.DELETE, Kind.MODEL): Grant.OWNER,
    (Action.CHANGE, Kind.EXPERIMENT): Grant.OWNER,
    (Action.CHANGE, Kind.TRIAL): Grant.OWNER,
    (Action.CHANGE, Kind.CHECKPOINT): Grant.OWNER,
    (Action.CHANGE, Kind.TASK): Grant.OWNER,
    (Action.CHANGE, Kind.USER): Grant.ITSELF,
    (Action.ADMINISTER, Kind.USER): Grant.ADMINISTRATOR,
    (Action.CREATE, Kind.GROUP): Grant.ADMINISTRATOR,
    (Action.CHANGE, Kind.GROUP): Grant.ADMINISTRATOR,
    (Action.DELETE, Kind.GROUP): Grant.ADMINISTRATOR,
    (Action.ASSIGN, Kind.ROLE): Grant.ADMINISTRATOR,
    (Action.ADMINISTER, Kind.ROLE): Grant.ADMINISTRATOR,
    (Action.DELETE, Kind.EXPERIMENT): Grant.OWNER,
    (Action.DELETE, Kind.CHECKPOINT): Grant.OWNER,
    (Action.CREATE, Kind.SESSION): Grant.USER,
    (Action.DELETE, Kind.SESSION): Grant.LOGGED_IN,
    (Action.READ, Kind.ACCESS_TOKEN): Grant.USER,
    (Action.CREATE, Kind.ACCESS_TOKEN): Grant.USER,
    (Action.CHANGE, Kind.ACCESS_TOKEN): Grant.OWNER_ALONE,
    (Action.CHANGE, Kind.SETTING): Grant.LOGGED_IN,
    (Action.READ, Kind.DEFAULTS): Grant.USER,
    (Action.CHANGE, Kind.DEFAULTS): Grant.USER,
    (Action.REPORT, Kind.TRIAL): Grant.SENDER,
    (Action.REPORT, Kind.TASK): Grant.SENDER,
    (Action.REPORT, Kind.ALLOCATION): Grant.SENDER,
    (Action.VISIT, Kind.TASK): Grant.OWNER_ALONE,
    (Action.ENTER, Kind.TASK): Grant.OWNER_ALONE,
    (Action.ADMINISTER, Kind.CLUSTER): Grant.ADMINISTRATOR,
    (Action.SERVE, Kind.CLUSTER): Grant.AGENT,
    (Action.SERVE, Kind.ALLOCATION): Grant.SERVING,
    (Action.SERVE, Kind.TRIAL): Grant.SERVING,
    (Action.SERVE, Kind.EXPERIMENT): Grant.SERVING,
    (Action.SERVE, Kind.PIPELINE): Grant.SERVING,
    (Action.SERVE, Kind.DELETION): Grant.SERVING,
}


P = Permission
PERMITS: dict[tuple[Action, Kind], Permission] = {
    (Action.CREATE, Kind.EXPERIMENT): P.CREATE_EXPERIMENT,
    (Action.SUBMIT, Kind.EXPERIMENT): P.CREATE_EXPERIMENT,
    (Action.CHANGE, Kind.EXPERIMENT): P.UPDATE_EXPERIMENT,
    (Action.DELETE, Kind.EXPERIMENT): P.DELETE_EXPERIMENT,
    (Action.CHANGE, Kind.TRIAL): P.UPDATE_EXPERIMENT,
    (Action.CHANGE, Kind.CHECKPOINT): P.UPDATE_EXPERIMENT,
    (Action.DELETE, Kind.CHECKPOINT): P.UPDATE_EXPERIMENT,
    (Action.REGISTER, Kind.CHECKPOINT): P.UPDATE_EXPERIMENT,
    (Action.REPORT, Kind.TRIAL): P.UPDATE_EXPERIMENT,
    (Action.REPORT, Kind.TASK): P.UPDATE_EXPERIMENT,
    (Action.REPORT, Kind.ALLOCATION): P.UPDATE_EXPERIMENT,
    (Action.CREATE, Kind.PIPELINE): P.CREATE_EXPERIMENT,
    (Action.CHANGE, Kind.PIPELINE): P.UPDATE_EXPERIMENT,
    (Action.DELETE, Kind.PIPELINE): P.DELETE_EXPERIMENT,
    (Action.CREATE, Kind.TASK): P.CREATE_NSC,
    (Action.CHANGE, Kind.TASK): P.UPDATE_NSC,
    (Action.VISIT, Kind.TASK): P.VIEW_NSC,
    (Action.ENTER, Kind.TASK): P.VIEW_NSC,
    (Action.CREATE, Kind.MODEL): P.CREATE_MODEL_REGISTRY,
    (Action.CHANGE, Kind.MODEL): P.EDIT_MODEL_REGISTRY,
    (Action.REGISTER, Kind.MODEL): P.EDIT_MODEL_REGISTRY,
    (Action.DELETE, Kind.MODEL): P.DELETE_MODEL_REGISTRY,
    (Action.CREATE, Kind.TEMPLATE): P.CREATE_TEMPLATES,
    (Action.CHANGE, Kind.TEMPLATE): P.UPDATE_TEMPLATES,
    (Action.DELETE, Kind.TEMPLATE): P.DELETE_TEMPLATES,
    (Action.CREATE, Kind.WORKSPACE): P.CREATE_WORKSPACE,
    (Action.CHANGE, Kind.WORKSPACE): P.UPDATE_WORKSPACE,
    (Action.DELETE, Kind.WORKSPACE): P.DELETE_WORKSPACE,
    (Action.ADMINISTER, Kind.WORKSPACE): P.SET_WORKSPACE_AGENT_USER_GROUP,
    (Action.RESTRICT, Kind.WORKSPACE): P.MODIFY_WORKSPACE_CONFIG_POLICIES,
    (Action.RESTRICT, Kind.CLUSTER): P.MODIFY_GLOBAL_CONFIG_POLICIES,
    (Action.CREATE, Kind.PROJECT): P.CREATE_PROJECT,
    (Action.CHANGE, Kind.PROJECT): P.UPDATE_PROJECT,
    (Action.DELETE, Kind.PROJECT): P.DELETE_PROJECT,
    (Action.CREATE, Kind.ACCESS_TOKEN): P.CREATE_TOKEN,
    (Action.ASSIGN, Kind.ROLE): P.ASSIGN_ROLES,
}
"""In a cluster with roles: the permission that a user needs for it, in the workspace of the target. What is
missing here is decided as without roles; reads: :mod:`~determined_service.access.visible`."""

_OF_OTHERS = {P.DELETE_MODEL_REGISTRY: P.DELETE_OTHER_USER_MODEL_REGISTRY}
"""Permissions that are good for one's own things alone, and those for others' things."""

_SHARED = (Grant.OWNER, Grant.OWNER_OR_TASKS)
"""Where a user's permission stands for being the owner."""


def _changes(action: Action, kind: Kind) -> bool:
    """False for reads, and for a logout: an access token is good after it, too."""
    return action != Action.READ and kind != Kind.SESSION


_PLACES = (Kind.WORKSPACE, Kind.PROJECT)

_BEGINS = frozenset({Action.CREATE, Action.SUBMIT, Action.REGISTER, "continue"})
"""Actions that make something that may outlive the task."""


def owner_decides(subject: Principal, action: Action, kind: Kind) -> bool:
    """True if :func:`authorise` needs the target's owner: reads, administrators, a training process that
    reports, supervisors and runs need no look at the database."""
    if subject.read_only and _changes(action, kind):
        return False
    grant = RULES[action, kind]
    if subject.admin or subject.serves is not None:
        return False
    if grant == Grant.SENDER and subject.allocation is not None:
        return False
    return grant not in (
        Grant.LOGGED_IN,
        Grant.USER,
        Grant.ADMINISTRATOR,
        Grant.AGENT,
        Grant.SERVING,
    )


def authorise(subject: Principal, action: Action, target: Target, verb: str = "") -> None:
    """Returns if the subject may do this to the target; else raises Forbidden, and says who may.

    ``verb`` says it in words that stand before the target's name ("pause", "delete the files of").
    Raises Unauthenticated where only agents and who serves the target may ask, and KeyError for what the
    table does not name.
    """
    grant = RULES[action, target.kind]
    verb = verb or action
    begins = action in _BEGINS or verb in _BEGINS
    if subject.serves is not None:
        _require_served(subject.serves, action, target, verb)
        return
    if subject.read_only and _changes(action, target.kind):
        raise Forbidden(
            f"this access token is good for reading alone: to {verb} {target}, log in as {subject.username}, "
            "or send a token that was made without read_only"
        )
    if not subject.active and begins:
        raise Forbidden(
            f"user {subject.username}, in whose name this task runs, is deactivated: the task may {verb} "
            "nothing any more"
        )
    needed = permission_for(subject, action, target)
    # Of what it has begun already, a training process brings to an end what its owner no more might.
    if needed is not None and (subject.allocation is None or begins):
        _require_permission(subject, needed, target, verb)
        is_owned = target.owner is not None and (grant in _SHARED or target.kind in _PLACES)
        if subject.allocation is None and (is_owned or grant == Grant.ADMINISTRATOR):
            return
    if grant in (Grant.AGENT, Grant.SERVING):
        if subject.kind != AGENT:
            raise Unauthenticated("this address is for agents: send the cluster's agent token")
    elif grant == Grant.SENDER and subject.allocation is not None:
        _require_own(subject, target)
    elif grant == Grant.USER and subject.kind != USER:
        raise Forbidden(
            f"only a user who is logged in may {verb} {target} (det user login NAME): a task's process and "
            "an agent may not"
        )
    elif grant in (Grant.LOGGED_IN, Grant.USER) or subject.admin:
        return
    elif grant == Grant.ADMINISTRATOR:
        raise Forbidden(f"only an administrator may {verb} {target}")
    elif grant == Grant.ITSELF and subject.allocation is not None:
        raise Forbidden("a training process may not change its owner")
    elif target.owner is None or target.owner.id == NOBODY:
        reason = " without naming one" if target.id is None else ": it belongs to no user"
        raise Forbidden(f"only an administrator may {verb} {target}{reason}")
    elif target.owner.id != subject.user_id:
        noun = "user" if target.kind == Kind.USER else "its owner"
        raise Forbidden(
            f"only {noun} {target.owner.username} or an administrator may {verb} {target}"
        )
    elif subject.allocation is not None and grant == Grant.OWNER_ALONE:
        raise Forbidden(
            f"this is the token of allocation {subject.allocation.id}: only {target.owner.username}, logged"
            f" in, or an administrator may {verb} {target}"
        )
    elif subject.allocation is not None and grant != Grant.OWNER_OR_TASKS:
        _require_made(subject.allocation, target, verb)


def permission_for(subject: Principal, action: Action, target: Target) -> Permission | None:
    """The permission that the subject needs for it; None: its roles do not decide."""
    needed = PERMITS.get((action, target.kind))
    if needed is None or subject.rights is None or subject.admin:
        return None
    is_others = target.owner is not None and target.owner.id != subject.user_id
    return _OF_OTHERS.get(needed, needed) if is_others else needed


def _require_permission(subject: Principal, needed: Permission, target: Target, verb: str) -> None:
    """Raises Forbidden, and names the least role that has the permission and the command that assigns it."""
    assert subject.rights is not None
    place = target.place
    if place is None and target.id is None:
        allowed = subject.rights.allow_somewhere(needed)
    else:
        allowed = subject.rights.allow(needed, None if place is None else place.id)
    if allowed:
        return
    role = least(needed, in_one=True)
    where, option = "", ""
    if not role.cluster_wide and (place is not None or target.id is None):
        where = " in its workspace" if place is None else f" in workspace {place.name!r}"
        option = f" -w {'WORKSPACE' if place is None else shlex.quote(place.name)}"
    who = shlex.quote(subject.username)
    raise Forbidden(
        f"user {subject.username} may not {verb} {target}: that needs the role {role.name}{where}; who may "
        f"assign it runs `det rbac assign-role {role.name} -u {who}{option}`"
    )


def _require_served(served: Served, action: Action, target: Target, verb: str) -> None:
    """Allow a supervisor or a run the one thing that it serves; ownership does not matter."""
    is_it = target.id is not None and (target.kind, str(target.id)) == (served.kind, served.id)
    if action == Action.SERVE and is_it:
        return
    if action == Action.SUBMIT and served.kind == NEW_EXPERIMENT:
        return
    raise Forbidden(f"this token is good for {served} alone: it may not {verb} {target}")


def _require_made(own: AllocationRef, target: Target, verb: str) -> None:
    """Of its owner's things a task's process changes only those that its own task made."""
    assert target.owner is not None
    if own.task_id not in target.owner.tasks:
        raise Forbidden(
            f"this is the token of allocation {own.id}, which may change only what its own task submitted or "
            f"stored: only {target.owner.username}, logged in, or an administrator may {verb} {target}"
        )


def _require_own(subject: Principal, target: Target) -> None:
    """An allocation reports for itself and its trial only."""
    own = subject.allocation
    assert own is not None
    ids = {Kind.TRIAL: own.trial_id, Kind.TASK: own.task_id, Kind.ALLOCATION: own.id}
    if target.id is None or ids[target.kind] != target.id:
        raise Forbidden(
            f"this is the token of allocation {own.id}, which may not report for {target}"
        )

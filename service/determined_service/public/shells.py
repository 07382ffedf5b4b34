"""Reports of a shell's process: that it can be entered, and how."""

from __future__ import annotations

from typing import Annotated

from starlette.responses import Response

from determined.common.wire import shells
from determined.common.wire.legs import PortState
from determined_service.access.dependencies import may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.checks import check_text
from determined_service.base.errors import BadRequest, Conflict
from determined_service.base.json import JsonResponse
from determined_service.lifecycle import ports
from determined_service.lifecycle.kinds.shell import open_door
from determined_service.state.change import changing
from determined_service.web.router import Router
from determined_service.web.state import Db

router = Router("Tasks")

Reporter = Annotated[Principal, may(Action.REPORT, Kind.TASK, "report for")]
WORDS = 1_000


@router.put(shells.DOOR)
async def open_shell(task_id: str, given: shells.Door, process: Reporter, db: Db) -> Response:
    """The shell's process listens at its ports. 409: the service does not know yet that it runs."""
    if process.allocation is None:
        raise Conflict("the shell's own process says how it is entered, and nobody else")
    if not given.no_ssh:
        if not shells.is_account(given.account):
            raise BadRequest(f"account: {given.account[:50]!r} is not the name of an account")
        if not shells.is_host_key(given.host_key):
            raise BadRequest("host_key: no public key as known_hosts has it")
    check_text(given.no_ssh, "no_ssh", WORDS)
    check_text(given.no_tty, "no_tty", WORDS)
    async with changing(db) as change:
        for name in (shells.SSH, shells.TERMINAL):
            await ports.set_state(change, process.allocation.id, PortState(name, True))
        await open_door(change, task_id, given)
    return JsonResponse({})

"""Opens the gates before a task's ports, where any are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from determined.common.wire.legs import Port
from determined_tasks.ports import LOOPBACK

if TYPE_CHECKING:
    from determined_tasks.gates import Gates


def gates_before(
    ports: list[Port], address: str, inside: str, token: str, allocation_id: str
) -> Gates | None:
    """Opens gates at ``address``, as which the service knows this machine, before ports that listen at
    ``inside``; None: none are needed, because ``inside`` is what the service reaches."""
    if not ports or address == inside == LOOPBACK:
        return None
    # Few legs need it, and asyncio with it.
    from determined_tasks.gates import Gates

    return Gates(ports, address, inside, token, allocation_id)

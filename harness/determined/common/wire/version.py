"""Which agents a service understands.

:data:`VERSION` grows when a message changes so that a process of an older release would do the wrong thing.
A new field with a default is not such a change: a process that does not know the field leaves it out or
ignores it. :data:`OLDEST` is at most one release behind. 0 stands for releases that sent no number.
"""

from __future__ import annotations

from determined.__version__ import __version__

VERSION = 4
OLDEST = 0

ACCOUNTS = 2
"""From this version on an agent heeds ``LegSpec.agent_user``; an older one would start the task as itself."""

GANGS = 3
"""From this version on an agent heeds ``LegSpec.nodes``; an older one would start its part as a trial."""

MOUNTS = 4
"""From this version on an agent heeds ``bind_mounts`` and ``shm_size`` of tasks that are processes, or says
why it cannot; an older one heeds neither, and says nothing."""


def refusal(agent_id: str, version: int, release: str) -> str | None:
    """Why a service of this release refuses the agent, and what to do; None: the two understand each other.

    Args:
        agent_id: the agent's name.
        version: the number that the agent sent, 0 if it sent none.
        release: the release that the agent runs, empty if it is not known.
    """
    if OLDEST <= version <= VERSION:
        return None
    runs = f"release {release}" if release else "another release"
    if version < OLDEST:
        todo = f"install determined-prefect {__version__} on the agent's machine and start it again"
        return f"agent {agent_id} runs {runs}, too old for this service ({__version__}): {todo}"
    todo = f"upgrade the service first, or start the agent from release {__version__}"
    return f"agent {agent_id} runs {runs}, newer than this service ({__version__}): {todo}"

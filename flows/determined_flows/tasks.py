"""The flows of what people launch: commands, notebooks, shells, TensorBoards, generic tasks.

Their runs are what Prefect shows. The processes are started by agents, as the service orders; no worker
executes such a run, unless a user makes one by hand.
"""

from __future__ import annotations

import prefect
from prefect.flows import Flow

from determined.common.wire.kinds import GENERIC, TaskKind


class NotByHand(Exception):
    """Somebody has made, or retried, the run of a task in Prefect."""


def _flow(kind: str, title: str, command: str) -> Flow[[str], None]:
    @prefect.flow(name=kind, description=f"One {title}.", persist_result=False)
    def run(task_id: str) -> None:
        """Raises NotByHand."""
        raise NotByHand(
            f"this run shows a {kind} of the cluster (task {task_id}) and starts nothing: use `{command}`"
        )

    return run


# prefect.yaml names them.
run_command, run_notebook, run_shell, run_tensorboard = (
    _flow(kind.value, kind.title, kind.command) for kind in TaskKind
)
run_generic = _flow(GENERIC, "generic task", "det task create")

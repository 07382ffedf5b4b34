"""A deletion from checkpoint storage: a task without slots, run by a separate flow."""

from __future__ import annotations

from determined_service.base.errors import Conflict
from determined_service.lifecycle.kinds.base import AnyKind
from determined_service.state.change import Change
from determined_service.state.task_kinds import CHECKPOINT_GC


class CheckpointGcKind(AnyKind):
    """See :mod:`determined_service.deleting.deletions`, which moves its state, and
    :mod:`determined_service.prefect.keeper`, which makes its runs."""

    name = CHECKPOINT_GC
    mirrored = False

    async def kill(self, change: Change, task_id: str) -> None:
        """Raises Conflict: half of a deletion would leave rows of files that are gone."""
        raise Conflict(f"task {task_id} deletes checkpoints: it cannot be killed, only repeated")

"""Tell a trial's own checkpoints from those of other trials. From another trial's checkpoint a trial takes
the weights, not the position."""

from __future__ import annotations

from typing import Any

from determined import core


def metadata(core_context: core.Context, steps_completed: int) -> dict[str, Any]:
    """The metadata of a checkpoint that this trial stores after ``steps_completed`` batches."""
    info = core_context.info
    if info is None or info.task_type != "TRIAL":
        return {"steps_completed": steps_completed}
    return {"steps_completed": steps_completed, "trial_id": info.trial.trial_id}


def is_own(core_context: core.Context, metadata: dict[str, Any]) -> bool:
    """True if a checkpoint with this metadata is this trial's, or names no trial."""
    info = core_context.info
    if info is None or info.task_type != "TRIAL":
        return True
    return metadata.get("trial_id") in (None, info.trial.trial_id)

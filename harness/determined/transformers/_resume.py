"""Turns a stored checkpoint into a directory that the Trainer resumes from."""

from __future__ import annotations

import logging
from pathlib import Path

from transformers import TrainerState

from determined import _own_checkpoint, core, errors

logger = logging.getLogger("determined.transformers")

# What says where a training stands, beside trainer_state.json.
POSITION = ("optimizer.*", "scheduler.pt", "scaler.pt", "rng_state*.pth")
# What it keeps all the same: the Trainer compares the first four with its own, and wants the last.
KEPT = ("logging_steps", "eval_steps", "save_steps", "train_batch_size", "stateful_callbacks")


def checkpoint_name(step: int) -> str:
    """The directory of the Trainer's checkpoint after ``step`` steps."""
    return f"checkpoint-{step}"


def download(core_context: core.Context, storage_id: str, output_dir: Path) -> Path:
    """The Trainer's directory of the checkpoint, below ``output_dir``.

    Of another trial's checkpoint only the weights are kept: the training begins at step 0. Raises
    errors.InvalidCheckpointException for a checkpoint that :class:`DetCallback` did not store.
    """
    metadata = core_context.checkpoint.get_metadata(storage_id)
    path = output_dir / checkpoint_name(metadata.get("steps_completed", -1))
    # By name: a training that was killed may have left a newer one, half written.
    core_context.checkpoint.download(storage_id, output_dir)
    if not (path / "trainer_state.json").is_file():
        raise errors.InvalidCheckpointException(
            f"checkpoint {storage_id} has no {path.name}/trainer_state.json: "
            "determined.transformers.DetCallback has not stored it"
        )
    if not _own_checkpoint.is_own(core_context, metadata):
        logger.info(
            "the checkpoint %s is another trial's: training begins with its weights, at step 0",
            storage_id,
        )
        if core_context.distributed.local_rank == 0:
            _forget_position(path)
        core_context.distributed.allgather_local(None)
    return path


def _forget_position(path: Path) -> None:
    for pattern in POSITION:
        for file in path.glob(pattern):
            file.unlink()
    position = str(path / "trainer_state.json")
    state = TrainerState.load_from_json(position)
    TrainerState(**{name: getattr(state, name) for name in KEPT}).save_to_json(position)

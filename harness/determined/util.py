"""Helpers for training scripts."""

from __future__ import annotations

import logging
from typing import Any

from determined import errors

logger = logging.getLogger("determined")


def calculate_batch_sizes(
    hparams: dict[str, Any], slots_per_trial: int, trialname: str
) -> tuple[int, int]:
    """(batch size per slot, effective global batch size) from ``global_batch_size``.

    The global size is rounded down to a multiple of the slots, with a warning.
    Raises errors.InvalidExperimentException when it is missing, not an int, or below the slots.
    """
    slots = max(slots_per_trial, 1)
    if "global_batch_size" not in hparams:
        raise errors.InvalidExperimentException(
            f"{trialname} needs an integer hyperparameter global_batch_size; "
            "add it under hyperparameters in the experiment configuration"
        )
    wanted = hparams["global_batch_size"]
    if not isinstance(wanted, int) or isinstance(wanted, bool):
        raise errors.InvalidExperimentException(
            f"hyperparameters.global_batch_size must be an integer, found {wanted!r}"
        )
    if wanted < slots:
        raise errors.InvalidExperimentException(
            f"hyperparameters.global_batch_size is {wanted}, which is less than one record for "
            f"each of {slots} slots"
        )
    per_slot = wanted // slots
    effective = per_slot * slots
    if effective != wanted:
        logger.warning(
            "global_batch_size %d is not a multiple of %d slots; %d is used instead",
            wanted,
            slots,
            effective,
        )
    return per_slot, effective

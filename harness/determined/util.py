"""Helpers for training scripts."""

from __future__ import annotations

import copy
import inspect
import json
import logging
import numbers
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

from determined import errors
from determined._absent import absent

logger = logging.getLogger("determined")

_TRAINER = "determined.pytorch.Trainer averages and reports metrics"
__getattr__ = absent(
    __name__,
    {
        **dict.fromkeys(("make_metrics", "make_timing_log", "validate_batch_metrics"), _TRAINER),
        **dict.fromkeys(
            ("legacy_trial_entrypoint_to_script", "match_legacy_trial_class", "write_user_code"),
            "the platform reads `entrypoint` itself",
        ),
        **dict.fromkeys(
            ("mask_checkpoint_storage", "mask_config_dict"),
            "determined.expconf.masked(config) hides the secrets of a configuration",
        ),
        **dict.fromkeys(
            ("check_sshd", "forward_signals", "signal_process_tree"),
            "determined.launch starts processes and passes signals on to them",
        ),
    },
)


def merge_dicts(base_dict: dict[Any, Any], source_dict: dict[Any, Any]) -> dict[Any, Any]:
    """A new dict: ``base_dict`` updated by ``source_dict``; dicts within dicts are merged too."""
    merged = copy.deepcopy(base_dict)
    for key, value in source_dict.items():
        both = isinstance(merged.get(key), dict) and isinstance(value, dict)
        merged[key] = merge_dicts(merged[key], value) if both else copy.deepcopy(value)
    return merged


def has_param(fn: Callable[..., Any], name: str, pos: int | None = None) -> bool:
    """True if ``fn`` takes a positional parameter ``name``, or a parameter number ``pos`` (from 0)."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [
        one.name for one in inspect.signature(fn).parameters.values() if one.kind in positional
    ]
    return name in names or (pos is not None and pos < len(names))


def get_member_func(obj: Any, func_name: str) -> Any:
    """The method ``func_name`` of ``obj``; None if there is none that can be called."""
    found = getattr(obj, func_name, None)
    return found if callable(found) else None


def is_overridden(full_method: Any, parent_class: Any) -> bool:
    """True if a method (bound, or of a class) differs from that of ``parent_class``."""
    function = getattr(full_method, "__func__", full_method)
    return function is not getattr(parent_class, full_method.__name__)


def filter_duplicates(
    in_list: Iterable[Hashable], sorter: Callable[[list[Any]], Sequence[Any]] = sorted
) -> set[Any]:
    """The items that come more than once. ``sorter`` is taken for older callers, and not needed."""
    return {item for item, count in Counter(in_list).items() if count > 1}


def is_numerical_scalar(n: Any) -> bool:
    """True if ``n`` is a number, or an array with one number and no dimensions."""
    return isinstance(n, numbers.Number) or getattr(n, "shape", None) == ()


def humanize_float(n: float) -> float:
    """``n`` rounded to four significant digits."""
    return n if isinstance(n, int) else float(f"{n:.4g}")


def json_encode(obj: Any, indent: str | None = None, sort_keys: bool = False) -> str:
    """JSON of plain values, numpy's and torch's numbers and arrays; NaN and infinities become texts.

    Raises TypeError for what JSON lacks.
    """
    from determined.core._metrics import plain

    return json.dumps(plain(obj), indent=indent, sort_keys=sort_keys)


def force_create_symlink(src: str, dst: str) -> None:
    """Make a symbolic link ``dst`` to ``src``, replacing a file, link or directory of that name."""
    there = Path(dst)
    if there.is_dir() and not there.is_symlink():
        shutil.rmtree(there)
    there.unlink(missing_ok=True)
    there.symlink_to(src)


def rmtree_nfs_safe(
    path: str | os.PathLike[str],
    ignore_errors: bool = False,
    onerror: Callable[[Any, Any, Any], Any] | None = None,
) -> None:
    """``shutil.rmtree`` for shared file systems: another process may delete the same files meanwhile."""

    def missing_is_fine(function: Any, name: Any, info: Any) -> None:
        if not isinstance(info[1], FileNotFoundError):
            if onerror is None:
                raise info[1]
            onerror(function, name, info)

    shutil.rmtree(path, ignore_errors, None if ignore_errors else missing_is_fine)


def download_gcs_blob_with_backoff(blob: Any, n_retries: int = 32, max_backoff: int = 32) -> Any:
    """``blob.download_as_string()`` of google-cloud-storage; tried again while Google is too busy.

    Waits 1, 2, 4 … ``max_backoff`` seconds in between. Raises the last error after ``n_retries`` tries.
    """
    from google.api_core.exceptions import ServerError, TooManyRequests

    for attempt in range(n_retries):
        try:
            return blob.download_as_string()
        except (ServerError, TooManyRequests):
            if attempt == n_retries - 1:
                raise
            time.sleep(min(2**attempt, max_backoff))
    raise ValueError(f"n_retries must be at least 1, found {n_retries}")


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

"""DeepSpeed's configuration with the hyperparameters of a trial."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any


def overwrite_deepspeed_config(
    base_ds_config: str | dict[str, Any], source_ds_dict: dict[str, Any]
) -> dict[str, Any]:
    """``base_ds_config`` (a dict, or the path of a JSON file) with the values of ``source_ds_dict``.

    Sections are merged key by key, anything else is replaced; neither argument changes. Raises
    TypeError when the base is neither, OSError and ValueError for the file.
    """
    if isinstance(base_ds_config, str):
        base_ds_config = json.loads(Path(base_ds_config).read_text())
    if not isinstance(base_ds_config, dict):
        raise TypeError(
            "base_ds_config must be a dict, or the path of a JSON file with one; found "
            f"{type(base_ds_config).__name__}"
        )
    return _merged(base_ds_config, source_ds_dict)


def _merged(base: dict[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(base)
    for key, value in source.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = _merged(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result

"""The experiment configuration: reading, checking, merging and completing it.

The usual steps for a file::

    document = read_yaml("config.yaml")
    document = apply_overrides(document, ["searcher.max_trials=8"])
    stored = complete(document, template=..., defaults=...)   # plain JSON, every default filled in
    config = validate(stored)                                 # the same, typed

All mistakes are raised as one :class:`ConfigError`, which lists every problem with its path, its line, the
value found and the values allowed.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from determined.expconf.completion import check as check
    from determined.expconf.completion import check_defaults as check_defaults
    from determined.expconf.completion import check_template as check_template
    from determined.expconf.completion import complete as complete
    from determined.expconf.completion import complete_search as complete_search
    from determined.expconf.config import ExperimentConfig as ExperimentConfig
    from determined.expconf.document import Document as Document
    from determined.expconf.document import load_yaml as load_yaml
    from determined.expconf.document import read_text as read_text
    from determined.expconf.document import read_yaml as read_yaml
    from determined.expconf.launch import launch_command as launch_command
    from determined.expconf.launch import trial_class as trial_class
    from determined.expconf.masking import masked as masked
    from determined.expconf.masking import masked_for_others as masked_for_others
    from determined.expconf.masking import masked_task_for_others as masked_task_for_others
    from determined.expconf.masking import masked_to_share as masked_to_share
    from determined.expconf.masking import secret_values as secret_values
    from determined.expconf.merging import merge as merge
    from determined.expconf.overrides import apply_overrides as apply_overrides
    from determined.expconf.policies import check_policy as check_policy
    from determined.expconf.problems import ConfigError as ConfigError
    from determined.expconf.problems import Problem as Problem
    from determined.expconf.schema import json_schema as json_schema
    from determined.expconf.tasks import check_task as check_task
    from determined.expconf.tasks import complete_task as complete_task
    from determined.expconf.validation import validate as validate

# The module of each name, which is imported at the first use: the models take 0.15 s to build, and
# starting a training process needs only `launch_command`.
_HOMES = {
    "ConfigError": "problems",
    "Document": "document",
    "ExperimentConfig": "config",
    "Problem": "problems",
    "apply_overrides": "overrides",
    "check": "completion",
    "check_defaults": "completion",
    "check_policy": "policies",
    "check_task": "tasks",
    "check_template": "completion",
    "complete": "completion",
    "complete_search": "completion",
    "complete_task": "tasks",
    "json_schema": "schema",
    "launch_command": "launch",
    "load_yaml": "document",
    "masked": "masking",
    "masked_for_others": "masking",
    "masked_task_for_others": "masking",
    "masked_to_share": "masking",
    "merge": "merging",
    "trial_class": "launch",
    "read_text": "document",
    "read_yaml": "document",
    "secret_values": "masking",
    "validate": "validation",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

"""Planning a submission, and sending it: the same for the SDK, ``det e create`` and ``det flow run``.

A plan is complete before anything is sent, so that a dry run is a plan that is shown.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from determined.common import context
from determined.common.api.session import Session
from determined.experimental._experiment import Experiment

if TYPE_CHECKING:
    from determined.expconf import Document

# Packing, storing and scheduling take their time when the model directory is large.
_TIMEOUT_S = 300.0

# Stands in for the cluster's where a complete configuration is to be shown without a cluster.
_ANY_STORAGE = {"type": "directory", "container_path": "/"}


@dataclass(frozen=True)
class ConfigText:
    """A configuration as it is checked, and as it is sent."""

    document: Document
    text: str

    def override(self, overrides: Iterable[str]) -> ConfigText:
        """With ``a.b.c=value`` texts applied. Raises ConfigError."""
        from determined import expconf

        chosen = list(overrides)
        if not chosen:
            return self
        changed = expconf.apply_overrides(self.document, chosen)
        return ConfigText(changed, as_text(changed.data))

    def named(self, name: str) -> ConfigText:
        """With another name."""
        data = {**self.document.data, "name": name}
        return ConfigText(replace(self.document, data=data), as_text(data))


def as_text(data: dict[str, Any]) -> str:
    """A mapping as text that reads back as the same mapping.

    JSON, which is YAML too: a YAML writer would leave the string ``1e-3`` unquoted, a number when it
    is read.
    """
    return orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY).decode()


def read_config(config: str | Path | dict[str, Any]) -> ConfigText:
    """A YAML file, a mapping, or YAML text (a string of more than one line).

    Raises ConfigError when it is not readable.
    """
    from determined import expconf

    if isinstance(config, dict):
        text = as_text(config)
        # Errors about a mapping have no line.
        return ConfigText(expconf.Document(copy.deepcopy(config)), text)
    if isinstance(config, str) and "\n" in config:
        return ConfigText(expconf.load_yaml(config), config)
    document = expconf.read_yaml(config)
    return ConfigText(document, Path(config).read_text(encoding="utf-8-sig"))


@dataclass(frozen=True)
class Submitted:
    """The answer: the experiment, and what the service remarks about it."""

    experiment: Experiment
    warnings: list[str]


@dataclass(frozen=True)
class Submission:
    """Everything that is sent."""

    config: ConfigText
    items: list[context.ContextItem]
    project_id: int | None = None
    template: str | None = None
    parent_id: int | None = None
    activate: bool = True

    @property
    def size(self) -> int:
        """Bytes of the model definition."""
        return sum(len(item.content or b"") for item in self.items)

    def body(self) -> dict[str, Any]:
        """The request."""
        body = {
            "config": self.config.text,
            "modelDefinition": context.to_json(self.items),
            "projectId": self.project_id,
            "template": self.template,
            "parentId": self.parent_id,
            "activate": self.activate,
        }
        return {name: value for name, value in body.items() if value is not None}

    def completed(self) -> dict[str, Any]:
        """The configuration with its defaults, without what :meth:`left_open` names, and without
        secrets: to be shown."""
        from determined import expconf

        data = self.config.document.data
        defaults = {} if data.get("checkpoint_storage") else {"checkpoint_storage": _ANY_STORAGE}
        full = expconf.masked(expconf.complete(data, defaults=defaults))
        for path in self.left_open():
            section, _, field = path.rpartition(".")
            (full[section] if section else full).pop(field)
        return full

    def left_open(self) -> list[str]:
        """The fields that the cluster or the moment of submission decides."""
        data = self.config.document.data
        seed = (data.get("reproducibility") or {}).get("experiment_seed")
        given = {
            "name": data.get("name"),
            "reproducibility.experiment_seed": seed,
            "checkpoint_storage": data.get("checkpoint_storage"),
        }
        return [path for path, value in given.items() if value is None]

    def send(self, session: Session) -> Submitted:
        """Submits it. Raises BadRequestException when the service refuses."""
        # Not repeated: an answer lost after the experiment was made would make a second one.
        answer = session.post(
            "/api/v1/experiments", json=self.body(), timeout=_TIMEOUT_S, max_retries=0
        )
        made = Experiment._from_json(answer["experiment"], session, answer.get("config"))
        return Submitted(made, [_words(warning) for warning in answer.get("warnings") or []])


def plan(
    config: ConfigText,
    model_dir: str | Path | None,
    includes: Iterable[str | Path],
    *,
    project_id: int | None = None,
    template: str | None = None,
    parent_id: int | None = None,
    activate: bool = True,
) -> Submission:
    """Checks the configuration as far as that goes here, and packs the files.

    Raises ConfigError and ContextError.
    """
    from determined import expconf

    if template is None:
        expconf.check(config.document)
    else:
        # What the template brings is only known to the service.
        expconf.validate(config.document, complete=False)
    items = context.pack(model_dir, includes)
    return Submission(config, items, project_id, template, parent_id, activate)


def _words(warning: str) -> str:
    """``LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED`` in words."""
    return warning.removeprefix("LAUNCH_WARNING_").replace("_", " ").lower()

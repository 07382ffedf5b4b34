"""Planning and sending a submission, for the SDK, ``det e create`` and ``det flow run``.

A plan is complete before anything is sent. A dry run shows the plan and does not send it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from determined.common import context
from determined.common.api.session import Session
from determined.common.api.tasks import warnings_of as warnings_of
from determined.experimental._experiment import EXPERIMENTS, Experiment

if TYPE_CHECKING:
    from determined.expconf import Document

# Packing, storing and scheduling take a while if the model directory is large.
_TIMEOUT_S = 300.0

# A placeholder for the cluster's storage, to show a complete configuration without a cluster.
_ANY_STORAGE = {"type": "directory", "container_path": "/"}


@dataclass(frozen=True)
class ConfigText:
    """A configuration in two forms: the data to check, and the text to send."""

    document: Document
    text: str

    def override(self, overrides: Iterable[str]) -> ConfigText:
        """The configuration with the ``a.b.c=value`` texts applied. Raises ConfigError."""
        from determined import expconf

        chosen = list(overrides)
        if not chosen:
            return self
        changed = expconf.apply_overrides(self.document, chosen)
        return ConfigText(changed, as_text(changed.data))

    def changed(self, data: dict[str, Any]) -> ConfigText:
        """The configuration with other fields; errors still name the lines of the file."""
        return ConfigText(replace(self.document, data=data), as_text(data))


def as_text(data: dict[str, Any]) -> str:
    """A mapping as text that is read as the same mapping.

    The text is JSON, which is YAML too. A YAML writer would not quote the string ``1e-3``, which would
    then be read as a number.
    """
    return orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY).decode()


def read_config(config: str | Path | dict[str, Any]) -> ConfigText:
    """Reads a YAML file, a mapping, or YAML text (a string of more than one line).

    Raises ConfigError if it cannot be read.
    """
    from determined import expconf

    if isinstance(config, dict):
        text = as_text(config)
        # Errors about a mapping have no line.
        return ConfigText(expconf.Document(copy.deepcopy(config)), text)
    if isinstance(config, str) and "\n" in config:
        return ConfigText(expconf.load_yaml(config), config)
    text = expconf.read_text(config)
    return ConfigText(expconf.load_yaml(text, source=str(config)), text)


@dataclass(frozen=True)
class Submitted:
    """The service's answer: the experiment and the warnings."""

    experiment: Experiment
    warnings: list[str]


@dataclass(frozen=True)
class Submission:
    """All parts of a request that submits an experiment."""

    config: ConfigText
    items: list[context.ContextItem]
    project_id: int | None = None
    template: str | None = None
    parent_id: int | None = None
    activate: bool = True
    idempotency_key: str | None = None
    """Sent again with the same key, the submission is answered with the experiment that it made before."""
    cached: bool = False
    """Answered with the user's experiment of this configuration and code, if it runs or has completed."""

    @property
    def size(self) -> int:
        """The size of the model definition in bytes."""
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
            "idempotencyKey": self.idempotency_key,
            "cached": self.cached or None,
        }
        return {name: value for name, value in body.items() if value is not None}

    def completed(self) -> dict[str, Any]:
        """The configuration to show: with defaults, without the fields of :meth:`left_open` and
        without secrets."""
        from determined import expconf

        data = self.config.document.data
        defaults = {} if data.get("checkpoint_storage") else {"checkpoint_storage": _ANY_STORAGE}
        full = expconf.masked(expconf.complete(data, defaults=defaults))
        for path in self.left_open():
            section, _, field = path.rpartition(".")
            (full[section] if section else full).pop(field)
        return full

    def left_open(self) -> list[str]:
        """The fields that are set by the cluster, or at the time of the submission."""
        data = self.config.document.data
        seed = (data.get("reproducibility") or {}).get("experiment_seed")
        given = {
            "name": data.get("name"),
            "reproducibility.experiment_seed": seed,
            "checkpoint_storage": data.get("checkpoint_storage"),
        }
        return [path for path, value in given.items() if value is None]

    def validate(self, session: Session) -> dict[str, Any]:
        """Has the service check the request, which stores nothing; the configuration as it would be stored.
        Raises BadRequestException.
        """
        return dict(self._check(session)["config"])

    def explain(self, session: Session) -> list[dict[str, Any]]:
        """As :meth:`validate`: the ``path``, ``value`` and ``source`` of each value of that configuration."""
        return list(self._check(session, explain=True)["sources"])

    def _check(self, session: Session, **more: Any) -> Any:
        # Without the files: the check does not need them, and they may be large.
        body = {name: value for name, value in self.body().items() if name != "modelDefinition"}
        return session.post(EXPERIMENTS, json={**body, "validateOnly": True, **more})

    def send(self, session: Session) -> Submitted:
        """Submits the experiment. Raises BadRequestException if the service refuses it."""
        # Not repeated without a key: if the first answer got lost, a second request would create a second
        # experiment.
        is_safe = self.idempotency_key is not None or self.cached
        tries = {} if is_safe else {"max_retries": 0}
        answer = session.post(EXPERIMENTS, json=self.body(), timeout=_TIMEOUT_S, **tries)
        made = Experiment._from_json(answer["experiment"], session, answer.get("config"))
        return Submitted(made, warnings_of(answer))


def plan(
    config: str | Path | dict[str, Any],
    model_dir: str | Path | None,
    includes: Iterable[str | Path] = (),
    *,
    overrides: Iterable[str] = (),
    change: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    project_id: int | None = None,
    template: str | None = None,
    parent_id: int | None = None,
    activate: bool = True,
) -> Submission:
    """Reads the configuration, checks it as far as possible without the service, and packs the files.

    ``config`` is a YAML file, a mapping, or YAML text. ``overrides`` are ``a.b.c=value`` texts, ``change`` is
    what else is made of the configuration. Raises ConfigError and ContextError.
    """
    from determined import expconf

    given = read_config(config).override(overrides)
    if change is not None:
        given = given.changed(change(given.document.data))
    if template is None:
        expconf.check(given.document)
    else:
        # Only the service knows the fields of the template.
        expconf.validate(given.document, complete=False)
    items = context.pack(model_dir, includes)
    return Submission(given, items, project_id, template, parent_id, activate)

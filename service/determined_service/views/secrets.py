"""Decide which parts of a configuration a subject sees: the whole, or a copy without the secrets.

Every view that shows a configuration, a storage section or the program of a task asks here. The owner and
administrators see everything (and so do agents). A training process sees the configurations of its own
experiment and of experiments that its task submitted, and the storage of its owner's other experiments, whose
checkpoints it may read. Everybody else sees ``********``; :mod:`determined.expconf.masking` knows the fields.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from determined.expconf import masked_for_others, masked_task_for_others
from determined.expconf.secret_text import masked_text
from determined_service.access.principal import USER, Principal
from determined_service.base.settings import Settings

REMEMBERED_CHARACTERS = 8_000
"""Longer texts are written anew each time."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True, slots=True)
class Viewer:
    """The subject to whom something is shown, and the cluster's default storage."""

    subject: Principal
    default_storage: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, subject: Principal, settings: Settings) -> Viewer:
        return cls(subject, settings.checkpoint_storage or {})

    def config(
        self,
        config: dict[str, Any] | None,
        owner_id: int | None,
        experiment_id: int | None = None,
        submitted_by: str | None = None,
        *,
        of_checkpoint: bool = False,
    ) -> dict[str, Any] | None:
        """The configuration of an experiment of that owner, as the subject sees it.

        ``of_checkpoint``: it is shown with a checkpoint, whose files a training process of the same owner may
        read.
        """
        if config is None or self._sees_all(owner_id, experiment_id, submitted_by):
            return config
        known = self.default_storage
        if of_checkpoint and owner_id is not None and owner_id == self.subject.user_id:
            known = config.get("checkpoint_storage") or {}
        return masked_for_others(config, known)

    def original(
        self,
        text: str,
        config: dict[str, Any],
        owner_id: int,
        experiment_id: int | None = None,
        submitted_by: str | None = None,
    ) -> str:
        """The text from which ``config`` was made. Viewers who may not see its secrets get a rewritten text
        without comments."""
        if not text or self._sees_all(owner_id, experiment_id, submitted_by):
            return text
        known = self.default_storage
        if masked_for_others(config, known) == config and masked_text(text) == text:
            return text
        make = _rewritten_often if len(text) <= REMEMBERED_CHARACTERS else _rewritten
        return make(text, json.dumps(known, sort_keys=True))

    def storage(
        self,
        storage: dict[str, Any] | None,
        owner_id: int | None,
        experiment_id: int | None = None,
        submitted_by: str | None = None,
    ) -> dict[str, Any] | None:
        """A checkpoint's own storage section."""
        if storage is None:
            return None
        whole = {"checkpoint_storage": storage}
        found = self.config(whole, owner_id, experiment_id, submitted_by, of_checkpoint=True)
        return None if found is None else found["checkpoint_storage"]

    def task_config(
        self,
        config: Mapping[str, Any] | None,
        owner_id: int,
        task_id: str,
        submitted_by: str | None = None,
    ) -> dict[str, Any] | None:
        """The configuration of a launched task; other users do not see its program."""
        if config is None:
            return None
        if self.subject.task == task_id or self._sees_all(owner_id, None, submitted_by):
            return dict(config)
        return masked_task_for_others(dict(config))

    def config_of_trial(
        self, config: Mapping[str, Any] | None, owner_id: int, task_id: str
    ) -> dict[str, Any] | None:
        """The experiment's configuration, where its trial's task is shown."""
        if config is None:
            return None
        return dict(config) if self.subject.task == task_id else self.config(dict(config), owner_id)

    def owns(self, owner_id: int) -> bool:
        """True for the owner, logged in, or an administrator; False for every task's process."""
        return self.subject.admin or (
            owner_id == self.subject.user_id and self.subject.allocation is None
        )

    def is_owner(self, owner_id: int) -> bool:
        """True for the owner, logged in: neither another administrator nor a process of a task."""
        return owner_id == self.subject.user_id and self.subject.kind == USER

    def _sees_all(
        self, owner_id: int | None, experiment_id: int | None, submitted_by: str | None
    ) -> bool:
        if self.subject.admin:
            return True
        if owner_id is None or owner_id != self.subject.user_id:
            return False
        own = self.subject.allocation
        if own is None:
            return True
        if experiment_id is not None and experiment_id == own.experiment_id:
            return True
        return submitted_by is not None and submitted_by == own.task_id


def _rewritten(text: str, known: str) -> str:
    """The YAML text with its secrets masked; blank if it is none. ``known``: a storage section as JSON."""
    try:
        document = yaml.load(text, _Loader)
        shown = masked_for_others(document, json.loads(known))
        return str(yaml.dump(shown, Dumper=_Dumper, sort_keys=False))
    except (yaml.YAMLError, AttributeError, TypeError, ValueError, RecursionError):
        return ""


# Lists are asked for again and again, and writing YAML takes a millisecond.
_rewritten_often = functools.lru_cache(maxsize=1024)(_rewritten)

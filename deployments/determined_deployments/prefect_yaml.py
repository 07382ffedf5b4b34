"""Reads ``prefect.yaml``: the deployments it declares, checked by Prefect's own models.

A mistake names the file and the entry. One wrong entry does not keep the others from being read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from determined_deployments import plain_entries

if TYPE_CHECKING:
    from pydantic import ValidationError

ACTIONS = ("build", "push", "pull")


class PrefectYamlError(ValueError):
    """Mistakes in a ``prefect.yaml``, one a line; each names the file and the entry."""

    def __init__(self, mistakes: Iterable[str]) -> None:
        self.mistakes = list(mistakes)
        super().__init__("\n".join(self.mistakes))


@dataclass(frozen=True)
class DeploymentEntry:
    """One deployment of the file.

    ``config`` and ``actions`` (the file's own ``build``, ``push`` and ``pull``) have the form that
    ``prefect deploy`` works with: only the keys that the file gives.
    """

    path: Path
    number: int
    config: dict[str, Any]
    actions: dict[str, Any]
    fingerprint: str | None = None
    """Set for a plain entry (:mod:`plain_entries`)."""

    @property
    def where(self) -> str:
        """The entry in an error message."""
        return where(self.path, self.number, self.config)


def where(path: Path, number: int, config: object) -> str:
    name = config.get("name") if isinstance(config, dict) else None
    return f"{path}: deployment {name!r}" if name else f"{path}: deployment number {number}"


def read(path: Path) -> tuple[list[DeploymentEntry], list[str]]:
    """The valid entries of the file, and the problems of the others.

    Raises PrefectYamlError when the file as a whole cannot be used.
    """
    document = load(path)
    declared = declared_in(path, document)
    prints = plain_entries.fingerprints(path, document)
    if (
        prints and None not in prints
    ):  # Prefect's own models take long to import, and would find nothing
        entries = [
            DeploymentEntry(path, number, dict(raw), NO_ACTIONS, known)
            for number, (raw, known) in enumerate(zip(declared, prints, strict=True), 1)
        ]
        return entries, []
    return _read_with_models(path, document, declared, prints)


NO_ACTIONS: dict[str, Any] = {"build": [], "push": [], "pull": None}
"""An omitted `pull` and one of null have Prefect make a step; an empty list has it make none."""


def declared_in(path: Path, document: Mapping[str, Any]) -> list[Any]:
    """The file's entries as they stand there. Raises PrefectYamlError."""
    declared = document.get("deployments") or []
    if not isinstance(declared, list):
        raise PrefectYamlError([f"{path}: deployments: must be a list"])
    return declared


def _read_with_models(
    path: Path,
    document: Mapping[str, Any],
    declared: Sequence[Any],
    prints: Sequence[str | None],
) -> tuple[list[DeploymentEntry], list[str]]:
    from prefect.cli.deploy._models import DeploymentConfig, PrefectYamlModel
    from prefect.settings import get_current_settings
    from pydantic import ValidationError

    try:
        model = PrefectYamlModel.model_validate({**document, "deployments": []})
    except ValidationError as error:
        raise PrefectYamlError(f"{path}: {line}" for line in lines_of(error)) from None
    actions = {"build": model.build or [], "push": model.push or [], "pull": model.pull}
    default_pool = get_current_settings().deployments.default_work_pool_name
    entries: list[DeploymentEntry] = []
    mistakes: list[str] = []
    for number, (raw, known) in enumerate(zip(declared, prints, strict=True), 1):
        place = where(path, number, raw)
        try:
            config = DeploymentConfig.model_validate(raw).model_dump(
                exclude_unset=True, mode="json"
            )
        except ValidationError as error:
            mistakes += [f"{place}: {line}" for line in lines_of(error)]
            continue
        pool = config["work_pool"] = config.get("work_pool") or {}
        pool["name"] = pool.get("name") or default_pool
        missing = [key for key in ("name", "entrypoint") if not config.get(key)]
        missing += [] if pool["name"] else ["work_pool.name"]
        if missing:
            mistakes += [f"{place}: {key} is missing" for key in missing]
            continue
        entries.append(DeploymentEntry(path, number, config, actions, known))
    return entries, mistakes


def load(path: Path) -> dict[str, Any]:
    """The file as a mapping. Raises PrefectYamlError."""
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        raise PrefectYamlError([f"{path}: {error.strerror or error}"]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PrefectYamlError([f"{path}: not valid YAML: {error}"]) from None
    if not isinstance(document, dict):
        raise PrefectYamlError([f"{path}: must be a mapping with the key deployments"])
    return document


def lines_of(error: ValidationError) -> list[str]:
    """One line for each mistake. Where Prefect accepts several forms, the mistakes are those of the first."""
    lines: list[str] = []
    forms: dict[str, str] = {}
    for item in error.errors():
        keys: list[str] = []
        form = ""
        for part in map(str, item["loc"]):
            if not _is_form(part):
                keys.append(part)
            elif not form:
                form = part
                if forms.setdefault(".".join(keys), form) != form:
                    break
        else:
            place = ".".join(keys) or "the entry"
            lines.append(f"{place}: {item['msg'].removeprefix('Value error, ')}")
    return lines


def _is_form(part: str) -> bool:
    """True if this part of an error's place names a model, a type or a function, not a key of the file."""
    return part in ("int", "str") or "[" in part or part != part.lower()

"""Templates of configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from determined.common.api import Session, pages

TEMPLATES = "/api/v1/templates"


@dataclass(frozen=True)
class Source:
    """A value of a complete configuration, and the layer that it comes from, in words."""

    path: str
    value: Any
    source: str

    @property
    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {"path": self.path, "value": self.value, "source": self.source}


class Template:
    """Values that configurations take where they do not set their own.

    Attributes:
        name: the template's name.
        config: fields of configurations.
        document: the service's JSON, including fields that are not attributes.
        remarks: the service's sentences on what was last written.
    """

    def __init__(self, data: dict[str, Any], session: Session) -> None:
        self._session = session
        self.remarks: list[str] = []
        self._fill(data)

    def _fill(self, data: dict[str, Any]) -> None:
        self.document = data
        self.name: str = data["name"]
        self.config: dict[str, Any] = data["config"]

    @classmethod
    def _from_json(cls, data: dict[str, Any], session: Session) -> Template:
        return cls(data, session)

    @classmethod
    def _written(cls, answer: dict[str, Any], session: Session) -> Template:
        made = cls(answer["template"], session)
        made.remarks = answer.get("remarks") or []
        return made

    def set_config(self, config: Mapping[str, Any]) -> None:
        """Replaces the configuration. Raises BadRequestException, ForbiddenException."""
        answer = self._session.patch(_path(self.name), json=dict(config))
        self._fill(answer["template"])
        self.remarks = answer.get("remarks") or []

    def delete(self) -> None:
        """Deletes it; experiments and tasks that were made with it keep its values."""
        self._session.delete(_path(self.name))

    def explain(self, config: str | Path | dict[str, Any]) -> list[Source]:
        """Each value that a new experiment of ``config`` with this template has, and its source.

        Nothing is submitted. Raises ConfigError, BadRequestException.
        """
        from determined.experimental import _submission

        planned = _submission.plan(config, None, (), template=self.name)
        return [Source(**one) for one in planned.explain(self._session)]


def _path(name: str) -> str:
    return f"{TEMPLATES}/{quote(name, safe='')}"


class TemplateVerbs:
    """The methods of :class:`~determined.experimental.Determined` for templates."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def list_templates(self) -> list[Template]:
        """Every template, by name."""
        found = pages.read(self._session, TEMPLATES, "templates")
        return [Template._from_json(one, self._session) for one in found]

    def get_template(self, name: str) -> Template:
        """Raises NotFoundException."""
        return Template._from_json(self._session.get(_path(name))["template"], self._session)

    def create_template(
        self, name: str, config: Mapping[str, Any], *, workspace_id: int | None = None
    ) -> Template:
        """Creates a template in that workspace; None: in Uncategorized.

        Raises ConflictException if the name is taken, and BadRequestException.
        """
        body = {"config": dict(config), "workspaceId": workspace_id}
        answer = self._session.post(_path(name), json=body)
        return Template._written(answer, self._session)

    def set_template(self, name: str, config: Mapping[str, Any]) -> Template:
        """Creates the template, or replaces its configuration. Raises BadRequestException,
        ForbiddenException.
        """
        answer = self._session.put(_path(name), json={"config": dict(config)})
        return Template._written(answer, self._session)

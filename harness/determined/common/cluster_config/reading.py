"""Reading and checking a cluster configuration."""

import pathlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from determined.common.cluster_config import rules
from determined.common.cluster_config.config import ClusterConfig
from determined.common.cluster_config.marks import NotUsed, OnlyContainers
from determined.common.cluster_config.pool import PoolConfig
from determined.common.wire import limits
from determined.expconf import fields, paths, translate
from determined.expconf.base import Section
from determined.expconf.document import Document, load_yaml, read_yaml
from determined.expconf.paths import Path
from determined.expconf.problems import ConfigError
from determined.expconf.validation import located

FORMAT = fields.FileFormat(
    ClusterConfig,
    ("resource_manager", "task_container_defaults", "security", "quotas"),
    "docs/operate/cluster-config.md",
)


@dataclass(frozen=True)
class Remark:
    """A field that is accepted and not used, or not by every agent. ``str()`` is a line for the person who
    wrote the file."""

    source: str
    line: int | None
    path: str
    instead: str
    what: str = "not used"

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{where}: {self.path}: {self.what}: {self.instead}"


def read_file(path: str | pathlib.Path) -> tuple[ClusterConfig, list[Remark]]:
    """The configuration in a YAML file, and what of it is not used.

    Raises:
        ConfigError: the file cannot be read or is not valid; the error holds all problems.
    """
    return check(read_yaml(path))


def read_text(text: str, source: str = "<config>") -> tuple[ClusterConfig, list[Remark]]:
    """As :func:`read_file`, for YAML that was read already."""
    return check(load_yaml(text, source))


def check(document: Document) -> tuple[ClusterConfig, list[Remark]]:
    """The configuration in a document, and what of it is not used. Raises ConfigError."""
    config, found = _examine(document.data)
    repaired = translate.repaired(document.data, found)
    if repaired is not None:
        said = {finding.path for finding in found}
        found += [finding for finding in _examine(repaired)[1] if finding.path not in said]
    if found or config is None:
        raise ConfigError(located(found, document))
    remarks = [
        Remark(
            document.source,
            document.line(path),
            paths.render(path),
            mark.instead,
            "not used" if isinstance(mark, NotUsed) else "of agents with containers only",
        )
        for path, mark in _unused(document.data, [ClusterConfig], ())
    ]
    return _todays_form(config), sorted(remarks, key=lambda remark: remark.line or 0)


def stored(config: Section) -> dict[str, Any]:
    """What was given, as plain JSON, for a database: :func:`restored` makes the same of it."""
    return config.model_dump(mode="json", exclude_unset=True)


def restored(data: Mapping[str, Any]) -> ClusterConfig:
    """The configuration of which :func:`stored` made ``data``. Raises pydantic.ValidationError."""
    return ClusterConfig.model_validate(dict(data))


def _examine(data: dict[str, Any]) -> tuple[ClusterConfig | None, list[translate.Finding]]:
    config, errors = None, []
    try:
        config = ClusterConfig.model_validate(data)
    except ValidationError as error:
        errors = error.errors(include_url=False)[: limits.CONFIG_PROBLEMS]
    found = [*translate.findings(errors, data, FORMAT), *rules.findings(data)]
    return config, list(dict.fromkeys(found))


def _todays_form(given: ClusterConfig) -> ClusterConfig:
    """The same without earlier names and without fields that are not used."""
    data = stored(given)
    if given.scheduler is not None:
        data["resource_manager"] = {"scheduler": stored(given.scheduler)}
    manager = given.resource_manager
    for older, newer in rules.RENAMED_DEFAULTS.items():
        value = getattr(manager, older)
        if value is not None:
            data["resource_manager"][newer] = value
    _rename_limits(given.resource_pools, data.get("resource_pools", []))
    more = data.get("additional_resource_managers", [])
    for one, plain in zip(given.additional_resource_managers, more, strict=True):
        _rename_limits(one.resource_pools, plain["resource_pools"])
    return restored(data)


def _rename_limits(pools: list[PoolConfig], stored_pools: list[dict[str, Any]]) -> None:
    for pool, plain in zip(pools, stored_pools, strict=False):
        value = getattr(pool, rules.RENAMED_LIMIT[0])
        if value is not None:
            plain[rules.RENAMED_LIMIT[1]] = value


def _unused(
    value: Any, sections: list[type[Section]], path: Path
) -> Iterator[tuple[Path, NotUsed | OnlyContainers]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unused(item, sections, (*path, index))
    if not isinstance(value, dict) or len(sections) != 1:
        return
    for name, item in value.items():
        field = sections[0].model_fields.get(name)
        if field is None or item is None:
            continue
        marks = [mark for mark in field.metadata if isinstance(mark, NotUsed | OnlyContainers)]
        yield from (((*path, name), mark) for mark in marks)
        yield from _unused(item, list(fields.sections_in(field.annotation)), (*path, name))

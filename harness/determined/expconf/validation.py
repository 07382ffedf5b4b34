"""Checking a configuration, all mistakes at once."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, overload

from pydantic import ValidationError

from determined.expconf import paths, rules, translate
from determined.expconf.config import ExperimentConfig
from determined.expconf.document import Document
from determined.expconf.plain import plain_copy
from determined.expconf.problems import ConfigError, Problem
from determined.expconf.translate import MISSING, Finding

#: Items of these are replaced or added whole by a merge, so that each has to be complete at once.
_WHOLE = ("hyperparameters",)


@overload
def validate(
    data: Mapping[str, Any] | Document, *, complete: Literal[True] = True
) -> ExperimentConfig: ...
@overload
def validate(data: Mapping[str, Any] | Document, *, complete: Literal[False]) -> None: ...
def validate(
    data: Mapping[str, Any] | Document, *, complete: bool = True
) -> ExperimentConfig | None:
    """Check a configuration.

    Args:
        data: as loaded from YAML (errors then have lines) or built in Python, in any form that is read.
        complete: whether everything must be there, as it is in what the service stores. Otherwise what
            is there must be well-formed, and required fields may still come from a template or from
            the cluster.

    Returns:
        The configuration; None when it need not be complete.

    Raises:
        ConfigError: it is not valid; all problems are in it.
    """
    document = as_document(data)
    config, found = examine(document.data, complete=complete)
    if found:
        raise ConfigError(located(found, document))
    return config if complete else None


def as_document(data: Mapping[str, Any] | Document, source: str | None = None) -> Document:
    """A document of plain data; one without lines when there is no text.

    Raises:
        ConfigError: the data is not plain.
    """
    if isinstance(data, Document):
        # Text gives plain data; a document that was put together in Python may hold anything.
        return data if data.marks else replace(data, data=plain_copy(data.data, data.source))
    return Document(plain_copy(data, source), source or "")


def examine(
    data: dict[str, Any], *, complete: bool
) -> tuple[ExperimentConfig | None, list[Finding]]:
    """Find everything wrong with plain data; the model when its fields are right."""
    config, found = _examine_once(data, complete=complete)
    repaired = translate.repaired(data, found)
    if repaired is not None:
        # A misspelled name of a searcher or storage must not hide the mistakes in its fields.
        said = {finding.path for finding in found}
        behind = _examine_once(repaired, complete=complete)[1]
        found += [finding for finding in behind if finding.path not in said]
    return config, found


def _examine_once(
    data: dict[str, Any], *, complete: bool
) -> tuple[ExperimentConfig | None, list[Finding]]:
    config, errors = None, []
    try:
        config = ExperimentConfig.model_validate(data)
    except ValidationError as error:
        errors = error.errors(include_url=False)
    found = [*translate.findings(errors, data), *rules.consistency(data)]
    if complete:
        found += rules.completeness(data)
    else:
        found = [finding for finding in found if not _may_come_later(finding)]
    return config, list(dict.fromkeys(found))


def located(found: list[Finding], document: Document) -> list[Problem]:
    """Give findings their lines, in the order of the file.

    A required field that is there, but misspelled, is one mistake and not two.
    """
    misspelled = {_meant(finding) for finding in found if finding.suggestion is not None}
    problems = [
        Problem(
            path=paths.render(finding.path),
            line=document.nearest_line(finding.path),
            found=finding.found,
            allowed=finding.allowed,
            suggestion=finding.suggestion,
            message=finding.message,
            source=document.source or None,
        )
        for finding in found
        if finding.kind != MISSING or paths.render(finding.path) not in misspelled
    ]
    return sorted(problems, key=lambda problem: problem.line or 0)


def _may_come_later(finding: Finding) -> bool:
    """A field that a merge can still bring; list items and hyperparameters are merged whole."""
    if finding.kind != MISSING:
        return False
    if len(finding.path) > 1 and finding.path[0] in _WHOLE:
        return False
    return not any(isinstance(step, int) for step in finding.path)


def _meant(finding: Finding) -> str:
    """The path that a misspelled field was meant to have."""
    suggestion = str(finding.suggestion)
    if "." in suggestion or finding.kind != translate.UNKNOWN:
        return suggestion
    return paths.render((*finding.path[:-1], suggestion))

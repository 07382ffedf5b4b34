"""Checking a configuration, and reporting all mistakes at once."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, overload

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from determined.common.wire import limits
from determined.expconf import overrides, paths, rules, translate
from determined.expconf.config import ExperimentConfig
from determined.expconf.document import Document
from determined.expconf.plain import plain_copy
from determined.expconf.problems import ConfigError, Problem
from determined.expconf.translate import MISSING, Finding

#: A merge replaces or adds items of these as a whole, so each item must be complete in its file.
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
        data: the configuration in any accepted form, from YAML (errors then have lines) or from Python.
        complete: whether all required fields must be present, as in a stored configuration. Otherwise
            the fields present must be valid, and a template or the cluster may add the others.

    Returns:
        The configuration; None if ``complete`` is false.

    Raises:
        ConfigError: the configuration is not valid; the error holds all problems.
    """
    document = as_document(data)
    config, found = examine(document.data, complete=complete)
    if found:
        raise ConfigError(located(found, document))
    return config if complete else None


def as_document(data: Mapping[str, Any] | Document, source: str | None = None) -> Document:
    """A document of plain data; it has no lines if the data does not come from text.

    Raises:
        ConfigError: the data is not plain.
    """
    if isinstance(data, Document):
        # A document from text holds plain data; one built in Python may hold anything.
        return data if data.marks else replace(data, data=plain_copy(data.data, data.source))
    return Document(plain_copy(data, source), source or "")


def examine(
    data: dict[str, Any], *, complete: bool
) -> tuple[ExperimentConfig | None, list[Finding]]:
    """Find all mistakes in plain data; also returns the model if the fields are valid."""
    config, found = _examine_once(data, complete=complete)
    repaired = translate.repaired(data, found) if found else None
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
        # Nobody reads more; describing each takes a millisecond.
        errors = error.errors(include_url=False)[: limits.CONFIG_PROBLEMS]
    if not complete:
        errors = [error for error in errors if not _is_surely_later(error)]
    found = translate.findings(errors, data) if errors else []
    found += rules.consistency(data)
    if complete:
        found += rules.completeness(data)
    else:
        found = [finding for finding in found if not _may_come_later(finding)]
    return config, list(dict.fromkeys(found))


def located(found: list[Finding], document: Document) -> list[Problem]:
    """Add lines to the findings, and sort them in the order of the file.

    A required field that is misspelled counts as one mistake, not two.
    """
    misspelled = {_meant(finding) for finding in found if finding.suggestion is not None}
    problems = []
    for finding in found:
        if finding.kind == MISSING and paths.render(finding.path) in misspelled:
            continue
        is_overridden = document.is_overridden(finding.path)
        problems.append(
            Problem(
                path=paths.render(finding.path),
                line=None if is_overridden else document.nearest_line(finding.path),
                found=finding.found,
                allowed=finding.allowed,
                suggestion=finding.suggestion,
                message=finding.message,
                source=overrides.SOURCE if is_overridden else document.source or None,
            )
        )
    return sorted(problems, key=lambda problem: problem.line or 0)


def _is_surely_later(error: ErrorDetails) -> bool:
    """True if :func:`_may_come_later` is true for the error's finding in any form of file. A valid file that
    leaves fields to the cluster has such errors, and describing them takes longer than finding them."""
    place = error["loc"]
    within = len(place) > 1 and place[0] in _WHOLE
    return error["type"] == MISSING and not within and not any(isinstance(s, int) for s in place)


def _may_come_later(finding: Finding) -> bool:
    """True if a merge can still add the field; list items and hyperparameters are merged whole."""
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

"""Configuration policies: what holds for all configurations of a workspace or of the cluster.

A policy has an ``invariant_config``, fields that win over everybody's, and ``constraints``, limits on what a
configuration may ask for.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, ValidationError

from determined.common.wire import limits
from determined.expconf import rules, translate
from determined.expconf.base import WHOLE, Count, Section
from determined.expconf.completion import PLACES
from determined.expconf.document import Document
from determined.expconf.fields import FileFormat
from determined.expconf.problems import ConfigError
from determined.expconf.tasks import examine_any_task
from determined.expconf.translate import Finding
from determined.expconf.validation import as_document, examine, located


class LimitedResources(Section):
    """The ``constraints.resources`` section of a policy."""

    max_slots: Count | None = Field(
        None, description="slots that one task, or all trials of one experiment, may use"
    )


class Constraints(Section):
    """The ``constraints`` section of a policy."""

    resources: LimitedResources = Field(
        default_factory=LimitedResources, description="limits on resources"
    )
    priority_limit: Annotated[int, Field(ge=1, le=99), WHOLE] | None = Field(
        None, description="no priority may be more important"
    )


class PolicyFile(Section):
    """A policy as it is written."""

    invariant_config: dict[str, Any] = Field({}, description="fields that win over everybody's")
    constraints: Constraints = Field(default_factory=Constraints, description="limits")


_FORMAT = FileFormat(PolicyFile, ("constraints",), "docs/operate/policies.md")


def check_policy(config: Mapping[str, Any] | Document, *, of_tasks: bool) -> dict[str, Any]:
    """Check a policy for experiments, or for commands, notebooks and other tasks; its data.

    Raises:
        ConfigError: a field is unknown, has a wrong value, or holds a secret that was masked; the policy
            contradicts itself, says nothing, or names a place. The error holds all problems.
    """
    document = as_document(config, "policy")
    data, found = document.data, list[Finding]()
    try:
        PolicyFile.model_validate(data)
    except ValidationError as error:
        errors = error.errors(include_url=False)[: limits.CONFIG_PROBLEMS]
        found += translate.findings(errors, data, _FORMAT)
    invariant = data.get("invariant_config")
    if isinstance(invariant, dict):
        inner = examine_any_task(invariant) if of_tasks else examine(invariant, complete=False)[1]
        inner += rules.masked(invariant)
        inner += [
            Finding("value", (name,), "a policy cannot say where things go: leave it out")
            for name in PLACES
            if invariant.get(name) is not None
        ]
        found += [replace(one, path=("invariant_config", *one.path)) for one in inner]
    if not found and not (invariant or data.get("constraints")):
        message = (
            "the policy says nothing: give invariant_config or constraints, or delete the policy"
        )
        found.append(Finding("value", (), message))
    if not found:
        found += _contradictions(data)
    if found:
        raise ConfigError(located(list(dict.fromkeys(found)), document))
    return data


def _contradictions(data: Mapping[str, Any]) -> list[Finding]:
    """No configuration could hold to these."""
    given = (data.get("invariant_config") or {}).get("resources") or {}
    most = ((data.get("constraints") or {}).get("resources") or {}).get("max_slots")
    found = []
    for name in ("slots_per_trial", "slots", "max_slots"):
        value = given.get(name)
        if most is not None and value is not None and value > most:
            message = (
                f"must be at most {most}, which constraints.resources.max_slots says, found {value}"
            )
            path = ("invariant_config", "resources", name)
            found.append(Finding("value", path, message, str(value), f"at most {most}"))
    return found

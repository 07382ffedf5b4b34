"""Completing a configuration: merged with template and defaults, all fields filled in, checked."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from determined.expconf import legacy, merging, rules
from determined.expconf.document import Document
from determined.expconf.logs import BUILT_IN
from determined.expconf.names import experiment_name
from determined.expconf.problems import ConfigError, Problem
from determined.expconf.translate import Finding
from determined.expconf.validation import as_document, examine, located

PLACES = ("workspace", "project")
"""The fields that say where an experiment or a task goes."""

#: A placeholder for the cluster's default storage, for checks without a cluster.
_SOME_STORAGE = {"checkpoint_storage": {"type": "directory", "container_path": "/"}}


def complete(
    config: Mapping[str, Any] | Document,
    *,
    template: Mapping[str, Any] | Document | None = None,
    defaults: Mapping[str, Any] | Document | None = None,
    above: Mapping[str, Any] | None = None,
    seed: int | None = None,
    name_factory: Callable[[], str] | None = None,
    unmanaged: bool = False,
    only_preview: bool = False,
) -> dict[str, Any]:
    """Make the complete configuration of a new experiment.

    Args:
        config: the user's configuration.
        template: values for what ``config`` does not set.
        defaults: the cluster's values for what neither sets, such as ``checkpoint_storage``.
        above: values that win over ``config``, in today's form.
        seed: experiment seed if the configuration has none; default: the time in seconds.
        name_factory: makes the name if the configuration has none; default: three random words.
        unmanaged: whether the experiment runs outside the platform and so needs no entrypoint.
        only_preview: whether secrets may be masked, because the result is not run.

    Returns:
        Plain JSON data with every field of the format in it. Completing it again changes nothing.

    Raises:
        ConfigError: one of the three is malformed, or the result is incomplete or contradictory. The
            error holds all problems.
    """
    document = as_document(config)
    under = as_document(template or {}, "template")
    lowest = as_document(defaults or {}, "cluster defaults")
    own = examine(document.data, complete=False)[1]
    if not only_preview:
        own += rules.masked(document.data)
    problems: list[Problem] = []
    for layer in (under, lowest):
        wrong = examine(layer.data, complete=False)[1] if layer.data else []
        problems += located(wrong, layer) if wrong else []

    layers = [legacy.shim(layer.data) for layer in (document, under, lowest)]
    merged = merging.overlaid(*([dict(above)] if above else []), *layers)
    _fill(merged, seed, name_factory or experiment_name)
    model, found = examine(merged, complete=True)
    found += rules.novelty(merged, unmanaged=unmanaged)
    if own or problems:
        # A malformed value was already reported at its place in its own file.
        said = {(finding.path, finding.kind) for finding in examine(merged, complete=False)[1]}
        found = [finding for finding in found if (finding.path, finding.kind) not in said]
    if own or found or problems or model is None:
        raise ConfigError(located([*own, *found], document) + problems)
    return model.model_dump(mode="json")


def complete_search(config: Mapping[str, Any] | Document) -> dict[str, Any]:
    """:func:`complete` for a preview of the search: storage and entrypoint may be missing, and the
    default of the seed is 0. Raises ConfigError."""
    return complete(config, defaults=_SOME_STORAGE, seed=0, unmanaged=True, only_preview=True)


def check_template(
    config: Mapping[str, Any] | Document, source: str = "template"
) -> dict[str, Any]:
    """Check values that configurations of experiments and tasks are to take from a template; its data.

    What is missing may come from them. Fields that only tasks have are checked where they are used.

    Raises:
        ConfigError: a field is unknown, has a wrong value, or holds a secret that was masked.
    """
    document = as_document(config, source)
    of_experiments = without_fields_of_tasks(document.data)
    found = [*examine(of_experiments, complete=False)[1], *rules.masked(document.data)]
    if found:
        raise ConfigError(located(found, document))
    return document.data


def check_defaults(
    config: Mapping[str, Any] | Document, source: str = "defaults"
) -> dict[str, Any]:
    """As :func:`check_template`, for the defaults of a user, which cannot name a place either."""
    document = as_document(config, source)
    problems: list[Problem] = []
    try:
        check_template(document)
    except ConfigError as error:
        problems += error.problems
    message = "defaults cannot say where things go: name it in each configuration, or with -w"
    placed = [
        Finding("value", (name,), message) for name in PLACES if document.data.get(name) is not None
    ]
    problems += located(placed, document)
    if problems:
        raise ConfigError(problems)
    return document.data


def without_fields_of_tasks(template: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a template that experiments take: all but fields that only tasks have."""
    from determined.expconf.config import ExperimentConfig
    from determined.expconf.tasks import task_fields

    only_tasks = task_fields() - ExperimentConfig.model_fields.keys()
    return {key: value for key, value in template.items() if key not in only_tasks}


def check(
    config: Mapping[str, Any] | Document, *, template: Mapping[str, Any] | Document | None = None
) -> dict[str, Any]:
    """Check a user's configuration as far as possible without a cluster; it, completed.

    The check assumes that the cluster has a default checkpoint storage.

    Raises:
        ConfigError: as :func:`complete`.
    """
    return complete(config, template=template, defaults=_SOME_STORAGE)


def _fill(merged: dict[str, Any], seed: int | None, name_factory: Callable[[], str]) -> None:
    """Fill in the defaults that are not constants. The models refuse fields of a wrong type later."""
    if merged.get("name") is None:
        merged["name"] = name_factory()
    merged.setdefault("hyperparameters", {})
    reproducibility = merged.setdefault("reproducibility", {})
    if isinstance(reproducibility, dict) and reproducibility.get("experiment_seed") is None:
        reproducibility["experiment_seed"] = int(time.time()) if seed is None else seed
    policies = merged.setdefault("log_policies", [])
    if isinstance(policies, list):
        named = [policy.get("name") for policy in policies if isinstance(policy, dict)]
        policies.extend(dict(policy) for policy in BUILT_IN if policy["name"] not in named)

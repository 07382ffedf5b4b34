"""The layers of which a submitted configuration is completed, for people who ask where a value comes from."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from determined import expconf
from determined.expconf import legacy
from determined.expconf.sources import WRITTEN, sources
from determined_service.base.policy import EXPERIMENT
from determined_service.base.settings import Settings
from determined_service.lifecycle.places import FIRST_PLACE, Place
from determined_service.submission.completing import defaults_beneath
from determined_service.submission.templates import StoredTemplate


def explained(
    config: dict[str, Any],
    text: str,
    settings: Settings,
    template: StoredTemplate | None,
    place: Place,
) -> list[dict[str, Any]]:
    """``path``, ``value`` and ``source`` of each value of ``config``, which was completed from ``text``."""
    layers: list[tuple[str, Any]] = [
        (policy.whose, legacy.shim(policy.invariant))
        for policy in settings.policies.of(EXPERIMENT, place.workspace_id, place.workspace)
    ]
    written = expconf.load_yaml(text)
    given = written.data
    layers.append((WRITTEN, legacy.shim(given)))
    if template is not None:
        under = template.of_experiments.data
        layers.append((f"template {template.name}", legacy.shim(under)))
        given = expconf.merge(given, under, None)
    cluster = defaults_beneath(given, settings, FIRST_PLACE)
    beneath = defaults_beneath(given, settings, place)
    own = {name: value for name, value in beneath.items() if value != cluster.get(name)}
    if own:
        layers.append((f"workspace {place.workspace}", legacy.shim(own)))
    layers.append(("the cluster configuration", legacy.shim(cluster)))
    return [asdict(one) for one in sources(config, layers)]

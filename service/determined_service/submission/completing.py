"""The complete configuration of a submitted text: :func:`complete_config`.

The same text comes again and again, from sweeps, CI and scripts that run `det` in a loop. The completed
configurations of the last short texts are remembered as JSON. Names and seeds that a text leaves open are
made anew each time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from determined import expconf
from determined.common.cluster_config import ClusterConfig
from determined.expconf.names import experiment_name
from determined_registry import permitted
from determined_service.base import policies
from determined_service.base.errors import BadRequest
from determined_service.base.policy import EXPERIMENT, Held
from determined_service.base.recent import Recent
from determined_service.base.settings import Settings
from determined_service.ingest import log_policies
from determined_service.lifecycle.places import FIRST_PLACE, Place
from determined_service.scheduling.capacity import pool_of
from determined_service.submission.size import check_size
from determined_service.submission.templates import StoredTemplate

REMEMBERED_TEXTS = 64
REMEMBERED_CHARACTERS = 16_000
"""Longer texts, and texts that are completed to more, are not remembered."""


@dataclass(frozen=True, slots=True)
class Complete:
    """A complete configuration, and remarks on what config policies have changed in it."""

    config: dict[str, Any]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Completed:
    """``config`` is JSON, made beneath the defaults of ``cluster``. ``named`` and ``seeded``: the text itself
    says the name, and the seed."""

    cluster: ClusterConfig
    config: bytes
    named: bool
    seeded: bool
    remarks: tuple[str, ...]

    def renewed(self) -> Complete:
        config: dict[str, Any] = orjson.loads(self.config)
        if not self.named:
            config["name"] = experiment_name()
        if not self.seeded:
            config["reproducibility"]["experiment_seed"] = int(time.time())
        return Complete(config, self.remarks)


_recent: Recent[tuple[str, StoredTemplate | None, bytes, bool, Held], _Completed] = Recent(
    REMEMBERED_TEXTS
)


def complete_config(
    text: str,
    settings: Settings,
    template: StoredTemplate | None = None,
    *,
    unmanaged: bool = False,
    place: Place = FIRST_PLACE,
) -> dict[str, Any]:
    """As :func:`complete_by_policies`, without the remarks."""
    return complete_by_policies(text, settings, template, unmanaged=unmanaged, place=place).config


def complete_by_policies(
    text: str,
    settings: Settings,
    template: StoredTemplate | None = None,
    *,
    unmanaged: bool = False,
    place: Place = FIRST_PLACE,
) -> Complete:
    """The complete configuration, except for the patterns of its log policies. Raises BadRequest.

    ``place``: its workspace's storage and default pools count before the cluster's. The config policies hold,
    but for their limits of priorities, which depend on the pool, and but for what runs elsewhere
    (``unmanaged``).
    """
    held: Held = ()
    if not unmanaged:
        held = settings.policies.of(EXPERIMENT, place.workspace_id, place.workspace)
    cluster = settings.cluster
    beneath: list[Any] = [settings.default_checkpoint_storage]
    if not place.is_first:
        beneath += [place.checkpoint_storage, place.compute_pool, place.aux_pool]
    key = (text, template, orjson.dumps(beneath), unmanaged, held)
    known = _recent.get(key) if len(text) <= REMEMBERED_CHARACTERS else None
    if known is not None and known.cluster == cluster:
        return known.renewed()
    try:
        document = expconf.load_yaml(text)
        under = None if template is None else template.of_experiments
        given = document.data if under is None else expconf.merge(document.data, under.data, None)
        above = policies.above(held)
        if above:
            given = expconf.merge(above, given, None)
        defaults = defaults_beneath(given, settings, place)
        config = expconf.complete(
            document, template=under, defaults=defaults, above=above, unmanaged=unmanaged
        )
        check_size(config)
    except expconf.ConfigError as error:
        raise BadRequest(policies.explained(held, str(error))) from error
    remarks: list[str] = []
    if held:
        written = expconf.merge(document.data, None if under is None else under.data, None)
        remarks += policies.overridden(held, written)
        config["resources"], more = policies.limit_slots(held, config["resources"])
        remarks += more
    if permitted.is_clusters_own(config.get("checkpoint_storage"), settings.checkpoint_storage):
        raise BadRequest(f"checkpoint_storage: {permitted.KEPT}")
    made = orjson.dumps(config)
    if max(len(text), len(made)) <= REMEMBERED_CHARACTERS:
        seed = (given.get("reproducibility") or {}).get("experiment_seed")
        named = given.get("name") is not None
        _recent.put(key, _Completed(cluster, made, named, seed is not None, tuple(remarks)))
    return Complete(config, tuple(remarks))


async def check_patterns(config: Mapping[str, Any]) -> None:
    """Raises BadRequest for a pattern of the log policies that cannot be used."""
    try:
        await log_policies.check(config["log_policies"])
    except log_policies.PatternError as error:
        raise BadRequest(str(error)) from error


def defaults_beneath(
    given: Mapping[str, Any], settings: Settings, place: Place = FIRST_PLACE
) -> dict[str, Any]:
    """What the workspace and the cluster configuration put beneath an experiment's, which may be invalid: the
    checkpoint storage, the resource pool, and the container defaults of its pool."""
    cluster = settings.cluster
    resources = given.get("resources")
    slots = resources.get("slots_per_trial") if isinstance(resources, dict) else None
    width = 1 if slots is None else slots
    named = resources.get("resource_pool") if isinstance(resources, dict) else None
    own = None if named else place.default_pool(width)
    pool = own or pool_of(given, cluster) or ""
    defaults = cluster.container_defaults_of(pool).for_experiment(width)
    if own is not None:
        defaults.setdefault("resources", {})["resource_pool"] = own
    storages = [
        {"checkpoint_storage": one}
        for one in (place.checkpoint_storage, settings.checkpoint_storage)
        if one is not None
    ]
    if storages:
        merged = expconf.merge(storages[0], None, storages[1] if len(storages) > 1 else None)
        defaults["checkpoint_storage"] = merged["checkpoint_storage"]
    return defaults

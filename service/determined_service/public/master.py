"""The cluster as a whole."""

from __future__ import annotations

from typing import Annotated, Any

from determined import expconf
from determined.__version__ import __version__
from determined.common import cluster_config
from determined_service.access.dependencies import may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.web.router import Router
from determined_service.web.state import SettingsOf

router = Router("Cluster")

DETERMINED = "0.38.1"
"""The release of Determined whose interfaces these are. Its `det` compares this with its own version at every
call, and says so when the two differ."""


@router.get("/api/v1/master")
async def get_master(settings: SettingsOf) -> dict[str, Any]:
    """Version and identity; needs no token, because clients ask before they log in."""
    return {
        "version": __version__,
        "masterId": settings.cluster_id,
        "clusterId": settings.cluster_id,
        "clusterName": settings.cluster_name,
        "telemetryEnabled": False,
        "ssoProviders": [],
        "externalLoginUri": "",
        "externalLogoutUri": "",
        "branding": "determined",
        "rbacEnabled": False,
        "product": "PRODUCT_COMMUNITY",
        "userManagementEnabled": True,
        "featureSwitches": [],
        "strictJobQueueControl": False,
        "hasCustomLogo": False,
    }


@router.get("/api/v1/master/telemetry")
async def get_telemetry() -> dict[str, Any]:
    """Says that telemetry is off: nothing is ever sent anywhere."""
    return {"enabled": False}


@router.get("/api/v1/master/config")
async def get_config(
    user: Annotated[Principal, may(Action.READ, Kind.CONFIGURATION)],
    settings: SettingsOf,
) -> dict[str, Any]:
    """The cluster configuration in force, every default filled in, secrets masked, with `feature_switches`:
    there are none, but Determined's clients look which are on.

    ``refusal``: why the configuration file is not in force; empty if it is.
    """
    config = cluster_config.masked(settings.cluster)
    if settings.checkpoint_storage is not None and "checkpoint_storage" not in config:
        config |= expconf.masked_to_share({"checkpoint_storage": settings.checkpoint_storage})
    return {"config": {**config, "feature_switches": []}, "refusal": settings.cluster_refusal}


@router.get("/info")
async def get_info(settings: SettingsOf) -> dict[str, Any]:
    """Identity, in the form that Determined's `det` requests first to compare versions: `version` is that of
    Determined's release whose interfaces these are, `service_version` this service's own."""
    return {
        "version": DETERMINED,
        "service_version": __version__,
        "master_id": settings.cluster_id,
        "cluster_id": settings.cluster_id,
        "cluster_name": settings.cluster_name,
        "telemetry": {"enabled": False},
        "sso_providers": [],
    }

"""The cluster as a whole."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from determined.__version__ import __version__
from determined_service.web.state import SettingsOf

router = APIRouter(tags=["Cluster"])


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


@router.get("/info")
async def get_info(settings: SettingsOf) -> dict[str, Any]:
    """Version and identity in the form that clients request first, to compare versions."""
    return {
        "version": __version__,
        "master_id": settings.cluster_id,
        "cluster_id": settings.cluster_id,
        "cluster_name": settings.cluster_name,
        "telemetry": {"enabled": False},
        "sso_providers": [],
    }

"""`det deploy service` and `det deploy prefect`: one component in this process, with servers of one's own.

Both read the service's settings file, so that what they share (Prefect's address, its password) stands once.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import yaml

from determined.common import installation
from determined.common.wire import no_telemetry

UMASK = 0o077


class SettingsError(Exception):
    """What is wrong with the settings file, for its author."""


def serve(config: Path) -> NoReturn:
    """This process becomes the service, which checks its settings itself. Raises SettingsError."""
    from determined_deployments.local import service

    _require_package()
    _become((service.MODULE,), {"DET_SERVICE_CONFIG": str(config), **service.MEMORY})


def serve_prefect(config: Path) -> NoReturn:
    """This process becomes Prefect's server. Raises SettingsError."""
    from determined_deployments.local import databases, prefect_server

    _require_package()
    given = _read(config)
    api_url, auth, db_url, data_dir = (
        _text(config, given, key)
        for key in ("prefect_api_url", "prefect_auth", "prefect_db_url", "data_dir")
    )
    if urlsplit(api_url).hostname is None or urlsplit(db_url).scheme != "postgresql":
        raise SettingsError(
            f"{config}: prefect_api_url must be like http://10.0.0.3:4200/api, and prefect_db_url like "
            f"postgresql://user:password@host/prefect; found {api_url} and "
            f"{databases.without_password(db_url)}"
        )
    home = Path(data_dir) / "prefect"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    env = prefect_server.environment(api_url, auth, home, db_url)
    address = (env["PREFECT_SERVER_API_HOST"], env["PREFECT_SERVER_API_PORT"])
    # What the unit or the shell sets of Prefect's own settings wins.
    _become((prefect_server.MODULE, *address), {**env, **os.environ})


def _become(words: tuple[str, ...], env: Mapping[str, str]) -> NoReturn:
    """Without a second process, so that systemd watches and stops the component itself."""
    os.umask(UMASK)
    os.execve(
        sys.executable,
        [sys.executable, "-P", "-m", *words],
        {**no_telemetry.VARIABLES, **os.environ, **env},
    )


def _require_package() -> None:
    if importlib.util.find_spec("uvicorn") is None or importlib.util.find_spec("prefect") is None:
        raise SettingsError(
            f"the platform is not installed here: {installation.command('cluster')}"
        )


def _read(config: Path) -> Mapping[str, Any]:
    try:
        given = yaml.safe_load(config.read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{config} cannot be read: {error}") from error
    if not isinstance(given, dict):
        raise SettingsError(f"{config}: expected settings, name: value")
    return given


def _text(config: Path, given: Mapping[str, Any], key: str) -> str:
    value = given.get(key)
    if not isinstance(value, str) or not value:
        raise SettingsError(f"{config}: {key} is missing, or not a text; Prefect's server needs it")
    return value

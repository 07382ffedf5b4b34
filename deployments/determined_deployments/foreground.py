"""`det deploy service`, `prefect` and `migrate`: one component in this process, with servers of one's own.

All read the service's settings file, so that what they share (Prefect's address, its password) stands once.
"""

from __future__ import annotations

import os
import subprocess
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
    _require_package()
    from determined_deployments.local import service

    _become((service.MODULE,), {"DET_SERVICE_CONFIG": str(config), **service.MEMORY})


def serve_prefect(config: Path) -> NoReturn:
    """This process becomes Prefect's server. Raises SettingsError."""
    env = _prefect_environment(config)
    from determined_deployments.local import prefect_server

    # The address where it listens is not always the one by which others reach it.
    address = (env["PREFECT_SERVER_API_HOST"], env["PREFECT_SERVER_API_PORT"])
    _become((prefect_server.MODULE, *address), env)


def migrate(config: Path) -> NoReturn:
    """This process brings the tables of the service and of Prefect to the schemas of this release, and ends.

    The service's come first: they are one transaction, so a step that fails leaves both as they were.
    Raises SettingsError.
    """
    env = _prefect_environment(config)
    from determined_deployments.local import prefect_server

    done = subprocess.run(
        [sys.executable, "-P", "-m", "determined_service.migration"],
        env={**no_telemetry.VARIABLES, **os.environ, "DET_SERVICE_CONFIG": str(config)},
    )
    if done.returncode != 0:
        raise SystemExit(1)
    _become((prefect_server.MODULE, "migrate"), env)


def _prefect_environment(config: Path) -> dict[str, str]:
    """The variables of Prefect's server. Those that the unit or the shell sets win. Raises SettingsError."""
    _require_package()
    from determined_deployments.local import databases, prefect_server

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
    return {**prefect_server.environment(api_url, auth, home, db_url), **os.environ}


def _become(words: tuple[str, ...], env: Mapping[str, str]) -> NoReturn:
    """Without a second process, so that systemd watches and stops the component itself."""
    os.umask(UMASK)
    os.execve(
        sys.executable,
        [sys.executable, "-P", "-m", *words],
        {**no_telemetry.VARIABLES, **os.environ, **env},
    )


def _require_package() -> None:
    if (reason := installation.no_platform()) is not None:
        raise SettingsError(reason)


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

"""`det deploy service`, `prefect` and `migrate`: one component in this process, with servers of one's own.

All read the service's settings file, so that what they share (Prefect's address, its password) stands once.
Each waits for Postgres (``db_wait_s``) before anything else, because nobody says which comes up first: in
Kubernetes all pods of a release start at once. A signal ends the wait, as the program is not there yet.
"""

from __future__ import annotations

import importlib.util
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
DB_WAIT_S = 300.0
"""As in the service's settings, where it is documented."""


class SettingsError(Exception):
    """The mistake in the settings file, in words for its author."""


def serve(config: Path) -> NoReturn:
    """This process becomes the service, which checks its settings itself. Raises SettingsError."""
    _require_package()
    from determined_deployments.local import service

    given = _read(config)
    _wait_for_database(config, given, given.get("db_url"))
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

    given = _read(config)
    _wait_for_database(config, given, given.get("db_url"))
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
    _wait_for_database(config, given, db_url)
    home = Path(data_dir) / "prefect"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = prefect_server.environment(api_url, auth, home, db_url)
    if given.get("prefect_redis_url") is not None:
        if importlib.util.find_spec("prefect_redis") is None:
            raise SettingsError(
                f"{config}: prefect_redis_url needs the package prefect-redis: "
                f"{installation.command('redis')}"
            )
        found |= prefect_server.shared_by_redis(_text(config, given, "prefect_redis_url"))
    return {**found, **os.environ}


def _wait_for_database(config: Path, given: Mapping[str, Any], url: object) -> None:
    from determined_deployments.local import databases
    from determined_deployments.local.errors import ClusterError

    if not isinstance(url, str) or urlsplit(url).scheme not in ("postgresql", "postgres"):
        return  # the component says what is wrong with it
    seconds = given.get("db_wait_s", DB_WAIT_S)
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds >= 0:
        raise SettingsError(f"{config}: db_wait_s must be seconds, 0 or more; found {seconds!r}")
    try:
        databases.wait(url, seconds, lambda line: print(line, file=sys.stderr, flush=True))
    except ClusterError as error:
        raise SettingsError(
            f"{error}\n{config} names the database; a server that needs longer to come up than {seconds:g} s "
            "is waited for longer with db_wait_s"
        ) from None


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
        raise SettingsError(f"{config}: {key} is missing, or not a text")
    return value

"""A Postgres of one's own with TLS: every driver checks its certificate, by the authority that is named."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import yaml

from tests.certificates import self_signed
from tests.integration.conftest import new_database
from tests.integration.deployments.test_foreground import answer, deployed
from tests.local_cluster import DET
from tests.memory_folder import memory_folder
from tests.object_servers import free_port
from tests.waiting import TIMEOUT_S, until

NAME = "localhost"
PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
"""Debian's: the package of the other tests has no TLS."""
VERIFY = "sslmode=verify-full"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Path]]:
    """Its address, for a superuser who gives no password, and the certificate of its authority."""
    if not PROGRAMS:
        pytest.skip("no postgres with TLS is here: apt-get install postgresql")
    program = PROGRAMS[-1]
    # As root it does not start.
    account = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    port = free_port()
    with memory_folder("det-test-tls-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        data, pem = folder / "data", self_signed(folder / "server.pem", NAME)
        data.mkdir(mode=0o700)
        pem.chmod(0o600)
        for path in (data, pem):
            shutil.chown(path, account.pw_uid, account.pw_gid)
        who = {"user": account.pw_uid, "group": account.pw_gid} if os.geteuid() == 0 else {}
        make = [program.with_name("initdb"), "-D", data, "-U", "determined", "--auth=trust"]
        subprocess.run(
            [*make, "--no-locale", "--encoding=UTF8", "--no-sync"],
            check=True,
            capture_output=True,
            cwd=folder,
            **who,  # type: ignore[call-overload]
        )
        # Nobody comes without TLS.
        (data / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 trust\n")
        files = [f"{option}={pem}" for option in ("ssl_cert_file", "ssl_key_file")]
        options = ["ssl=on", "fsync=off", f"unix_socket_directories={data}", *files]
        command = [program, "-D", data, "-h", "127.0.0.1", "-p", str(port)]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *(word for option in options for word in ("-c", option))],
                stdout=log,
                stderr=log,
                cwd=folder,
                **who,  # type: ignore[call-overload]
            )
        try:
            url = f"postgresql://determined@{NAME}:{port}/postgres?sslmode=require"
            until("the server", lambda: _answers(url), show=(folder / "log").read_text)
            authority = folder / "authority.pem"
            text = pem.read_text()
            authority.write_text(text[text.index("-----BEGIN CERTIFICATE") :])
            yield url, authority
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


def _answers(url: str) -> bool:
    with contextlib.suppress(psycopg.OperationalError):
        psycopg.connect(url).close()
        return True
    return False


def settings(folder: Path, url: str, port: int) -> tuple[Path, dict[str, str]]:
    """A settings file with two new databases of the server, whose certificate is checked; their addresses."""
    databases = {name: new_database(url) for name in ("db_url", "prefect_db_url")}
    checked = {name: one.replace("sslmode=require", VERIFY) for name, one in databases.items()}
    assert all(VERIFY in one for one in checked.values())
    given = {
        **checked,
        "prefect_api_url": f"http://127.0.0.1:{port}/api",
        "prefect_auth": "determined:secret",
        "agent_token": "token",
        "data_dir": str(folder / "data"),
    }
    (folder / "data").mkdir()
    config = folder / "service.yaml"
    config.write_text(yaml.safe_dump(given))
    return config, databases


def migrate(config: Path, authority: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DET, "deploy", "migrate", "--config", str(config)],
        env={**os.environ, "PGSSLROOTCERT": str(authority)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def test_migrations_and_prefect_reach_a_server_whose_authority_is_named(
    server: tuple[str, Path], tmp_path: Path
) -> None:
    """As the chart names it, by the variable that all drivers read."""
    url, authority = server
    port = free_port()
    config, databases = settings(tmp_path, url, port)
    done = migrate(config, authority)
    assert done.returncode == 0, done.stderr
    for database, table in zip(databases.values(), ("experiments", "flow_run"), strict=True):
        with psycopg.connect(database) as connection:
            assert connection.execute("SELECT to_regclass(%s)", [table]).fetchone() != (None,)
    variables = {"PGSSLROOTCERT": str(authority)}
    with deployed("prefect", config, tmp_path, **variables):
        up = f"http://127.0.0.1:{port}/api/health"
        until("Prefect", lambda: answer(up) is not None, show=(tmp_path / "prefect.log").read_text)


def test_a_certificate_of_another_authority_is_refused(
    server: tuple[str, Path], tmp_path: Path
) -> None:
    url, _ = server
    config, databases = settings(tmp_path, url, free_port())
    config.write_text(config.read_text() + "db_wait_s: 0\n")
    done = migrate(config, self_signed(tmp_path / "other.pem", NAME))
    assert done.returncode == 1
    assert "certificate verify failed" in done.stderr and "Traceback" not in done.stderr
    for database in databases.values():
        with psycopg.connect(database) as connection:
            found = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
            assert found.fetchone() == (0,)

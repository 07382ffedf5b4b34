"""Collects the facts. A part that is down raises no error here: this is one of the facts."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from determined.__version__ import __version__
from determined.cli.doctor.facts import Facts, Local
from determined.cli.state import State
from determined.common.local_cluster import DATA_DIR_VARIABLE, LocalCluster

if TYPE_CHECKING:
    from determined.common.api import errors
    from determined.common.api.transport import AnyTransport

_TIMEOUT_S = 5.0
_REPORT_TIMEOUT_S = 30.0
_STATUS_TIMEOUT_S = 60.0


def examine(shared: State) -> Facts:
    """Asks every part of the cluster that answers.

    Raises CliError for an invalid address, or a damaged record of the local cluster.
    """
    from determined.common.api import errors

    address = shared.address
    local = None if address.local is None else _local(address.local)
    try:
        master = shared.master_info
    except errors.APIException as error:
        return Facts(
            address.url,
            __version__,
            service_problem=f"asked for its version: {error.message}",
            is_slow=_is_slow(error),
            local=local,
        )
    if not address.is_meant(master):
        return Facts(address.url, __version__, master=master, is_meant=False, local=local)
    not_ready = _not_ready(shared)
    report, problem, ahead, uncertainty = None, None, None, 0.0
    is_slow = needs_login = False
    # A service that does not answer /ready would not answer the next request in time either.
    if "service" not in not_ready:
        try:
            session = shared.session
            before, start = datetime.datetime.now(datetime.UTC), time.monotonic()
            report = session.request(
                "GET", "/api/v1/cluster/health-report", timeout=_REPORT_TIMEOUT_S, max_retries=0
            ).json()
            uncertainty = time.monotonic() - start
            # The service reads its clock just before it answers.
            then = before + datetime.timedelta(seconds=uncertainty)
            ahead = (datetime.datetime.fromisoformat(report["time"]) - then).total_seconds()
        except errors.UnauthenticatedException as error:
            problem, needs_login = error.message, True
        except errors.APIException as error:
            problem = f"asked for its report of the cluster: {error.message}"
            is_slow = _is_slow(error)
    return Facts(
        url=address.url,
        client_version=__version__,
        master=master,
        not_ready=not_ready,
        report=report,
        report_problem=problem,
        is_slow=is_slow,
        needs_login=needs_login,
        service_ahead_s=ahead,
        uncertainty_s=uncertainty,
        local=local,
    )


def _is_slow(error: errors.APIException) -> bool:
    """Whether the service took the request and did not answer in time."""
    from determined.common.api.transport import NoAnswerError

    return isinstance(error.__cause__, NoAnswerError) and error.__cause__.was_sent


def _not_ready(shared: State) -> dict[str, str]:
    """The ``problems`` that `/ready` reports, by part."""
    from determined.common.api import Session, errors

    try:
        with Session(
            shared.address.url,
            transport=shared.transport,
            timeout=3 * _TIMEOUT_S,
            max_retries=0,
        ) as session:
            answer = session.get("/ready", answers=(503,))
    except errors.APIException as error:
        return {"service": f"asked whether it is ready: {error.message}"}
    if answer.get("status") == "starting":
        return {"service": "it is starting"}
    return dict(answer.get("problems") or {})


def _local(record: LocalCluster) -> Local:
    components, problem = local_components(record)
    disk = None
    with contextlib.suppress(OSError):
        usage = shutil.disk_usage(record.data_dir)
        disk = {
            "path": str(record.data_dir),
            "freeBytes": usage.free,
            "totalBytes": usage.total,
        }
    return Local(
        data_dir=str(record.data_dir),
        components=components,
        problem=problem,
        prefect_url=record.prefect_url,
        prefect_problem=prefect_problem(record),
        disk=disk,
    )


def local_components(record: LocalCluster) -> tuple[list[dict[str, Any]] | None, str | None]:
    """The processes of the cluster on this machine, or the reason for which they are not known."""
    # In another process: the package that starts clusters may not be installed.
    # -P: the user's working directory may contain a module with the name of a library (typer.py).
    command = [sys.executable, "-P", "-m", "determined.cli", "deploy", "local", "status", "--json"]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, DATA_DIR_VARIABLE: str(record.data_dir)},
            capture_output=True,
            text=True,
            timeout=_STATUS_TIMEOUT_S,
            check=False,
        )
        return json.loads(done.stdout), None
    except subprocess.TimeoutExpired:
        return None, f"`det deploy local status` did not end within {_STATUS_TIMEOUT_S:.0f} s"
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return None, f"`det deploy local status` said: {last}"


def prefect_problem(record: LocalCluster, transport: AnyTransport | None = None) -> str | None:
    """The reason for which Prefect's API at the record's address does not answer; None if it does."""
    from determined.common.api import Session, errors, no_answer
    from determined.common.api.transport import NoAnswerError

    login = base64.b64encode((record.prefect_auth or ":").encode()).decode()
    try:
        with Session(
            record.prefect_api_url, transport=transport, timeout=_TIMEOUT_S, max_retries=0
        ) as session:
            # Not /health, which Prefect answers without its database.
            session.request("GET", "/ready", headers={"Authorization": f"Basic {login}"})
    except errors.APIException as error:
        if error.status_code is None:
            reason = error.__cause__
            # The message speaks of the service.
            if isinstance(reason, NoAnswerError):
                return no_answer.why(reason, record.prefect_api_url)
            return error.message
        return f"it says that it is not ready (HTTP {error.status_code})"
    return None

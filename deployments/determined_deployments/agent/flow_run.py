"""Runs one flow run in a fork: the only place that uses Prefect's engine from inside.

Prefect documents `prefect.engine` as a command (``python -m prefect.engine``). In a fork the interpreter is
there already, so the few functions behind the command are called instead. They were checked
with the releases in :data:`CHECKED`; with any other release, and when a function is missing, the command
is run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn
from uuid import UUID

from determined.common.forking import process

CHECKED = ("3.8.",)

logger = logging.getLogger(__name__)


def run_flow_run(order: Mapping[str, Any]) -> int:
    """``order``: ``flow_run_id``, ``entrypoint`` (``module.function``), ``directory``, ``env``.

    Returns the exit code. The engine sets the run's states. Exits by SystemExit when the run is aborted
    or fails.
    """
    os.environ.update(order["env"])
    process.set_title("flow run")
    if order["directory"] is not None:
        try:
            os.chdir(order["directory"])
        except OSError as error:
            # It matters to relative paths only, and whoever gave one is told of it there.
            logger.warning(
                "cannot change to the deployment's working directory, running elsewhere: %s", error
            )
    import prefect

    if not prefect.__version__.startswith(CHECKED):
        _run_command()
    try:
        from prefect.context import refresh_global_settings_context
        from prefect.engine import handle_engine_signals
        from prefect.flow_engine import load_flow_run, run_flow
        from prefect.flows import load_flow_from_entrypoint
    except ImportError as error:
        logger.warning(
            "Prefect %s lacks a function that a forked run needs, running its command instead: %s",
            prefect.__version__,
            error,
        )
        _run_command()
    flow_run_id = UUID(order["flow_run_id"])
    # The variables above are newer than the settings that were read when Prefect was imported; the password
    # is among them, for all threads.
    refresh_global_settings_context()
    with handle_engine_signals(flow_run_id):
        flow_run = load_flow_run(flow_run_id)
        flow: Any = load_flow_from_entrypoint(order["entrypoint"], use_placeholder_flow=False)
        result = run_flow(flow, flow_run=flow_run)
        if inspect.iscoroutine(result):
            asyncio.run(result)
    return 0


def _run_command() -> NoReturn:
    os.execv(sys.executable, [sys.executable, "-m", "prefect.engine"])

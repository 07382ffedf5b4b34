"""A user's flow with the blocks, as a separate process: ``python flow_with_blocks.py WHAT [FLOW_RUN]``.

Prints the flow run's id and then its results, a line each.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid

from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect.runtime import flow_run, task_run

from determined_flows import blocks

CONFIG = {
    "name": "blocks",
    "entrypoint": "sleep 600",
    "searcher": {"name": "single", "metric": "x", "max_length": {"batches": 1}},
    "max_restarts": 0,
}


def say(*words: object) -> None:
    print(*words, flush=True)


@task(retries=1)
async def submitted_twice() -> None:
    made = await blocks.submit_experiment.fn(CONFIG)
    say("experiment", made.id)
    if task_run.run_count == 1:
        raise RuntimeError("the first try is lost")


@flow
async def retried() -> None:
    say("flow run", flow_run.id)
    await submitted_twice()
    other = await blocks.submit_experiment(CONFIG)
    say("experiment", other.id)
    config = {"resources": {"slots": 0}}
    done = await blocks.run_command("echo hello; exit 3", config=config, check=False)
    say("command", done.state, done.exit_code, done.output.strip())


@flow
async def killed() -> None:
    say("flow run", flow_run.id)
    made = await blocks.submit_experiment(CONFIG)
    say("experiment", made.id)
    if flow_run.run_count == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    waiting = asyncio.create_task(blocks.wait_for_experiment.fn(made.id))
    await asyncio.sleep(0)
    say("waits for", made.id)
    await waiting


async def main(what: str, run_id: str | None) -> None:
    chosen = {"retried": retried, "killed": killed}[what]
    if run_id is None:
        async with get_client() as client:
            run = await client.create_flow_run(chosen)
    else:
        async with get_client() as client:
            run = await client.read_flow_run(uuid.UUID(run_id))
    await run_flow(chosen, flow_run=run)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], (sys.argv[2:] or [None])[0]))

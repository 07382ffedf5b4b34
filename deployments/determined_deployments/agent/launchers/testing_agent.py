"""``python -m determined_deployments.agent.launchers.testing_agent CONFIG JOBS``: an agent to be killed.

Starts the jobs of the JSON file JOBS with the launcher of the agent's settings CONFIG, prints their
identifiers and waits.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.held import Held
from determined_deployments.agent.launchers import built_in
from determined_deployments.agent.launchers.base import Call, Job


async def no_model_definition(model_def_hash: str) -> bytes:
    raise AssertionError(f"the contract's jobs have no code: {model_def_hash}")


async def main(config: AgentConfig, jobs: list[dict[str, object]]) -> None:
    async with built_in.load(config.launcher)(config, no_model_definition) as launcher:
        await launcher.adopt()
        held = []
        for job in jobs:
            program = Call(**job.pop("program"))  # type: ignore[arg-type]
            held.append(Held(launcher, await launcher.start(Job(program=program, **job))))  # type: ignore[arg-type]
        print(json.dumps([item.identifier for item in held]), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    settings, jobs_file = map(Path, sys.argv[1:])
    asyncio.run(
        main(
            AgentConfig.model_validate_json(settings.read_text()),
            json.loads(jobs_file.read_text()),
        )
    )

"""CPU of Prefect's server and of its Postgres for each call that a trivial trial costs them, four at a time.

Two ways: the run is made to wait and told that it runs, as we do, or made Running
(docs/inside/performance.md says why we do not).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from benchmarks.cluster import Cluster, cluster
from determined.common import local_cluster
from determined.common.wire.prefect import EXPERIMENT_DEPLOYMENT, TRIAL_DEPLOYMENT, waiting_run

RUNS = 100
ROUNDS = 3
AT_A_TIME = 4
MESSAGE = "leg 1 on agent a1"
COMPONENTS = ("prefect", "postgres")
DEPLOYED_TRIES = 120


class Calls:
    """The calls of runs that are numbered, each as the service and the experiment's flow make it."""

    def __init__(self, client: httpx.AsyncClient, trial: Any, parent: str) -> None:
        self._client = client
        self._trial = trial
        self._parent = parent
        self._key = uuid.uuid4().hex
        self._tasks: dict[int, str] = {}
        self._runs: dict[int, str] = {}

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        answer = await self._client.post(path, json=body)
        answer.raise_for_status()
        return answer.json()

    async def make_placeholder(self, number: int) -> None:
        body = {
            "flow_run_id": self._parent,
            "task_key": "trial",
            "dynamic_key": f"{self._key}-{number}",
            "name": f"trial-{number}",
            "state": {"type": "PENDING", "name": "Pending"},
        }
        self._tasks[number] = (await self._post("task_runs/", body))["id"]

    async def make_waiting(self, number: int) -> None:
        await self._make(number, {})

    async def make_running(self, number: int) -> None:
        running = {"type": "RUNNING", "name": "Running", "message": MESSAGE}
        await self._make(number, {"state": running})

    async def _make(self, number: int, other: dict[str, Any]) -> None:
        body = waiting_run(
            flow_id=self._trial["flow_id"],
            deployment_id=self._trial["id"],
            work_pool=self._trial["work_pool_name"],
            parameters={"trial_id": number},
            name=f"trial {number}",
            tags=["determined", "experiment-1", f"trial-{number}", "owner-determined"],
            key=f"{self._key}-{number}",
            parent_task_run_id=uuid.UUID(self._tasks[number]),
        )
        self._runs[number] = (await self._post("flow_runs/", body | other))["id"]

    async def tell_running(self, number: int) -> None:
        await self._tell(number, "RUNNING", "Running", MESSAGE)

    async def tell_completed(self, number: int) -> None:
        await self._tell(number, "COMPLETED", "Completed", "")

    async def _tell(self, number: int, type_: str, name: str, message: str) -> None:
        state = {"type": type_, "name": name, "message": message}
        path = f"flow_runs/{self._runs[number]}/set_state"
        await self._post(path, {"state": state, "force": True})

    async def write_page(self, number: int) -> None:
        body = {
            "type": "markdown",
            "data": "| metric | value |\n" * 20,
            "description": "metrics",
            "flow_run_id": self._runs[number],
        }
        await self._post("artifacts/", body)


async def cost(running: Cluster, call: Callable[[int], Awaitable[None]]) -> dict[str, float]:
    """CPU milliseconds a call, by component; what Prefect does after its answers is in it."""
    before = running.cpu_seconds()
    numbers = iter(range(RUNS))

    async def work() -> None:
        for number in numbers:
            await call(number)

    await asyncio.gather(*(work() for _ in range(AT_A_TIME)))
    await asyncio.sleep(2.0)
    after = running.cpu_seconds()
    return {name: 1000 * (after[name] - before[name]) / RUNS for name in COMPONENTS}


async def deployment(client: httpx.AsyncClient, name: str) -> Any:
    """The agent registers them soon after its start."""
    for _ in range(DEPLOYED_TRIES):
        found = await client.get(f"deployments/name/{name}")
        if found.status_code != 404:
            found.raise_for_status()
            return found.json()
        await asyncio.sleep(0.5)
    raise SystemExit(f"Prefect has no deployment {name} after a minute")


async def measure(running: Cluster) -> None:
    state = local_cluster.read(running.data_dir)
    assert state is not None
    user, _, password = (state.prefect_auth or "").partition(":")
    url = f"{state.prefect_api_url}/"
    async with httpx.AsyncClient(base_url=url, auth=(user, password), timeout=60) as client:
        experiment = await deployment(client, EXPERIMENT_DEPLOYMENT)
        trial = await deployment(client, TRIAL_DEPLOYMENT)
        body = {"flow_id": experiment["flow_id"], "name": "experiment"}
        parent = (await client.post("flow_runs/", json=body)).json()["id"]
        for round_ in range(1, ROUNDS + 1):
            for way in ("waits first", "made Running"):
                calls = Calls(client, trial, parent)
                made = (
                    [calls.make_waiting, calls.tell_running]
                    if way == "waits first"
                    else [calls.make_running]
                )
                sums = dict.fromkeys(COMPONENTS, 0.0)
                for call in [calls.make_placeholder, *made, calls.tell_completed, calls.write_page]:
                    costs = await cost(running, call)
                    print(f"  {call.__name__}: " + words(costs), flush=True)
                    sums = {name: sums[name] + costs[name] for name in sums}
                print(f"round {round_}, {way}: {words(sums)} a trial", flush=True)


def words(costs: dict[str, float]) -> str:
    return ", ".join(f"{name} {milliseconds:.1f} ms" for name, milliseconds in costs.items())


def main() -> None:
    with cluster() as running:
        running.settle()
        asyncio.run(measure(running))


if __name__ == "__main__":
    main()

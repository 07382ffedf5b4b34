"""``python -m …launchers.kubernetes.leftovers NAMESPACE/AGENT…``: removes what agents have left.

An agent that ends leaves its tasks at work, because the next one takes them over. Where no next one comes
(the chart's release is removed, and the namespace is not), this deletes their Jobs, with the pods, and their
Secrets; also the Jobs of users' deployments, which could reach no Prefect any more.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable

from determined_deployments.agent.launchers.kubernetes import labels
from determined_deployments.agent.launchers.kubernetes.client import (
    BATCH,
    CORE,
    ApiError,
    Client,
    Unconfigured,
    Unreachable,
)

WITHIN_S = 120.0
REQUESTS_PER_SECOND = 5.0


async def remove(client: Client, namespace: str, agent_id: str) -> None:
    """Deletes all that the agent has made in the namespace.

    Raises ApiError, and Unreachable after WITHIN_S.
    """
    jobs, own = f"{BATCH}/namespaces/{namespace}/jobs", labels.selector(agent_id)
    for path, selector in (
        (jobs, own),
        (f"{CORE}/namespaces/{namespace}/secrets", own),
        # With a Job goes the Secret of its variables.
        (jobs, labels.selector_of_runs(agent_id)),
    ):
        query = {"labelSelector": selector, "propagationPolicy": "Background"}
        await client.request("DELETE", path, query=query, within=WITHIN_S)


async def remove_all(targets: Iterable[str]) -> list[str]:
    """Removes what the targets (``NAMESPACE/AGENT``) have left. Returns messages about those that failed.

    Raises Unconfigured.
    """
    left = []
    async with Client(None, None, REQUESTS_PER_SECOND) as client:
        for target in targets:
            namespace, _, agent_id = target.partition("/")
            try:
                await remove(client, namespace, agent_id)
            except (ApiError, Unreachable) as failure:
                left.append(
                    f"Jobs and Secrets of the agent {agent_id} may be left in {namespace}: {failure}; "
                    f"remove them: kubectl -n {namespace} delete jobs,secrets -l {labels.selector(agent_id)}"
                )
            else:
                print(f"removed from {namespace}: the Jobs and Secrets of the agent {agent_id}")
    return left


def main(targets: list[str]) -> None:
    """Raises SystemExit with a message when something is left."""
    if not targets or not all("/" in one for one in targets):
        raise SystemExit("expected NAMESPACE/AGENT…")
    try:
        left = asyncio.run(remove_all(targets))
    except Unconfigured as failure:
        raise SystemExit(f"Jobs of tasks may be left: {failure}") from None
    if left:
        raise SystemExit("\n".join(left))


if __name__ == "__main__":
    main(sys.argv[1:])

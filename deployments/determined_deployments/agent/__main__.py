"""``python -m determined_deployments.agent``: settings from the file named by ``DET_AGENT_CONFIG``."""

from __future__ import annotations

import asyncio
import logging
import os

from pydantic import ValidationError

from determined.common.wire.prefect import PREFECT_PASSWORD
from determined_deployments.agent.config import CONFIG_VARIABLE, AgentConfig

OBSERVED = "PREFECT_INTEGRATIONS_KUBERNETES_OBSERVER_NAMESPACES"


def main() -> None:
    try:
        config = AgentConfig.load()
    except (ValidationError, OSError) as error:
        raise SystemExit(f"{os.environ.get(CONFIG_VARIABLE)}: {error}") from None
    # Prefect reads its settings when it is imported, here and in the fork server.
    if config.prefect_api_url:
        os.environ["PREFECT_API_URL"] = config.prefect_api_url
        os.environ.setdefault("PREFECT_HOME", str(config.work_dir / "prefect"))
    if config.prefect_auth:
        os.environ[PREFECT_PASSWORD] = config.prefect_auth.get_secret_value()
    if config.launcher == "kubernetes":
        # The cluster and the namespace in which Prefect's observer sees that a flow run's Job has crashed.
        if config.kubernetes.kubeconfig:
            os.environ["KUBECONFIG"] = str(config.kubernetes.kubeconfig)
        os.environ.setdefault(OBSERVED, config.kubernetes.namespace)
    from determined_deployments.agent.agent import AgentRefused, run_agent
    from determined_deployments.agent.launchers import built_in
    from determined_deployments.agent.launchers.base import Unusable

    try:
        built_in.load(config.launcher)
    except ValueError as error:
        raise SystemExit(f"{os.environ.get(CONFIG_VARIABLE)}: {error}") from None
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    for talkative in ("httpx", "kopf"):
        logging.getLogger(talkative).setLevel(logging.WARNING)
    try:
        asyncio.run(run_agent(config))
    except (AgentRefused, Unusable) as error:
        logging.getLogger(__name__).error("%s", error)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()

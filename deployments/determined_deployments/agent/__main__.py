"""``python -m determined_deployments.agent``: settings from the file named by ``DET_AGENT_CONFIG``."""

from __future__ import annotations

import asyncio
import logging
import os

from pydantic import ValidationError

from determined.common.wire.prefect import PREFECT_PASSWORD
from determined_deployments.agent.config import CONFIG_VARIABLE, AgentConfig

KUBECONFIG = "KUBECONFIG"
IN_POD = "KUBERNETES_SERVICE_HOST"
"""What Kubernetes sets in pods."""
OBSERVED = "PREFECT_INTEGRATIONS_KUBERNETES_OBSERVER_NAMESPACES"
VARIABLES_ARE_SECRET = "PREFECT_INTEGRATIONS_KUBERNETES_WORKER_STORE_ENV_AS_SECRET"


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
    if config.is_on_kubernetes:
        _prepare_prefect(config)
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


def _prepare_prefect(config: AgentConfig) -> None:
    """Names the cluster to Prefect, and has it keep passwords out of Jobs.

    Prefect's worker and its observer look for the cluster when they are imported, in the environment; the
    account of a pod comes first there, and here it is the last resort.
    """
    if config.kubernetes.kubeconfig is not None:
        os.environ[KUBECONFIG] = str(config.kubernetes.kubeconfig)
    if KUBECONFIG in os.environ:
        os.environ.pop(IN_POD, None)
    # There the observer sees that a flow run's Job has crashed.
    os.environ.setdefault(OBSERVED, config.kubernetes.namespace)
    # Among the variables of a flow run's Job is Prefect's password.
    os.environ.setdefault(VARIABLES_ARE_SECRET, "true")


if __name__ == "__main__":
    main()

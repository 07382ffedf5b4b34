"""The flows' connection to the service."""

from __future__ import annotations

import os

from determined.common.api import Session
from determined.common.api.patience import OUTAGE_RETRIES
from determined.common.wire.serving import AGENT_TOKEN, RUN_TOKEN

MASTER = "DET_MASTER"


def open_session(token: str = "") -> Session:
    """A session with ``token``, or with the one of this run's environment.

    An agent of ours sets ``DET_MASTER`` and ``DET_RUN_TOKEN``, which is good for what the run serves alone.
    Under a stock Prefect worker our deployments have the agents' own token, ``DET_AGENT_TOKEN``, in their
    environment instead.
    """
    env = os.environ
    token = token or env.get(RUN_TOKEN) or env.get(AGENT_TOKEN) or ""
    found = {MASTER: env.get(MASTER), AGENT_TOKEN: token}
    missing = [name for name, value in found.items() if not value]
    if missing:
        raise RuntimeError(
            f"{' and '.join(missing)} not set: a worker that runs Determined's flows needs the "
            "service's address and the agent token in its environment (docs/automate/flows.md)"
        )
    return Session(env[MASTER], token, max_retries=OUTAGE_RETRIES)

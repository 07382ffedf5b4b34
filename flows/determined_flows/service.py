"""The flows' connection to the service."""

from __future__ import annotations

import os

from determined.common.api import Session
from determined.common.api.patience import OUTAGE_RETRIES
from determined.common.wire.serving import AGENT_TOKEN, RUN_TOKEN

MASTER = "DET_MASTER"


def open_session(token: str = "") -> Session:
    """A session with ``token``, or with the one of this run's environment.

    An agent of ours sets ``DET_MASTER`` and ``DET_RUN_TOKEN``, which is good for what the run serves alone. A
    stock worker of Prefect sets the token that the service has given the run. Where the service is of the
    release before, ``DET_AGENT_TOKEN`` is beside that worker.
    """
    env = os.environ
    token = token or env.get(RUN_TOKEN) or env.get(AGENT_TOKEN) or ""
    found = {MASTER: env.get(MASTER), RUN_TOKEN: token}
    missing = [name for name, value in found.items() if not value]
    if missing:
        raise RuntimeError(
            f"{' and '.join(missing)} not set: a worker that runs Determined's flows needs the service's "
            f"address in {MASTER}, and a run that the service has made has its token; one that was started "
            "by hand has none under a stock worker: let an agent run it, or use det (docs/automate/flows.md)"
        )
    return Session(env[MASTER], token, max_retries=OUTAGE_RETRIES)

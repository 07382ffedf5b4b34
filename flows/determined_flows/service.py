"""The flows' connection to the service."""

from __future__ import annotations

import os

from determined.common.api import Session
from determined.common.api.patience import OUTAGE_RETRIES


def open_session() -> Session:
    """A session with the agent's token.

    An agent of ours sets ``DET_MASTER`` and ``DET_AGENT_TOKEN``; for a stock Prefect worker they go
    into the work pool's environment.
    """
    missing = [name for name in ("DET_MASTER", "DET_AGENT_TOKEN") if not os.environ.get(name)]
    if missing:
        raise RuntimeError(
            f"{' and '.join(missing)} not set: a worker that runs Determined's flows needs the "
            "service's address and the agent token in its environment (docs/automate/flows.md)"
        )
    return Session(
        os.environ["DET_MASTER"], os.environ["DET_AGENT_TOKEN"], max_retries=OUTAGE_RETRIES
    )

"""Tokens of supervisors and of Prefect runs: each is good for one thing, and for nothing else.

Such a token says in clear what its holder serves, and is signed with the agents' token. So the service checks
it without a look at the database, and it goes on over restarts of service and agent. The service puts a
supervisor's token into the order to start the leg, and a run's beside its parameters in Prefect, for stock
workers; an agent signs the tokens of the runs that it starts. A new agents' token makes all of them invalid.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass

PREFIX = "serve."
"""With this begins every such token; no other token begins so."""

RUN_TOKEN = "DET_RUN_TOKEN"
AGENT_TOKEN = "DET_AGENT_TOKEN"
"""Variables of a run's process: its own token, which an agent gives it or the service, and the agents' token,
where a service of the release before has stock workers of Prefect run our flows."""

# What is served, by the names that the rules of access have for it.
ALLOCATION = "allocation"
TRIAL = "trial"
EXPERIMENT = "experiment"
PIPELINE = "pipeline"
DELETION = "deletion"
# A run that was started in Prefect by hand makes the thing first. It is named by the run's id in Prefect, and
# the answer that names the thing brings the token for it.
NEW_EXPERIMENT = "new experiment"
NEW_RETRAINING = "new retraining run"
NEW_PIPELINE = "new pipeline"


@dataclass(frozen=True, slots=True)
class Served:
    """One thing that a supervisor or a run serves: ``kind`` is one of the names above, ``id`` is the thing's
    id as text."""

    kind: str
    id: str

    def __str__(self) -> str:
        if self.kind in (NEW_EXPERIMENT, NEW_RETRAINING, NEW_PIPELINE):
            return f"the {self.kind} of Prefect's run {self.id}"
        return f"{self.kind} {self.id}"


def sign(agent_token: str, served: Served) -> str:
    """The token for ``served``."""
    kind = served.kind.replace(" ", "-")
    return f"{PREFIX}{kind}.{served.id}.{_signature(agent_token, served)}"


def read(agent_token: str, token: str) -> Served | None:
    """The rights of the token; None: it was not signed with ``agent_token``."""
    if not token.startswith(PREFIX):
        return None
    kind, _, rest = token.removeprefix(PREFIX).partition(".")
    thing, _, signature = rest.rpartition(".")
    served = Served(kind.replace("-", " "), thing)
    right = _signature(agent_token, served)
    given = signature.encode("utf-8", "surrogatepass")
    return served if hmac.compare_digest(given, right.encode()) else None


def _signature(agent_token: str, served: Served) -> str:
    what = f"determined-serving\0{served.kind}\0{served.id}"
    digest = hmac.digest(agent_token.encode(), what.encode("utf-8", "surrogatepass"), "sha256")
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")

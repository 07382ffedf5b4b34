"""Requests of Determined's clients that this service does not have, each with the alternative."""

from __future__ import annotations

import re

_ADVICE = {
    r"/oauth2/.*": "OAuth is not supported: log in with name and password (det user login NAME)",
    r"/api/v1/webhooks(/.*)?": "ask for states (det e wait ID), or let Prefect tell you: its automations",
    r"/api/v1/(cleanup_logs|(experiments|trials)/\d+/retain_logs)": (
        "logs are kept until their experiment is deleted: det e delete ID"
    ),
    r"/api/v1/workspaces/\d+/(list-)?namespace-bindings|/api/v1/workspaces/\d+/set-resource-quota": (
        "namespaces belong to resource pools, and quotas to users (docs/operate/cluster-config.md)"
    ),
}
"""By the path, a regular expression."""


def advice(path: str) -> str:
    """The alternative to that path of Determined's, after a colon; empty for any other path."""
    found = next((text for one, text in _ADVICE.items() if re.fullmatch(one, path)), None)
    return "" if found is None else f": {found}"

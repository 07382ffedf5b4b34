"""Links to an experiment's plot that open without a login.

A link opens one page of one experiment, for reading only. It holds no user's token: its key is an HMAC
under the cluster's secret. A new secret makes all links invalid.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

from determined_service.base import pages
from determined_service.base.settings import Settings

PATH = "/plots/experiments/{experiment_id}/{key}"


def key_of(settings: Settings, experiment_id: int) -> str:
    """32 URL-safe characters."""
    secret = settings.agent_token.get_secret_value().encode()
    text = f"plot of experiment {experiment_id} of cluster {settings.cluster_id}"
    digest = hmac.digest(secret, text.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest[:24]).decode()


def is_key(settings: Settings, experiment_id: int, key: str) -> bool:
    """True if ``key`` opens the page of the experiment; takes the same time for every wrong one."""
    return hmac.compare_digest(key.encode(), key_of(settings, experiment_id).encode())


def link(settings: Settings, experiment_id: int) -> str:
    """The page's address."""
    path = PATH.format(experiment_id=experiment_id, key=key_of(settings, experiment_id))
    return f"{pages.of_service(settings)}{path}"
